"""What a fleet's file may say: its sites, and what they have in common; each site is a run of its own."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from configs.code import CodeReference
from configs.fallback import Fallback, Shadow, Support
from configs.run import Certify, Data, Evaluate, Gates, Identify, Shared, Shield, Train
from configs.strict import Approvers, ConstantName, Count, Name, Strict
from neorl_core.plants import NAMES


class SiteRun(Strict):
    """What may be said of one site, or of all of them: the keys of a run, and what sites differ in."""

    logs: Annotated[list[str], Field(min_length=1)] | None = None
    """Files of logs, relative to the fleet's file, or digests of datasets; all that came to the watched folder when not
    given. `{site}` stands for the site's name."""
    constants: dict[ConstantName, float] = Field(default_factory=dict)
    """Nominal constants of the site's simulator, in the plant's units; the others are those of the plant's file."""
    limits: dict[str, Annotated[list[float | None], Field(min_length=2, max_length=2)]] = Field(default_factory=dict)
    """Low and high of the site's limits by name, inside the plant's own; null where that stands."""
    plant: CodeReference | None = None
    seed: Annotated[int, Field(ge=0, lt=2**32)] | None = None
    data: Data | None = None
    history: dict[str, Count] | None = None
    train: Train | None = None
    identify: Identify | None = None
    shield: Shield | None = None
    evaluate: Evaluate | None = None
    certify: Certify | None = None
    gates: Gates | None = None
    fallback: Fallback | None = None
    support: Support | None = None
    shadow: Shadow | None = None
    approval: Literal["auto", "required"] | None = None
    approvers: Approvers | None = None


class Fleet(SiteRun):
    """Sites, and what they have in common; what a site says for itself goes before that, key by key."""

    fleet: Name
    """The fleet's name: its sites are plants by the name `FLEET_SITE`."""
    at_once: Count | None = None
    """Sites that are retrained at the same time, where no Dask cluster shares them; one for each core by default."""
    shared: Shared | None = None
    """A policy that is trained on the logs of all sites, and from which each site's further learner goes on."""
    sites: Annotated[dict[Name, SiteRun | None], Field(min_length=1)]

    @model_validator(mode="after")
    def _every_site_has_a_plant_and_a_name(self) -> Fleet:
        for name, site in self.sites.items():
            if self.plant is None and (site is None or site.plant is None):
                raise ValueError(f"expected a plant for every site, got none for '{name}': name one as 'plant' for all")
            if self.plant_name(name) in NAMES:
                raise ValueError(
                    f"expected names of sites that no plant of NeoRL has, got '{self.plant_name(name)}': rename the "
                    "fleet"
                )
        return self

    def plant_name(self, site: str) -> str:
        """A site's name as a plant: in lineages, registered models and folders of the home."""
        return f"{self.fleet}_{site}"
