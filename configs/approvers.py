"""Who must approve a candidate: part of a plant's safety policy, and of a run that the policy is drafted from."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from configs.strict import Strict


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
