"""Certification for real: the plant's own controller on its simulator, with a claim weak enough for a few episodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from configs.errors import BadInput, Refused
from configs.home import Home
from configs.run import OpenedRun
from neorl_core.safety.bounds import betting_episodes
from tasks.certify import certify, materials_here, repeat_with, simulator_digest
from tasks.evidence.attempts import attempt_alpha
from tasks.evidence.audit.audit import audit
from tasks.evidence.certificate import read_certificate, verify_certificate
from tasks.evidence.ledger.ledger import Ledger
from tasks.models.plants.known import plant_named
from tasks.references import Bundle
from tests.evidence import signer_at
from tests.sample_record import write_bundle
from tests.small_data import PLANT, reactor_run


def weak(**changes: float) -> OpenedRun:
    return reactor_run(certify={"p0": 0.3, "max_episodes": 100, **changes})


@pytest.fixture(scope="module")
def bundled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Home, Bundle]]:
    home = Home(tmp_path_factory.mktemp("certify") / "home")
    folder = home.folder("bundles", PLANT) / "sample"
    with signer_at(home):
        yield home, Bundle(digest=write_bundle(folder), plant=PLANT, folder=folder)


def test_a_bundle_is_certified_once_and_can_be_repeated(bundled: tuple[Home, Bundle]) -> None:
    home, bundle = bundled
    told: list[tuple[int, int, str]] = []
    found = certify(home, weak(), bundle, progress=lambda *said: told.append(said))
    assert found.passed
    assert found.complete
    assert (found.attempt, found.composite, found.reused) == (1, bundle.digest, False)
    assert told[-1][0] == found.episodes
    again = certify(home, weak(), bundle)
    assert again == found.model_copy(update={"reused": True})
    # Another claim about the same limits is another attempt, and spends less.
    other = certify(home, weak(p0=0.4), bundle)
    assert (other.attempt, other.reused) == (2, False)
    assert other.alpha == pytest.approx(0.05 / 6)
    ledger = Ledger.open(home, write=False)
    assert [entry.kind for entry in ledger.entries()] == ["attempt", "seed", "result"] * 2
    stated = read_certificate(found.path, ledger.trust).predicate
    assert stated.claim == found.claim
    here = materials_here(bundle.folder, None, stated.scope)

    def again(here: dict[str, str]) -> dict[str, bool | None]:
        checks = verify_certificate(
            found.path,
            ledger.trust,
            artefacts=here,
            ledger=ledger,
            repeat=repeat_with(bundle.folder),
            rerun=True,
            challenge=b"the auditor's own",
        )
        return {check.name: check.passed for check in checks}

    said = again(here)
    assert {name for name, passed in said.items() if passed is None} == {
        *("dataset", "config", "artifact", "isolation", "policy", "witnesses")
    }
    assert all(said[name] for name in (*here, "rerun", "challenge", "ledger"))
    # A changed simulator, lock or code is named although the counts repeat; so is what is not here.
    for name in ("simulator", "shield", "code", "lock", "step", "program"):
        assert [n for n, passed in again({**here, name: "0" * 64}).items() if passed is False] == [name]
    assert [n for n, passed in again({"composite": bundle.digest}).items() if passed is False] == [
        *("code", "lock", "simulator", "shield", "step", "program")
    ]
    assert audit(home).passed


def test_another_source_of_the_simulator_is_another_simulator() -> None:
    """The attack: the plant's code is changed, and nothing else of it."""
    known = plant_named(PLANT)
    changed = known._replace(code="f" * 64)
    assert simulator_digest(changed, known.simulator()) != simulator_digest(known, known.simulator())


def test_a_certificate_that_has_gone_is_not_made_up(bundled: tuple[Home, Bundle]) -> None:
    home, bundle = bundled
    found = certify(home, weak(p0=0.35), bundle)
    kept = found.path.read_bytes()
    found.path.unlink()
    with pytest.raises(Refused, match=f"certificate of attempt {found.attempt} is missing at .*: restore this file"):
        certify(home, weak(p0=0.35), bundle)
    found.path.write_bytes(kept)
    assert certify(home, weak(p0=0.35), bundle).reused


def test_an_attempt_that_cannot_pass_spends_nothing(bundled: tuple[Home, Bundle]) -> None:
    home, bundle = bundled
    count = len(Ledger.open(home).entries("attempt"))
    with pytest.raises(BadInput, match="no error probability was spent"):
        certify(home, weak(p0=0.05, max_episodes=20), bundle)
    assert len(Ledger.open(home).entries("attempt")) == count


def test_a_killed_attempt_goes_on_where_a_new_one_would_lack_episodes(tmp_path: Path) -> None:
    """As many episodes as the first attempt needs are too few for the second, which would spend less."""
    home, folder = Home(tmp_path / "home"), tmp_path / "bundle"
    bundle = Bundle(digest=write_bundle(folder), plant=PLANT, folder=folder)
    run = weak(max_episodes=betting_episodes(0.3, 0, attempt_alpha(0.95, 1)))
    with signer_at(home):
        with pytest.raises(InterruptedError):
            certify(home, run, bundle, progress=_die)
        found = certify(home, run, bundle)
        assert (found.attempt, found.reused) == (1, False)
        assert len(Ledger.open(home).entries("attempt")) == 1
        with pytest.raises(BadInput, match=r"attempt 2 needs .* without a violation"):
            certify(home, weak(max_episodes=run.certify.max_episodes, p0=0.299), bundle)


def _die(*_: object) -> None:
    """Stands for SIGKILL: nothing of ours catches it."""
    raise InterruptedError


def test_another_bundle_than_the_named_one_is_refused(bundled: tuple[Home, Bundle]) -> None:
    home, bundle = bundled
    with pytest.raises(Refused, match="but 0000"):
        certify(home, weak(), bundle.model_copy(update={"digest": "0" * 64}))
