"""Federations in the ledger: bodies of their entries, and the rules that every entry must follow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from configs.errors import Refused
from tasks.evidence.ledger.entry import Body, Entry

WEIGHTS = "weights"
"""Name of the file with the final weights, in the entry of the last round."""


class MemberBody(Body):
    """Site of a federation."""

    site: str
    key: str
    """SHA-256 of the site's public key; empty without authentication."""
    rows: int
    """Number of rows, as stated by the site."""


class PrivacyBody(Body):
    """Site-level differential privacy."""

    clip: float
    noise: float
    delta: float


class FederationBody(Body):
    """Entry: a federation starts with these terms, sites and initial weights."""

    terms: str
    """SHA-256 of the coordinator's file without network settings."""
    algorithm: str
    method: str
    aggregate: str
    rounds: int
    minimum_sites: int
    secure_sums: bool
    privacy: PrivacyBody | None
    sites: tuple[MemberBody, ...]
    moments: str
    """SHA-256 of the moments of all sites' rows, used for scaling."""
    weights: str
    """SHA-256 of the initial weights."""


class ParticipantBody(Body):
    """Site with a change that the round used."""

    site: str
    update: str
    """SHA-256 of the received change; masked if sums are secure."""
    weight: float
    """Weight in the mean."""
    norm: float | None
    """Norm of the change; None if the coordinator sees only sums."""
    distance: float | None
    """Norm of the difference from the aggregate; large values show outliers."""


class LeftOutBody(Body):
    """Site without a change that the round used."""

    site: str
    why: Literal["absent", "late", "failed", "refused"]
    """Reason: not connected, no answer in time, error at the site, or change rejected."""
    detail: str


class RoundBody(Body):
    """Entry: one round of a federation."""

    federation: str
    """Digest of the federation's entry."""
    number: int
    completed: bool
    """Whether enough sites answered; otherwise the weights are unchanged."""
    before: str
    """SHA-256 of the coordinator's weights before the round."""
    after: str
    participants: tuple[ParticipantBody, ...]
    left_out: tuple[LeftOutBody, ...]
    aggregate: str
    """SHA-256 of the aggregated change before noise; empty if there is none."""
    epsilon: float | None
    """Spent by all rounds so far at the federation's delta; None without privacy or noise."""


def rounds_of(history: Sequence[Entry], federation: str) -> list[RoundBody]:
    """Return the rounds of a federation."""
    return [e.read(RoundBody) for e in history if e.kind == "round" and e.body["federation"] == federation]


def spent(privacy: PrivacyBody | None, rounds: int) -> float | None:
    """Return the epsilon spent by completed rounds in which every site may take part; None without privacy or noise."""
    if privacy is None or privacy.noise == 0:
        return None
    if not rounds:
        return 0.0
    # Imported late: it loads NumPy, which most signers do not need.
    from neorl_core.federated.accountant import Mechanism, renyi_epsilon

    return renyi_epsilon(Mechanism(privacy.noise, 1.0, rounds), privacy.delta)


def check_federation(history: Sequence[Entry], entry: Entry) -> None:
    """Check a new federation: sites, minimum number, compatible options, and new terms."""
    body = entry.read(FederationBody)
    names = [site.site for site in body.sites]
    if len(set(names)) < len(names) or not 2 <= body.minimum_sites <= len(names):
        raise Refused(
            f"a federation needs {max(body.minimum_sites, 2)} or more sites of different names, got {', '.join(names)}"
        )
    if (body.secure_sums or body.privacy) and body.aggregate != "mean":
        raise Refused(f"secure sums and privacy need the aggregate 'mean', got '{body.aggregate}': choose one of them")
    if body.rounds < 1 or any(site.rows < 1 for site in body.sites):
        rows = min((site.rows for site in body.sites), default=0)
        raise Refused(f"a federation needs at least 1 round and 1 row per site, got {body.rounds} and {rows}")
    if any(e.kind == "federation" and (e.plant, e.body["terms"]) == (entry.plant, body.terms) for e in history):
        raise Refused(
            f"a federation with the terms {body.terms[:12]} is already logged: continue it, or change the seed"
        )


def check_round(history: Sequence[Entry], entry: Entry) -> None:
    """Check a round: it follows the previous one, and sites, weights and spent privacy are consistent."""
    body = entry.read(RoundBody)
    opened = next(
        (e for e in history if (e.kind, e.digest, e.plant) == ("federation", body.federation, entry.plant)), None
    )
    if opened is None:
        raise Refused(f"no federation {body.federation[:12]} of {entry.plant} is logged: start it first")
    agreed = opened.read(FederationBody)
    done = [one for one in rounds_of(history, body.federation) if one.completed]
    weights = done[-1].after if done else agreed.weights
    if body.number != len(done) + 1 or body.number > agreed.rounds:
        raise Refused(f"the next round is {len(done) + 1} of {agreed.rounds}, got round {body.number}")
    if body.before != weights:
        raise Refused(f"round {body.number} must start with the weights {weights[:12]}, got {body.before[:12]}")
    _check_sites(agreed, body)
    _check_outcome(agreed, body)
    _check_spent(agreed, body, len(done) + body.completed)
    last = body.completed and body.number == agreed.rounds
    held = [file.sha256 for file in entry.artefacts if file.name == WEIGHTS]
    if held != ([body.after] if last else []):
        raise Refused(
            f"only the last round has a file of weights ({body.after[:12]}), got {len(held)} in round {body.number}"
        )


def _check_sites(agreed: FederationBody, body: RoundBody) -> None:
    """Check that the round mentions every site once and that enough sites completed it."""
    sites = sorted([one.site for one in body.participants] + [one.site for one in body.left_out])
    if sites != sorted(site.site for site in agreed.sites):
        raise Refused(f"a round must mention every site of the federation once, got {', '.join(sites) or 'none'}")
    if body.completed is not (len(body.participants) >= agreed.minimum_sites):
        raise Refused(
            f"a round is complete if and only if {agreed.minimum_sites} or more sites took part, got "
            f"{len(body.participants)} with completed={body.completed}"
        )


def _check_outcome(agreed: FederationBody, body: RoundBody) -> None:
    """Check that only an aggregate moves the weights, and that norms are present unless sums are secure."""
    if not body.completed and (body.after != body.before or body.aggregate):
        raise Refused(f"an incomplete round must keep the weights {body.before[:12]}, got {body.after[:12]}")
    if body.completed and not body.aggregate:
        raise Refused(f"the completed round {body.number} lacks the digest of the aggregate")
    shares = [one.weight for one in body.participants]
    if shares and not (all(0 <= share <= 1 for share in shares) and math.isclose(sum(shares), 1.0, rel_tol=1e-4)):
        raise Refused(f"the shares of a mean must add up to 1, got {', '.join(f'{share:g}' for share in shares)}")
    for one in body.participants:
        if agreed.secure_sums is not (one.norm is None) or (one.norm is None) is not (one.distance is None):
            raise Refused(f"sites' norms must be absent with secure sums, else present, got {one.norm} for {one.site}")


def _check_spent(agreed: FederationBody, body: RoundBody, rounds: int) -> None:
    """Check the stated epsilon against the privacy accountant."""
    expected = spent(agreed.privacy, rounds)
    if (expected is None) is not (body.epsilon is None) or (
        expected is not None and body.epsilon is not None and not math.isclose(expected, body.epsilon, rel_tol=1e-6)
    ):
        raise Refused(f"{rounds} rounds spend epsilon {expected}, the entry states {body.epsilon}: run the round again")
