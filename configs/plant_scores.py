"""Scores of each plant's controllers, measured by `make plants`."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

PATH = Path(__file__).with_name("plant_scores.json")


class ControllerScore(BaseModel):
    """Result of one controller on a plant's simulator."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    mean_return: float = Field(alias="return")
    half_width: float
    """Half of the 95 % confidence interval of the mean return."""
    score: float
    """0 for a simple constant action, 100 for the best known controller."""
    violated: int
    """Number of episodes that violate a limit."""
    episodes: int


def plant_scores() -> dict[str, dict[str, ControllerScore]]:
    """Return scores by plant and controller: `idle`, `as_found`, `tuned` and possibly `best_known`."""
    if not PATH.exists():
        return {}
    return TypeAdapter(dict[str, dict[str, ControllerScore]]).validate_json(PATH.read_bytes())
