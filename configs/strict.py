"""What the models of all YAML files share; apart from them, so that a new key of one changes no digest of another."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

NAME = r"[a-z][a-z0-9_]*"
Name = Annotated[str, Field(pattern=rf"^{NAME}$")]
ConstantName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\[[0-9]{1,4}\])?$")]
"""A field of the plant's `Params`; of a field with several entries, which one, counted from 0: `pump[1]`."""
MARK = "#"
"""Between a fleet's file and one of its sites, where a run is named: `fleet.yaml#east`."""
Count = Annotated[int, Field(ge=1)]
# Strict mode would refuse a path that YAML can only write as a string.
FilePath = Annotated[Path, Field(strict=False)]


class Strict(BaseModel):
    """A frozen model that refuses unknown keys, ill-typed values, NaN and infinity."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)


class Approvers(Strict):
    """Who must approve a candidate before it is promoted: what a run asks for, and a plant's safety policy."""

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
