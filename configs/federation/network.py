"""Where a federation's coordinator listens, and by what coordinator and sites know each other."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Annotated

from pydantic import Field, model_validator

from configs.strict import FilePath, Strict

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
