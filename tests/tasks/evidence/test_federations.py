"""Federations in the ledger: consecutive rounds, complete sites, and spent privacy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs.errors import Refused
from configs.home import Home
from tasks.evidence.audit.audit import audit
from tasks.evidence.federations import (
    WEIGHTS,
    FederationBody,
    LeftOutBody,
    MemberBody,
    ParticipantBody,
    PrivacyBody,
    RoundBody,
    spent,
)
from tasks.evidence.ledger.entry import Entry
from tasks.evidence.ledger.ledger import Ledger, artefact
from tasks.files.canonical import sha256_hex
from tests.evidence import forge, open_ledger

PLANT = "chemical_reactor"
A, B, C, D = (sha256_hex(name) for name in (b"a", b"b", b"c", b"d"))
SITES = ("east", "north", "south")


def agreed(**changes: Any) -> FederationBody:
    return FederationBody(
        terms=A,
        algorithm="td3_bc",
        method="fedavg",
        aggregate="mean",
        rounds=2,
        minimum_sites=2,
        secure_sums=False,
        privacy=None,
        sites=tuple(MemberBody(site=site, key=B, rows=100) for site in SITES),
        moments=C,
        weights=A,
    ).model_copy(update=changes)


def participants(*sites: str, **changes: Any) -> tuple[ParticipantBody, ...]:
    one = {"update": D, "weight": 1 / max(len(sites), 1), "norm": 1.0, "distance": 0.5} | changes
    return tuple(ParticipantBody(site=site, **one) for site in sites)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return open_ledger(Home(tmp_path / "home"))


@pytest.fixture
def opened(ledger: Ledger) -> Entry:
    return ledger.append("federation", agreed(), plant=PLANT)


def body(opened: Entry, **changes: Any) -> RoundBody:
    """Return a valid first round with changes."""
    return RoundBody(
        federation=opened.digest,
        number=1,
        completed=True,
        before=A,
        after=B,
        participants=participants("east", "north"),
        left_out=(LeftOutBody(site="south", why="late", detail="no answer within 600 s"),),
        aggregate=D,
        epsilon=None,
    ).model_copy(update=changes)


def weights(home: Home) -> Path:
    path = home.folder("federations") / "weights.npz"
    path.write_bytes(b"weights")
    return path


def test_rounds_are_consecutive_and_the_last_names_the_weights(ledger: Ledger, opened: Entry) -> None:
    ledger.append("round", body(opened), plant=PLANT)
    path = weights(ledger.home)
    last = body(opened, number=2, before=B, after=sha256_hex(b"weights"))
    for files in ([], [artefact(ledger.home, path, "others")]):
        with pytest.raises(Refused, match="the last round, and no other round, must name a file"):
            ledger.append("round", last, plant=PLANT, artefacts=files)
    ledger.append("round", last, plant=PLANT, artefacts=[artefact(ledger.home, path, WEIGHTS)])
    with pytest.raises(Refused, match="the next round is 3 of 2, got round 3"):
        ledger.append("round", body(opened, number=3, before=last.after), plant=PLANT)
    assert all(check.passed is not False for check in audit(ledger.home).checks)
    path.write_bytes(b"others")
    assert [check.name for check in audit(ledger.home).checks if check.passed is False] == ["files"]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"number": 2}, "the next round is 1 of 2, got round 2"),
        ({"before": B}, "must start with the weights"),
        ({"federation": A}, "no federation"),
        ({"left_out": ()}, "a round must mention every site of the federation once, got east, north"),
        (
            {"participants": participants("east", "north", "south")},
            "a round must mention every site of the federation once",
        ),
        ({"participants": participants("east", "west")}, "a round must mention every site of the federation once"),
        ({"completed": False, "after": A, "aggregate": ""}, "a round is complete if and only if 2 or more sites"),
        ({"aggregate": ""}, "lacks the digest of the aggregate"),
        ({"participants": participants("east", "north", weight=0.6)}, "shares of a mean must add up to 1"),
        (
            {"participants": participants("east", "north", norm=None, distance=None)},
            "secure sums must hide the norms of changes",
        ),
        ({"epsilon": 1.0}, "epsilon must be None after 1 rounds, got 1.0"),
    ],
)
def test_a_round_that_does_not_add_up_is_refused(
    ledger: Ledger, opened: Entry, changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(Refused, match=sentence):
        ledger.append("round", body(opened, **changes), plant=PLANT)


def test_weights_do_not_move_where_too_few_sites_answered(ledger: Ledger, opened: Entry) -> None:
    lost = tuple(LeftOutBody(site=site, why="absent", detail="") for site in ("north", "south"))
    alone = {"completed": False, "participants": participants("east"), "left_out": lost, "aggregate": ""}
    with pytest.raises(Refused, match="an incomplete round must keep the weights"):
        ledger.append("round", body(opened, **alone), plant=PLANT)
    ledger.append("round", body(opened, **alone, after=A), plant=PLANT)
    ledger.append("round", body(opened), plant=PLANT)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"minimum_sites": 1}, "a federation needs 2 or more sites"),
        ({"sites": (MemberBody(site="east", key=B, rows=1),) * 2}, "sites of different names"),
        ({"secure_sums": True, "aggregate": "median"}, "need the aggregate 'mean', got 'median'"),
        ({"rounds": 0}, "at least 1 round and 1 row per site"),
        ({}, "is already logged: continue it"),
    ],
)
def test_an_inconsistent_federation_is_refused(
    ledger: Ledger, opened: Entry, changes: dict[str, Any], sentence: str
) -> None:
    terms = {"terms": C} if changes else {}
    with pytest.raises(Refused, match=sentence):
        ledger.append("federation", agreed(**{**terms, **changes}), plant=PLANT)


def test_spent_privacy_follows_the_accountant_for_incomplete_rounds_too(ledger: Ledger) -> None:
    # Rényi's divergence of order a of T Gaussian mechanisms is a T / (2 z^2) (Mironov 2017, proposition 7), here a; to
    # epsilon by Canonne, Kamath & Steinke 2020 (arXiv 2004.00010), proposition 12.
    private, order = PrivacyBody(clip=1.0, noise=5.0, delta=1e-5), np.linspace(1.5, 10, 100_000)
    expected = np.min(order + np.log1p(-1 / order) - np.log(1e-5 * order) / (order - 1))
    assert spent(private, 50) == pytest.approx(expected, rel=1e-3)
    assert spent(private, 0) == 0.0
    assert spent(PrivacyBody(clip=1.0, noise=0.0, delta=1e-5), 50) is None
    opened = ledger.append("federation", agreed(privacy=private), plant=PLANT)
    with pytest.raises(Refused, match=r"epsilon must be .* after 1 rounds"):
        ledger.append("round", body(opened, epsilon=0.5), plant=PLANT)
    ledger.append("round", body(opened, epsilon=spent(private, 1)), plant=PLANT)


def test_the_audit_finds_a_round_that_breaks_the_rules(ledger: Ledger, opened: Entry) -> None:
    forge(ledger.home, "round", body(opened, before=C), plant=PLANT)
    failed = [check for check in audit(ledger.home).checks if check.passed is False]
    assert [check.name for check in failed] == ["federations"]
    assert "must start with the weights" in failed[0].detail
