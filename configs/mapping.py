"""The mapping file: how a plant's historian names, measures and archives what the plant's model calls otherwise."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field, model_validator

from configs.run import Strict
from configs.units import conversion
from neorl_core.types import PlantSpec, Space


class Columns(Strict):
    """The names of the long table's columns."""

    tag: str = "tag"
    timestamp: str = "timestamp"
    value: str = "value"
    status: str = "status"


class Tag(Strict):
    """One tag of the historian."""

    role: Literal["observation", "set_point", "action", "mode"]
    signal: str | None = None
    """The component of the plant's observation (set points are among them) or action; a mode has none."""
    unit: str | None = None
    """The unit in which the historian archives the tag."""
    interpolation: Literal["sloped", "stepped"]
    running: tuple[float, ...] = Field(default=(), strict=False)
    """Of a mode: its values while the plant runs as it should."""

    @model_validator(mode="after")
    def _complete(self) -> Tag:
        if self.role == "mode":
            if not self.running or self.signal is not None:
                raise ValueError("expected a mode to have 'running', its values while the plant runs, and no 'signal'")
            if self.interpolation != "stepped":
                raise ValueError("expected a mode to be stepped, got sloped: there is nothing between two modes")
        else:
            if self.signal is None:
                raise ValueError(f"expected 'signal', the plant's name for this {self.role}, got none: add it")
            if self.unit is None:
                raise ValueError("expected a unit, got none: add 'unit', as the historian archives it")
            if self.running:
                raise ValueError(f"expected 'running' only where the role is mode, got it on a {self.role}")
        return self


class Episodes(Strict):
    """How a continuous record is cut into episodes; each cut is a timeout, and only a trip is a termination."""

    max_gap_seconds: float = Field(gt=0)
    """A signal that was not seen for longer is unknown, and the episode ends before."""
    max_steps: int | None = Field(default=None, gt=0)
    """Longest episode; the plant's horizon when not given."""


class HistorianMapping(Strict):
    """A historian export's meaning."""

    plant: str
    period_seconds: float = Field(gt=0)
    """The period to which all tags are resampled: the plant's control period."""
    origin: datetime | None = Field(default=None, strict=False)
    """A moment at which a control step began; when not given, the first sample of the first action's tag."""
    columns: Columns = Columns()
    tags: dict[str, Tag] = Field(min_length=1)
    ignore: tuple[str, ...] = Field(default=(), strict=False)
    """Tags of the export that are left out on purpose."""
    treat_uncertain_as_bad: bool = False
    episodes: Episodes

    def conversions(self, spec: PlantSpec) -> dict[str, tuple[float, float]]:
        """How each tag's values become the plant's units.

        Args:
            spec: the plant; each of its signals must come from exactly one tag.

        Returns:
            tag -> (a, b) of plant value = a archived value + b; a mode is left as it is.

        Raises:
            ValueError: when a signal is unknown, missing or given twice, or a unit does not fit.
        """
        found: dict[str, tuple[float, float]] = {}
        for space, roles in ((spec.observation, ("observation", "set_point")), (spec.action, ("action",))):
            tags = self.by_signal(space, roles)
            for signal, unit in zip(space.names, space.units, strict=True):
                tag = tags[signal]
                try:
                    found[tag] = conversion(str(self.tags[tag].unit), unit)
                except ValueError as error:
                    raise ValueError(f"tag {tag}: {error}") from error
        return found | dict.fromkeys(self.modes, (1.0, 0.0))

    def by_signal(self, space: Space, roles: tuple[str, ...]) -> dict[str, str]:
        """signal -> tag, in the order of the plant's signals."""
        given = [(tag.signal, name) for name, tag in self.tags.items() if tag.role in roles]
        for signal, name in given:
            if signal not in space.names:
                raise ValueError(f"tag {name}: expected a signal among {', '.join(space.names)}, got '{signal}'")
        for signal in space.names:
            names = [name for other, name in given if other == signal]
            if len(names) != 1:
                got = ", ".join(names) or "none"
                raise ValueError(f"expected one tag of role {' or '.join(roles)} for signal '{signal}', got {got}")
        return {signal: next(name for other, name in given if other == signal) for signal in space.names}

    @property
    def modes(self) -> tuple[str, ...]:
        """The tags that tell the plant's mode."""
        return tuple(name for name, tag in self.tags.items() if tag.role == "mode")
