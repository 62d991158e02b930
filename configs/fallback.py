"""Settings of a log-only plant: fallback, support of the shield, and shadow."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from configs.strict import Count, Strict

Positive = Annotated[float, Field(gt=0.0)]


class Loop(Strict):
    """A PID loop of the plant's controller."""

    action: str
    """The manipulated action."""
    measured: str
    set_point: str | float
    """A signal, or a constant in the measured signal's unit."""
    kp: float
    """Action units per unit of error (set point - measurement); negative if more action lowers the signal."""
    ki: float = 0.0
    """Action units per unit of error and second. The loop uses the velocity form, which avoids wind-up and bumps."""
    kd: float = 0.0
    """Action units per (unit of the measurement per second)."""
    bias: float | None = None
    """Action at zero error, for a loop without `ki`. The action moves there no faster than the rate limit."""

    @model_validator(mode="after")
    def _one_form(self) -> Loop:
        if self.ki and self.bias is not None:
            raise ValueError(f"bias {self.bias:g} and ki {self.ki:g} exclude each other: delete the bias")
        return self


class Fallback(Strict):
    """The controller that the shield hands over to."""

    kind: Literal["pid", "cloned", "hold"]
    """pid: PID loops. cloned: a control law fitted to the logged actions. hold: constant actions."""
    loops: tuple[Loop, ...] = Field(default=(), strict=False)
    """For pid: one loop for each controlled action; other actions are held."""
    law: Literal["linear", "network"] = "linear"
    """For cloned: form of the control law."""
    least_explained: Annotated[float, Field(gt=0.0, le=1.0)] = 0.5
    """For cloned: minimum R² of each action on held-out episodes."""
    toward: dict[str, float] = Field(default_factory=dict)
    """For hold: safe values, by action. These actions move to their safe values; other actions are held."""
    rate: dict[str, Positive] = Field(default_factory=dict)
    """For hold: largest change of an action in one step. Default: the shield's rate limit."""

    @model_validator(mode="after")
    def _of_one_kind(self) -> Fallback:
        if (self.kind == "pid") is not bool(self.loops):
            raise ValueError(
                f"only a fallback of kind pid needs 'loops', got {self.kind} with {len(self.loops)} loops: correct it"
            )
        if self.kind != "hold" and (self.toward or self.rate):
            raise ValueError(f"'toward' and 'rate' are for a fallback of kind hold, got kind {self.kind}: delete them")
        moved = [loop.action for loop in self.loops]
        if len(set(moved)) < len(moved):
            raise ValueError(f"an action may have one loop, got {', '.join(moved)}: write a cascade as an outer loop")
        return self


class Support(Strict):
    """Region near the logged data in which a log-only plant's policy may act."""

    quantile: Annotated[float, Field(gt=0.5, lt=1.0)] = 0.99
    """Share of the held-out rows that lie inside the support."""
    most_handed_over: Annotated[float, Field(gt=0.0, le=1.0)] = 0.5
    """Largest share of held-out rows at which the shield may hand over; above this share the candidate fails."""


class Shadow(Strict):
    """Duration of a shadow, and the sensitivity of drift detection."""

    days: Count = 30
    alarms_per_year: Positive = 0.1
    """Accepted number of false drift alarms per year."""
    worse_by: Annotated[float, Field(gt=0.0, le=1.0)] = 0.02
    """Accepted increase of the share of rows that are lost, of bad quality or beyond limits. The comparison is with the
    champion's training data, and 0.02 means two percentage points."""
