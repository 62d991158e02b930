"""What takes over in a process without a simulator, as a run's YAML says it, and how its shield and shadow are set."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from configs.strict import Count, Strict

Positive = Annotated[float, Field(gt=0.0)]


class Loop(Strict):
    """A PID loop of the plant's running controller."""

    action: str
    """What it moves."""
    measured: str
    set_point: str | float
    """A signal, or a constant in the measured signal's unit."""
    kp: float
    """Action units per unit of the error, set point less measurement: negative where more action lowers the signal."""
    ki: float = 0.0
    """Action units per unit of the error and second; anti-windup and bumpless by computing moves."""
    kd: float = 0.0
    """Action units per unit of the measurement per second."""
    bias: float | None = None
    """Output without error of a loop that has no integral action; it moves there no faster than the rate limit."""

    @model_validator(mode="after")
    def _one_form(self) -> Loop:
        if self.ki and self.bias is not None:
            raise ValueError("expected 'bias' only without 'ki', got both: the integral finds the output by itself")
        return self


class Fallback(Strict):
    """The controller that the shield hands over to."""

    kind: Literal["pid", "cloned", "hold"]
    """Loops as they run, a law fitted to the logged actions, or standing still."""
    loops: tuple[Loop, ...] = Field(default=(), strict=False)
    """Of a 'pid': one for each action that is controlled; an action without one is held."""
    law: Literal["linear", "network"] = "linear"
    """Of what is 'cloned'."""
    least_explained: Annotated[float, Field(gt=0.0, le=1.0)] = 0.5
    """Least share of each action's variance on held-out episodes that a cloned law must explain (R²)."""
    toward: dict[str, float] = Field(default_factory=dict)
    """Of a 'hold': the safe value of each action that has one; the others are held."""
    rate: dict[str, Positive] = Field(default_factory=dict)
    """Of a 'hold': largest change of an action in a step; that of the shield when not given."""

    @model_validator(mode="after")
    def _of_one_kind(self) -> Fallback:
        if (self.kind == "pid") is not bool(self.loops):
            raise ValueError(f"expected 'loops' of a fallback of kind pid and of no other, got kind {self.kind}")
        if self.kind != "hold" and (self.toward or self.rate):
            raise ValueError(f"expected 'toward' and 'rate' only of a fallback of kind hold, got kind {self.kind}")
        moved = [loop.action for loop in self.loops]
        if len(set(moved)) < len(moved):
            raise ValueError("expected one loop for an action, got two: cascades are one loop on the outer set point")
        return self


class Support(Strict):
    """Where a process's policy is trusted: near what was logged. Its rate limits and hold are the shield's."""

    quantile: Annotated[float, Field(gt=0.5, lt=1.0)] = 0.99
    """Share of held-out rows that shall lie inside the support."""
    most_handed_over: Annotated[float, Field(gt=0.0, le=1.0)] = 0.5
    """Share of held-out rows at most at which the policy is handed over: beyond it is a fallback with extras."""


class Shadow(Strict):
    """How long a policy without a certificate is watched, and by what it is noticed that plant or data are others."""

    days: Count = 30
    alarms_per_year: Positive = 0.1
    """False drift alarms in a year of watching that are put up with."""
    worse_by: Annotated[float, Field(gt=0.0, le=1.0)] = 0.02
    """How much larger a share of newer logs that is lost, of bad quality or beyond limits may be than that of the data
    that the champion learned from: 0.02 are two points in a hundred."""
