"""What a federation says: the coordinator's file, and the file of each site, which stays with the site."""

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
    """Whether an address is of this machine alone."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


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


class Network(Strict):
    """Where the coordinator listens for sites, and by what they know it."""

    address: Address = "127.0.0.1:9092"
    tls: FilePath | None = None
    """Folder with `superlink.pem`, `superlink-key.pem` and `authority.pem`, as `neorl federate certificate` makes it,
    relative to this file. Without one nobody is authenticated, which is for trials on one machine."""
    join_seconds: Positive = 600.0
    """How long sites are waited for before the first round."""

    @model_validator(mode="after")
    def _beyond_this_machine_by_tls(self) -> Network:
        if self.tls is None and not is_loopback(self.address):
            raise ValueError(
                f"expected 'tls' where sites of other machines connect, got none for {self.address}: make it with "
                "'neorl federate certificate'"
            )
        return self


class Member(Strict):
    """A site as the coordinator knows it."""

    key: str | None = None
    """Its public key, as `neorl federate key` prints it at the site."""


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


class Federation(Terms):
    """One training over several sites, as its coordinator runs it."""

    aggregate: Aggregation = Aggregation()
    minimum_sites: Annotated[int, Field(ge=2)] = 2
    """Answers that a round needs; with fewer it is tried again."""
    round_seconds: Positive = 600.0
    """How long a round waits for a site; who is later is left out of it and asked again in the next."""
    tries: Count = 3
    """Rounds in a row that may have too few answers before the run ends."""
    network: Network = Network()
    sites: Annotated[dict[Name, Member], Field(min_length=2)]

    @property
    def terms(self) -> Terms:
        """What the sites are told of it."""
        return Terms(**{name: getattr(self, name) for name in Terms.model_fields})

    @model_validator(mode="after")
    def _parts_go_together(self) -> Federation:
        robust = self.aggregate.kind != "mean" or self.aggregate.largest is not None
        if self.secure_sums and robust:
            raise ValueError(
                "expected aggregate.kind mean without 'largest' where sums are secure, got a robust one, which has to "
                "see each site's change: choose one of the two"
            )
        if self.privacy and robust:
            raise ValueError(
                "expected aggregate.kind mean without 'largest' where sites are private, got a robust one, of which "
                "the accountant knows nothing: choose one of the two"
            )
        if self.secure_sums and self.method == "fedora":
            raise ValueError(
                "expected a method that weights sites by their rows where sums are secure, got fedora: choose one of "
                "the two"
            )
        if self.secure_sums and 2 * self.minimum_sites <= len(self.sites):
            raise ValueError(
                f"expected minimum_sites above half of the {len(self.sites)} sites where sums are secure, got "
                f"{self.minimum_sites}: with fewer, two halves could unmask a site together"
            )
        if self.minimum_sites > len(self.sites):
            raise ValueError(f"expected minimum_sites of at most {len(self.sites)} sites, got {self.minimum_sites}")
        if self.aggregate.kind == "krum" and self.minimum_sites <= 2 * self.aggregate.hostile + 2:
            raise ValueError(
                f"expected minimum_sites above {2 * self.aggregate.hostile + 2}, which Krum needs against "
                f"{self.aggregate.hostile} hostile sites, got {self.minimum_sites}: name fewer, or take the median"
            )
        if self.network.tls and (unknown := [name for name, site in self.sites.items() if site.key is None]):
            raise ValueError(f"expected the key of every site where TLS is on, got none of {', '.join(unknown)}")
        return self


class Coordinator(Strict):
    """The coordinator as a site knows it."""

    address: Address = "127.0.0.1:9092"
    authority: FilePath | None = None
    """The coordinator's `authority.pem`, relative to this file; without it there is no TLS."""
    key: FilePath | None = None
    """The site's own private key, relative to this file."""

    @model_validator(mode="after")
    def _beyond_this_machine_by_tls(self) -> Coordinator:
        if (self.authority is None) is not (self.key is None):
            raise ValueError("expected 'authority' and 'key' together, got one of them: authentication needs TLS")
        if self.authority is None and not is_loopback(self.address):
            raise ValueError(f"expected 'authority' and 'key' for {self.address}, which is another machine, got none")
        return self


class Site(Strict):
    """What a site brings, and on which terms; the coordinator never sees this file."""

    site: Name
    """Its name in the coordinator's file."""
    plant: Name
    dataset: str = ""
    """First digits of a dataset's digest in this site's home; the newest of the plant by default."""
    held_out: Fraction = 0.2
    """Share of episodes kept from training, for the site's own selection afterwards."""
    least_rows: Count = 100
    """Rows below which the site tells no sums: those of few rows say much of each."""
    secure_sums: bool = False
    """Take part only where the coordinator sees sums alone."""
    private: bool = False
    """Take part only where changes are clipped and get noise."""
    coordinator: Coordinator = Coordinator()
