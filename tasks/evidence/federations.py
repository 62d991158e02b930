"""Federations in the ledger: the bodies of their entries, and the rules that check these entries."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from configs.errors import Refused
from tasks.evidence.ledger.entry import Body, Entry

WEIGHTS = "weights"
"""Name of the file with the final weights, in the entry of the last round."""


class MemberBody(Body):
    site: str
    key: str
    """SHA-256 of the site's public key; empty without authentication."""
    rows: int
    """Number of rows in the site's logs, as the site states it."""


class PrivacyBody(Body):
    """Settings of differential privacy, which protects each site as a whole."""

    clip: float
    noise: float
    delta: float


class FederationBody(Body):
    """Body of a `federation` entry: a federation starts with these terms, sites and initial weights."""

    terms: str
    """SHA-256 of the coordinator's configuration file without the network settings."""
    algorithm: str
    method: str
    aggregate: str
    rounds: int
    minimum_sites: int
    secure_sums: bool
    privacy: PrivacyBody | None
    sites: tuple[MemberBody, ...]
    moments: str
    """SHA-256 of the statistical moments over all sites' rows, which scale the data."""
    weights: str
    """SHA-256 of the initial weights."""


class ParticipantBody(Body):
    """A site that took part in a round, and the change of the weights that the site sent."""

    site: str
    update: str
    """SHA-256 of the received change. The change is masked if sums are secure."""
    weight: float
    """Share of this site in the mean."""
    norm: float | None
    """Norm of the site's change; None if the coordinator sees only sums."""
    distance: float | None
    """Norm of the site's change minus the aggregate; large for an outlier. None if the coordinator sees only sums."""


class LeftOutBody(Body):
    site: str
    why: Literal["absent", "late", "failed", "refused"]
    """Reason: site not connected, answer too late, error at the site, or change rejected by the coordinator."""
    detail: str


class RoundBody(Body):
    """Body of a `round` entry: one round of a federation."""

    federation: str
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
    """Privacy loss (epsilon) of all rounds so far at the federation's delta; None without privacy or noise."""


def rounds_of(history: Sequence[Entry], federation: str) -> list[RoundBody]:
    return [e.read(RoundBody) for e in history if e.kind == "round" and e.body["federation"] == federation]


def spent(privacy: PrivacyBody | None, rounds: int) -> float | None:
    """Return the privacy loss (epsilon) after a number of completed rounds; None without privacy or noise."""
    if privacy is None or privacy.noise == 0:
        return None
    if not rounds:
        return 0.0
    # Imported late: most signers do not need NumPy.
    from neorl_core.federated.accountant import Mechanism, renyi_epsilon

    return renyi_epsilon(Mechanism(privacy.noise, 1.0, rounds), privacy.delta)


def check_federation(history: Sequence[Entry], entry: Entry) -> None:
    """Check a new federation: enough sites, compatible options, and terms that no other federation has."""
    body = entry.read(FederationBody)
    names = [site.site for site in body.sites]
    if len(set(names)) < len(names) or not 2 <= body.minimum_sites <= len(names):
        raise Refused(
            f"a federation needs {max(body.minimum_sites, 2)} or more sites of different names, got {', '.join(names)}"
        )
    if (body.secure_sums or body.privacy) and body.aggregate != "mean":
        raise Refused(f"secure sums and privacy need the aggregate 'mean', got '{body.aggregate}': set it to 'mean'")
    if body.rounds < 1 or any(site.rows < 1 for site in body.sites):
        rows = min((site.rows for site in body.sites), default=0)
        raise Refused(f"a federation needs at least 1 round and 1 row per site, got {body.rounds} and {rows}")
    if any(e.kind == "federation" and (e.plant, e.body["terms"]) == (entry.plant, body.terms) for e in history):
        raise Refused(
            f"a federation with the terms {body.terms[:12]} is already logged: continue it, or change the seed"
        )


def check_round(history: Sequence[Entry], entry: Entry) -> None:
    """Check a round: it follows the previous round, and its sites, weights and privacy loss are consistent."""
    body = entry.read(RoundBody)
    opened = next(
        (e for e in history if (e.kind, e.digest, e.plant) == ("federation", body.federation, entry.plant)), None
    )
    if opened is None:
        raise Refused(f"the ledger has no federation {body.federation[:12]} of {entry.plant}: start it first")
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
            f"the last round, and no other round, must name a file with the weights {body.after[:12]}; got {len(held)} "
            f"files in round {body.number}"
        )


def _check_sites(agreed: FederationBody, body: RoundBody) -> None:
    sites = sorted([one.site for one in body.participants] + [one.site for one in body.left_out])
    if sites != sorted(site.site for site in agreed.sites):
        raise Refused(f"a round must mention every site of the federation once, got {', '.join(sites) or 'none'}")
    if body.completed is not (len(body.participants) >= agreed.minimum_sites):
        raise Refused(
            f"a round is complete if and only if {agreed.minimum_sites} or more sites took part, got "
            f"{len(body.participants)} with completed={body.completed}"
        )


def _check_outcome(agreed: FederationBody, body: RoundBody) -> None:
    if not body.completed and (body.after != body.before or body.aggregate):
        raise Refused(f"an incomplete round must keep the weights {body.before[:12]}, got {body.after[:12]}")
    if body.completed and not body.aggregate:
        raise Refused(f"the completed round {body.number} lacks the digest of the aggregate")
    shares = [one.weight for one in body.participants]
    if shares and not (all(0 <= share <= 1 for share in shares) and math.isclose(sum(shares), 1.0, rel_tol=1e-4)):
        raise Refused(f"the shares of a mean must add up to 1, got {', '.join(f'{share:g}' for share in shares)}")
    for one in body.participants:
        if agreed.secure_sums is not (one.norm is None) or (one.norm is None) is not (one.distance is None):
            raise Refused(f"secure sums must hide the norms of changes, other sums not; got {one.norm} for {one.site}")


def _check_spent(agreed: FederationBody, body: RoundBody, rounds: int) -> None:
    expected = spent(agreed.privacy, rounds)
    if (expected is None) is not (body.epsilon is None) or (
        expected is not None and body.epsilon is not None and not math.isclose(expected, body.epsilon, rel_tol=1e-6)
    ):
        raise Refused(f"epsilon must be {expected} after {rounds} rounds, got {body.epsilon}: run the round again")
