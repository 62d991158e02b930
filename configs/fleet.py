"""Model of a fleet's file: the sites, and the keys that all sites share. Each site is a separate run."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from configs.code import CodeReference
from configs.fallback import Fallback, Shadow, Support
from configs.run import Certify, Data, Evaluate, Gates, Identify, SharedFile, Shield, TrainFile
from configs.strict import Approvers, ConstantName, Count, Name, Strict
from neorl_core.plants import NAMES


class SiteRun(Strict):
    """Keys of one site or of all sites: the keys of a run, and the logs, constants and limits of a site."""

    logs: Annotated[list[str], Field(min_length=1)] | None = None
    """Log files relative to the fleet's file, or digests of datasets. Default: all files of the watched folder.
    `{site}` is replaced by the site's name."""
    constants: dict[ConstantName, float] = Field(default_factory=dict)
    """Nominal constants of the site's simulator, in the plant's units. Others have the value of the plant's file."""
    limits: dict[str, Annotated[list[float | None], Field(min_length=2, max_length=2)]] = Field(default_factory=dict)
    """[low, high] of the site's limits, by name, inside the plant's limits; null keeps the plant's value."""
    plant: CodeReference | None = None
    seed: Annotated[int, Field(ge=0, lt=2**32)] | None = None
    data: Data | None = None
    history: dict[str, Count] | None = None
    train: TrainFile | None = None
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
    """A fleet's sites, and the keys that all sites share. A site's own key overrides the shared key."""

    fleet: Name
    """The fleet's name: each site is a plant named `FLEET_SITE`."""
    at_once: Count | None = None
    """Number of sites that are retrained at the same time without a Dask cluster. Default: one per core."""
    shared: SharedFile | None = None
    """A policy that is trained on the logs of all sites. An additional learner of each site fine-tunes the policy."""
    sites: Annotated[dict[Name, SiteRun | None], Field(min_length=1)]

    @model_validator(mode="after")
    def _sites_are_valid(self) -> Fleet:
        for name, site in self.sites.items():
            if self.plant is None and (site is None or site.plant is None):
                raise ValueError(f"site '{name}' has no plant: add 'plant' to the site or for all sites")
            if self.plant_name(name) in NAMES:
                raise ValueError(f"'{self.plant_name(name)}' is the name of a built-in plant: rename the fleet")
        return self

    def plant_name(self, site: str) -> str:
        """Return a site's name as a plant: in lineages, registered models and folders of the home."""
        return f"{self.fleet}_{site}"
