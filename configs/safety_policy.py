"""A plant's safety policy: what a champion must have shown, who approves it, and for how long that holds."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from configs.run import Confidence, Rare
from configs.strict import Approvers, Count, Name, Strict

RULE = "rule: auto"
"""Who approves where no person is asked; nobody's name."""
Days = Annotated[int, Field(ge=1, le=3_660)]


class SafetyPolicy(Strict):
    """What holds for a plant, whatever a run's YAML says: that may be stricter, never laxer."""

    plant: Name
    limits: str
    """As claims write them."""
    horizon: Count
    """Steps of an episode."""
    family: str
    """Name of the family of operating domains."""
    domain: dict[Name, float]
    """What a claim must cover: the plant's own parameters of its operating domain."""
    identified: list[str] = Field(default_factory=list)
    """Constants that a claim may draw from a posterior instead."""
    p0: Rare
    """Greatest probability of violation that may be claimed."""
    confidence: Confidence
    """Least confidence."""
    gates: list[str]
    """Gates that a trained candidate must have passed, at least."""
    beat_plant: bool = True
    """Whether it must have been shown to be better than the plant's own controller."""
    approvers: Approvers = Approvers()
    approval_days: Days = 90
    """How long an approval may be used."""
    certificate_days: Days = 366
    """How long a certificate may be."""
