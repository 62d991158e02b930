"""Model of a plant's safety policy: evidence that a champion needs, approvers, and periods of validity."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from configs.run import Confidence, Rare
from configs.strict import Approvers, Count, Name, Strict

RULE = "rule: auto"
"""Name of the approver in ledger entries that no person approved."""
LATER = ("simulator", "earlier_simulators", "own_lineage", "most_unlike")
"""Fields of later versions. Signed statements leave them out if they have their defaults."""
Days = Annotated[int, Field(ge=1, le=3_660)]


class SafetyPolicy(Strict):
    """Requirements of a plant. A run's file may be stricter, never weaker."""

    plant: Name
    limits: str
    """The plant's limits, written as in a certificate's claim."""
    horizon: Count
    """Steps per episode."""
    family: str
    """Name of the family of operating domains."""
    domain: dict[Name, float]
    """Parameters of the operating domain that a claim must cover."""
    simulator: str = ""
    """Digest of the lowered program of the simulator's step, `materials.step` of a certificate; empty for any."""
    earlier_simulators: list[str] = Field(default_factory=list)
    """Digests of the same step under earlier versions of jax, which `neorl policy renew` adds."""
    own_lineage: bool = False
    """Whether the plant differs from other plants with equal limits, and has an error budget of its own."""
    identified: list[str] = Field(default_factory=list)
    """Constants that a claim may draw from the posterior of an identification instead of the operating domain."""
    p0: Rare
    """Largest probability of violation that a claim may state."""
    confidence: Confidence
    """Smallest confidence that a claim may state."""
    gates: list[str]
    """Gates that a trained candidate must have passed."""
    beat_plant: bool = True
    """Whether a candidate must have beaten the tuned controller."""
    most_unlike: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """Largest share of rollout steps unlike the logs that a trained candidate may have; null for any."""
    approvers: Approvers = Approvers()
    approval_days: Days = 90
    """Days for which an approval is valid."""
    certificate_days: Days = 366
    """Days for which a certificate is valid."""
