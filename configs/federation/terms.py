"""What a federation trains and how: what its sites are asked to take part in."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from configs.federation.network import Positive
from configs.run import Setting
from configs.strict import Count, Name, Strict


class Aggregation(Strict):
    """How one change is made of those of the sites."""

    kind: Literal["mean", "median", "trimmed_mean", "krum"] = "mean"
    trimmed: Annotated[float, Field(ge=0.0, lt=0.5)] = 0.2
    """Of a trimmed mean: share of sites that is left out at each end of every coordinate."""
    hostile: Annotated[int, Field(ge=0)] = 1
    """Of Krum: how many sites may lie."""
    largest: Positive | None = None
    """Times the median of a round's norms beyond which a site's change is left out; without it none is for its size."""


class PrivateSites(Strict):
    """Differential privacy of whole sites: what anybody who sees the weights can tell of whether a site took part."""

    clip: Positive
    """Largest norm of a site's change; a larger one is shortened, at the site."""
    noise: Annotated[float, Field(ge=0.0)]
    """Deviation of the noise on the sum of changes, in clip norms."""
    delta: Annotated[float, Field(gt=0.0, lt=1.0)] = 1e-5
    insist: bool = False
    """Go on where the noise is larger than every signal."""


class Terms(Strict):
    """What a site is asked to take part in, and may refuse."""

    plant: Name
    """What the sites call their plant: the same names, units and bounds at all of them."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    algorithm: Name = "td3_bc"
    hyperparameters: dict[Name, Setting] = Field(default_factory=dict)
    method: Literal["fedavg", "fedprox", "scaffold", "fedora"] = "fedavg"
    pull: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.01
    """Of FedProx and FEDORA: share of the way back to the weights that were sent, at each step."""
    rounds: Count = 100
    updates: Count = 200
    """Gradient steps of a site in a round."""
    batch_size: Count = 256
    secure_sums: bool = False
    """Whether the coordinator learns the sum of the sites' changes and none of them."""
    secure_bound: Positive = 1.0
    """Where sums are secure: a number of a change that is larger in size is cut off there."""
    privacy: PrivateSites | None = None
