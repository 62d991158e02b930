"""What each plant's controllers come to, as `make plants` measured it."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

PATH = Path(__file__).with_name("plant_scores.json")


class ControllerScore(BaseModel):
    """What one controller comes to on a plant's simulator."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    mean_return: float = Field(alias="return")
    half_width: float
    """Half of the 95 % confidence interval of the mean return."""
    score: float
    """0 for a sensible idle, 100 for the best that is known."""
    violated: int
    """Episodes beyond a limit."""
    episodes: int


def plant_scores() -> dict[str, dict[str, ControllerScore]]:
    """By plant, then by controller: `idle`, `as_found`, `tuned` and, where there is one, `best_known`."""
    if not PATH.exists():
        return {}
    return TypeAdapter(dict[str, dict[str, ControllerScore]]).validate_json(PATH.read_bytes())
