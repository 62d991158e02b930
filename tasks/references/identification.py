"""What is handed on about a plant's constants that were estimated from its logs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tasks.references.base import Reference


class IdentifiedConstant(Reference):
    """One constant, in its own unit."""

    name: str
    entry: int | None = None
    """Which entry, where the field is a vector."""
    law: Literal["log-normal", "normal"]
    estimate: float
    lower: float
    upper: float
    """95 % interval of the constant by itself."""
    prior: float
    """Its value in the plant's file."""
    deviation: float
    """Prior standard deviation, as a share of that value."""
    share: float
    """Posterior deviation as a share of the prior's."""
    identified: bool
    test: str = ""
    """Of one that is not identified, the step test that would tell it."""

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
    """The posterior of a plant's unknown constants; empty where those in the plant's file are taken as known."""

    dataset: str = ""
    """Digest of the logs."""
    episodes: int = 0
    """How many of their training episodes were estimated on."""
    constants: tuple[IdentifiedConstant, ...] = ()
    domain: dict[str, float] = Field(default_factory=dict)
    """What the operating domain has beyond the plant's own: `neorl_core.identify.posterior_fields`."""

    @property
    def found(self) -> str:
        if not self.constants:
            return "no constants to identify: those in the plant's file are taken as known"
        lines = (f"identified from {self.episodes} episodes: {constant}" for constant in self.constants)
        return "\n".join(lines)


KNOWN = Identification()
"""Nothing was estimated."""
