"""Types that the models of all YAML files share.

They are in a separate module, so that a new key in one model does not change the source digest of other models.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

NAME = r"[a-z][a-z0-9_]*"
Name = Annotated[str, Field(pattern=rf"^{NAME}$")]
ConstantName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\[[0-9]{1,4}\])?$")]
"""Field of the plant's `Params`; `pump[1]` is the second entry of a field with several entries."""
MARK = "#"
"""Separates a fleet's file and a site in the name of a run: `fleet.yaml#east`."""
Count = Annotated[int, Field(ge=1)]
# Strict mode would reject a path, which YAML writes as a string.
FilePath = Annotated[Path, Field(strict=False)]


class Strict(BaseModel):
    """A frozen model that rejects unknown keys, wrong types, NaN and infinity."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)


class Approvers(Strict):
    """Persons who must approve a candidate, in a run's file and in a safety policy."""

    count: Annotated[int, Field(ge=0, le=9)] = 1
    """Number of different persons. With 0, a candidate that passes all gates needs no approval."""
    roles: list[str] = Field(default_factory=list)
    """Roles that the approvers must cover."""
    reviewers: Annotated[int, Field(ge=0, le=9)] = 0
    """Number of further persons who must have signed a review."""
    keys: bool = False
    """Whether each approver must sign with a personal key. The rule also applies to changes of the safety policy."""
    not_author: bool = False
    """Whether the person who ran the retraining may not be an approver."""
