"""A plant's safety policy: what a champion must have shown, who approves it, and for how long that holds."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from configs.run import Confidence, Rare
from configs.strict import Count, Name, Strict

RULE = "rule: auto"
"""Who approves where no person is asked; nobody's name."""
Days = Annotated[int, Field(ge=1, le=3_660)]


class Approvers(Strict):
    """Who must approve a candidate before it is promoted."""

    count: Annotated[int, Field(ge=0, le=9)] = 1
    """Different persons; with none the rule decides."""
    roles: list[str] = Field(default_factory=list)
    """Roles that must be among theirs."""
    reviewers: Annotated[int, Field(ge=0, le=9)] = 0
    """Different persons who must have signed that they reviewed it, besides."""
    keys: bool = False
    """Whether each signs with a key of their own; a name alone does not count then, and neither does it for a change of
    the policy."""
    not_author: bool = False
    """Whether who ran the retraining may not be among them."""


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
