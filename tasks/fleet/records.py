"""Typed records of a fleet: state, retraining result and comparison of sites."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from tasks.references import ChampionInForce, Outcome, Reference, ShadowInForce, Verdict

State = Literal["decided", "refused", "crashed", "new"]
"""Result of a site's last retraining; `new` if it has never been retrained."""


class SiteResult(Reference):
    """Result of one site's retraining in a fleet run: an outcome, a refusal or a crash."""

    site: str
    plant: str
    """Name of the site in ledger and registry."""
    outcome: Outcome | None = None
    refused: str = ""
    """Reason for a refusal; empty otherwise."""
    crashed: str = ""
    """Unexpected error; empty otherwise."""

    @property
    def found(self) -> str:
        if self.outcome is None:
            return f"{self.site}: {'refused' if self.refused else 'crashed'}: {self.refused or self.crashed}"
        before = f", decided before: {self.outcome.decided}" if self.outcome.decided else ""
        return f"{self.site}: {self.outcome.verdict}{before}. {self.outcome.headline}"


class Standing(Reference):
    """State of a site according to the ledger."""

    site: str
    plant: str
    """Name of the site in ledger, registry and home."""
    kind: str
    """Plant that the site is an instance of."""
    state: State
    since: str = ""
    """Time of the last decision or refusal."""
    verdict: Verdict | None = None
    headline: str = ""
    """Headline of the last decision or refusal."""
    failed: tuple[str, ...] = ()
    """Gates that the last candidate failed."""
    champion: ChampionInForce | None = None
    shadow: ShadowInForce | None = None
    own: bool = False
    """Whether the champion is the tuned controller."""
    waiting: tuple[str, ...] = ()
    """Versions that await approval."""
    approvers: str = ""
    """Approvers that the safety policy requires."""
    certificate: str = ""
    """Claim of the champion's certificate."""
    report: Path | None = None
    links: dict[str, str] = Field(default_factory=dict)
    measures: dict[str, float] = Field(default_factory=dict)
    """Values of `compare.MEASURES` from the last decision."""


class Compared(Reference):
    """Value of one measure at a site, and its comparison with the other sites of the same plant."""

    value: float
    z: float | None
    """Robust z-score; None if too few sites have a value."""
    outlier: bool


class Ranked(Reference):
    """A site with rank and compared measures."""

    standing: Standing
    rank: int | None
    """Rank among the sites of the plant, 1 is best; None if the gain is unknown."""
    compared: dict[str, Compared]
    """Key: name of the measure."""


class FleetOutcome(Reference):
    """Result of a fleet retraining."""

    fleet: str
    run: str
    """Id of the Prefect flow run."""
    headline: str
    sites: tuple[SiteResult, ...]
    outliers: tuple[str, ...]
    """One line for each outlier."""
    page: Path
    """Fleet report."""
