"""What is known of a fleet: how each site stands, what a retraining of it came to, and how the sites compare."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from tasks.references import ChampionInForce, Outcome, Reference, ShadowInForce, Verdict

State = Literal["decided", "refused", "crashed", "new"]
"""What a site's last retraining came to: a decision, a refusal before any, neither; or it had none yet."""


class SiteEnded(Reference):
    """What a site's retraining came to, in a run of the fleet."""

    site: str
    plant: str
    """The site's name as a plant."""
    outcome: Outcome | None = None
    refused: str = ""
    """Why there is no outcome: what the run was refused for."""
    crashed: str = ""
    """Why there is neither: what went wrong, which no rule foresees."""

    @property
    def found(self) -> str:
        if self.outcome is None:
            return f"{self.site}: {'refused' if self.refused else 'crashed'}: {self.refused or self.crashed}"
        before = f", decided before: {self.outcome.decided}" if self.outcome.decided else ""
        return f"{self.site}: {self.outcome.verdict}{before}. {self.outcome.headline}"


class Standing(Reference):
    """How a site stands, by the ledger."""

    site: str
    plant: str
    """The site's name as a plant: of its lineage, its registered model and its folders of the home."""
    kind: str
    """The plant that it is one of."""
    state: State
    since: str = ""
    """When the last retraining was decided on or refused."""
    verdict: Verdict | None = None
    headline: str = ""
    """What the last decision, or refusal, said."""
    failed: tuple[str, ...] = ()
    """Gates that the last candidate did not pass."""
    champion: ChampionInForce | None = None
    shadow: ShadowInForce | None = None
    own: bool = False
    """Whether the champion is the plant's own controller."""
    waiting: tuple[str, ...] = ()
    """Versions that wait for approval."""
    approvers: str = ""
    """Who decides there."""
    certificate: str = ""
    """What the champion's certificate claims."""
    report: Path | None = None
    links: dict[str, str] = Field(default_factory=dict)
    measures: dict[str, float] = Field(default_factory=dict)
    """What sites are compared by, as far as the last decision has it; see `compare.MEASURES`."""


class Compared(Reference):
    """A measure of one site beside those of the other sites of its plant."""

    value: float
    z: float | None
    """Robust z-value; None where too few sites have one."""
    outlier: bool


class Ranked(Reference):
    """A site with its rank and what stands out."""

    standing: Standing
    rank: int | None
    """Among the sites of its plant, 1 the best; None where nothing ranks it."""
    compared: dict[str, Compared]
    """By measure."""


class FleetOutcome(Reference):
    """What a retraining of a fleet came to."""

    fleet: str
    run: str
    """The flow run's id in Prefect."""
    headline: str
    sites: tuple[SiteEnded, ...]
    outliers: tuple[str, ...]
    """What stands out, a sentence each."""
    page: Path
    """The report that compares the sites."""
