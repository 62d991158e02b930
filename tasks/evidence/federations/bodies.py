"""Federations as the ledger has them: what was agreed, and of each round who took part, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from tasks.evidence.ledger.ledger import Body, Entry

WEIGHTS = "weights"
"""Name of the file with the weights that a federation ended with, in the entry of its last round."""


class MemberBody(Body):
    """A site that may take part."""

    site: str
    key: str
    """SHA-256 of its public key; nothing where nobody is authenticated."""
    rows: int
    """As the site says."""


class PrivacyBody(Body):
    """Differential privacy of whole sites."""

    clip: float
    noise: float
    delta: float


class FederationBody(Body):
    """A federation begins: its terms, its sites, and the weights that it begins with."""

    terms: str
    """SHA-256 of the coordinator's file without its network."""
    algorithm: str
    method: str
    aggregate: str
    rounds: int
    minimum_sites: int
    secure_sums: bool
    privacy: PrivacyBody | None
    sites: tuple[MemberBody, ...]
    moments: str
    """SHA-256 of the moments of all sites' rows, by which they are scaled."""
    weights: str
    """SHA-256 of what the coordinator begins with."""


class ParticipantBody(Body):
    """A site whose change is in a round's aggregate, or was before it was aggregated robustly."""

    site: str
    update: str
    """SHA-256 of the change that arrived; where sums are secure, of the masked one."""
    weight: float
    """Its share in a mean."""
    norm: float | None
    """Of its change; None where the coordinator sees sums alone."""
    distance: float | None
    """Norm of its change less the aggregate: one that lies stands apart."""


class LeftOutBody(Body):
    """A site whose change is not in a round."""

    site: str
    why: Literal["absent", "late", "failed", "refused"]
    """Not connected; no answer in time; it could or would not; what it sent was not taken."""
    detail: str


class RoundBody(Body):
    """A round of a federation."""

    federation: str
    """Digest of the entry with which it began."""
    number: int
    completed: bool
    """Whether enough sites answered; the weights are those of before where not."""
    before: str
    """SHA-256 of what the coordinator had."""
    after: str
    participants: tuple[ParticipantBody, ...]
    left_out: tuple[LeftOutBody, ...]
    aggregate: str
    """SHA-256 of the aggregate of the changes, before noise; nothing where the round has none."""
    epsilon: float | None
    """Spent by all rounds so far at the federation's delta; None where sites are not private, or without noise."""


def rounds_of(history: Sequence[Entry], federation: str) -> list[RoundBody]:
    """The rounds of a federation so far."""
    return [e.read(RoundBody) for e in history if e.kind == "round" and e.body["federation"] == federation]


def spent(privacy: PrivacyBody | None, rounds: int) -> float | None:
    """Epsilon that rounds of a federation spend, in each of which every site may take part.

    Args:
        privacy: noise and delta.
        rounds: that were completed.

    Returns:
        Epsilon; None where sites are not private, or nothing bounds it, for there is no noise.
    """
    if privacy is None or privacy.noise == 0:
        return None
    if not rounds:
        return 0.0
    # It brings NumPy, which the signer of a home without federations needs not wait for.
    from neorl_core.federated.accountant import Mechanism, renyi_epsilon

    return renyi_epsilon(Mechanism(privacy.noise, 1.0, rounds), privacy.delta)
