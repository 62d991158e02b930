"""Models of a federation's files: the coordinator's file, and each site's file, which stays at the site."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Annotated, Literal

from pydantic import Field, model_validator

from configs.run import Fraction, Setting
from configs.strict import Count, FilePath, Name, Strict

Positive = Annotated[float, Field(gt=0.0)]
Address = Annotated[str, Field(pattern=r"^([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}$")]
"""Host and port, such as `coordinator.example:9092`."""


def is_loopback(address: str) -> bool:
    """Whether an address is on this machine."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Network(Strict):
    """Address and identity of the coordinator."""

    address: Address = "127.0.0.1:9092"
    tls: FilePath | None = None
    """Folder with `superlink.pem`, `superlink-key.pem` and `authority.pem` from `neorl federate certificate`, relative
    to this file. Without TLS no process is authenticated, so trials without TLS must stay on one machine."""
    join_seconds: Positive = 600.0
    """Time to wait for sites before the first round."""

    @model_validator(mode="after")
    def _remote_needs_tls(self) -> Network:
        if self.tls is None and not is_loopback(self.address):
            raise ValueError(f"address {self.address} needs 'tls': make it with 'neorl federate certificate'")
        return self


class Member(Strict):
    """The coordinator's settings for one site."""

    key: str | None = None
    """The site's public key, printed by `neorl federate key` at the site."""


class Coordinator(Strict):
    """A site's settings for the connection to the coordinator."""

    address: Address = "127.0.0.1:9092"
    authority: FilePath | None = None
    """The coordinator's `authority.pem`, relative to this file. Without this key there is no TLS."""
    key: FilePath | None = None
    """The site's private key, relative to this file."""

    @model_validator(mode="after")
    def _remote_needs_tls(self) -> Coordinator:
        if (self.authority is None) is not (self.key is None):
            present, absent = ("key", "authority") if self.authority is None else ("authority", "key")
            raise ValueError(f"'{present}' is given without '{absent}': authentication needs both")
        if self.authority is None and not is_loopback(self.address):
            raise ValueError(f"address {self.address} is on another machine: add 'authority' and 'key'")
        return self


class Aggregation(Strict):
    """Aggregation of the sites' updates."""

    kind: Literal["mean", "median", "trimmed_mean", "krum"] = "mean"
    trimmed: Annotated[float, Field(ge=0.0, lt=0.5)] = 0.2
    """For trimmed_mean: share of the sites that are left out at the low end, and at the high end, of each weight."""
    hostile: Annotated[int, Field(ge=0)] = 1
    """For krum: number of sites that may be hostile."""
    largest: Positive | None = None
    """Updates with a norm above this multiple of the round's median norm are left out. Default: no limit."""


class PrivateSites(Strict):
    """Differential privacy of whole sites: limits what the trained weights reveal about a site's participation."""

    clip: Positive
    """Largest norm of a site's update; the site scales larger updates down."""
    noise: Annotated[float, Field(ge=0.0)]
    """Standard deviation of the noise on the sum of updates, as a multiple of `clip`."""
    delta: Annotated[float, Field(gt=0.0, lt=1.0)] = 1e-5
    insist: bool = False
    """Whether to continue even if the noise on the mean update exceeds `clip`."""


class Terms(Strict):
    """The terms of a training, which a site accepts or refuses."""

    plant: Name
    """Name of the plant. The names, units and bounds of its signals are the same at all sites."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    algorithm: Name = "td3_bc"
    hyperparameters: dict[Name, Setting] = Field(default_factory=dict)
    method: Literal["fedavg", "fedprox", "scaffold", "fedora"] = "fedavg"
    pull: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.01
    """For fedprox and fedora: share of the distance to the received weights by which weights move back per update."""
    rounds: Count = 100
    updates: Count = 200
    """Gradient steps of a site per round."""
    batch_size: Count = 256
    secure_sums: bool = False
    """Whether the coordinator learns only the sum of the sites' updates."""
    secure_bound: Positive = 1.0
    """With secure sums: largest absolute value of an update's entry; larger entries are clipped."""
    privacy: PrivateSites | None = None


class Federation(Terms):
    """The coordinator's file: one training over several sites."""

    aggregate: Aggregation = Aggregation()
    minimum_sites: Annotated[int, Field(ge=2)] = 2
    """Minimum number of sites that must answer in a round; a round with fewer answers is repeated."""
    round_seconds: Positive = 600.0
    """Time to wait for a site in a round; a late site is left out and asked again in the next round."""
    tries: Count = 3
    """Number of consecutive rounds with too few answers after which the run ends."""
    network: Network = Network()
    sites: Annotated[dict[Name, Member], Field(min_length=2)]

    @property
    def terms(self) -> Terms:
        """The terms that sites receive."""
        return Terms(**{name: getattr(self, name) for name in Terms.model_fields})

    @model_validator(mode="after")
    def _compatible(self) -> Federation:
        aggregate = f"aggregate.kind {self.aggregate.kind} with largest {self.aggregate.largest}"
        robust = self.aggregate.kind != "mean" or self.aggregate.largest is not None
        if self.secure_sums and robust:
            raise ValueError(
                f"secure_sums hides single updates, which {aggregate} needs: use kind mean without 'largest'"
            )
        if self.privacy and robust:
            raise ValueError(f"privacy cannot be proved for {aggregate}: use kind mean without 'largest'")
        if self.privacy and 0.0 < self.privacy.noise < 0.1:
            raise ValueError(
                f"privacy.noise must be 0 or at least 0.1, got {self.privacy.noise:g}: less noise gives no privacy"
            )
        if self.secure_sums and self.method == "fedora":
            raise ValueError(f"secure_sums weights sites by rows, which method {self.method} cannot: change one")
        if self.secure_sums and 2 * self.minimum_sites <= len(self.sites):
            raise ValueError(
                f"with secure_sums minimum_sites must exceed half of the {len(self.sites)} sites, got "
                f"{self.minimum_sites}: increase it, or the sums of two groups together reveal a site"
            )
        if self.minimum_sites > len(self.sites):
            raise ValueError(f"minimum_sites must be at most the {len(self.sites)} sites, got {self.minimum_sites}")
        if self.aggregate.kind == "krum" and self.minimum_sites <= 2 * self.aggregate.hostile + 2:
            raise ValueError(
                f"krum with {self.aggregate.hostile} hostile sites needs minimum_sites above "
                f"{2 * self.aggregate.hostile + 2}, got {self.minimum_sites}: reduce 'hostile', or use kind median"
            )
        if self.network.tls and (unknown := [name for name, site in self.sites.items() if site.key is None]):
            raise ValueError(f"with TLS every site needs a key: add 'key' to {', '.join(unknown)}")
        return self


class Site(Strict):
    """A site's file: the site's contribution and conditions. The coordinator never sees this file."""

    site: Name
    """The site's name in the coordinator's file."""
    plant: Name
    dataset: str = ""
    """First digits of the digest of a dataset in the site's home. Default: the plant's newest dataset."""
    held_out: Fraction = 0.2
    """Share of episodes in the held-out split, for the selection at the site after training."""
    least_rows: Count = 100
    """Minimum number of rows of a sum that the site sends. A sum over few rows could reveal a single row."""
    secure_sums: bool = False
    """Whether the site takes part only if the coordinator sees only sums over sites."""
    private: bool = False
    """Whether the site takes part only if updates are clipped and noise is added."""
    coordinator: Coordinator = Coordinator()
