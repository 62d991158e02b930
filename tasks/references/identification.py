"""References about plant constants estimated from logs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tasks.references.base import Reference


class IdentifiedConstant(Reference):
    """One constant, in its own unit."""

    name: str
    entry: int | None = None
    """Index if the field is a vector."""
    law: Literal["log-normal", "normal"]
    estimate: float
    lower: float
    upper: float
    """Marginal 95 % interval."""
    prior: float
    """Value in the plant's file."""
    deviation: float
    """Prior standard deviation, as a share of the value."""
    share: float
    """Posterior standard deviation as a share of the prior's."""
    identified: bool
    test: str = ""
    """Step test that would identify the constant, if it is not identified."""

    @property
    def label(self) -> str:
        return self.name if self.entry is None else f"{self.name}[{self.entry}]"

    def __str__(self) -> str:
        word = f"posterior {self.share:.2f} of the prior" if self.identified else f"not identified: {self.test}"
        return (
            f"{self.label} {self.estimate:.5g} [{self.lower:.5g}, {self.upper:.5g}], prior {self.prior:.5g} "
            f"± {100 * self.deviation:.2g} %; {word}"
        )


class Identification(Reference):
    """Posterior of a plant's unknown constants; empty if all constants are taken as known."""

    dataset: str = ""
    episodes: int = 0
    constants: tuple[IdentifiedConstant, ...] = ()
    domain: dict[str, float] = Field(default_factory=dict)
    """Additional fields of the operating domain: `neorl_core.identify.posterior_fields`."""

    @property
    def found(self) -> str:
        if not self.constants:
            return "no constants to identify: those in the plant's file are taken as known"
        lines = (f"identified from {self.episodes} episodes: {constant}" for constant in self.constants)
        return "\n".join(lines)


KNOWN = Identification()
"""All constants are taken as known."""
