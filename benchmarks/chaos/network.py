"""A second host: a network namespace with a virtual cable that can be cut."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple


class Host(NamedTuple):
    """A network namespace."""

    name: str
    """Name of the namespace."""
    cable: str
    """Name of the cable's end on this host."""
    address: str

    @property
    def inside(self) -> list[str]:
        """Command prefix that starts programs in the namespace."""
        return ["ip", "netns", "exec", self.name]

    def cut(self) -> None:
        """Cut the cable."""
        _ip("link", "set", self.cable, "down")

    def joined(self) -> None:
        """Reconnect the cable."""
        _ip("link", "set", self.cable, "up")


@contextmanager
def host() -> Iterator[Host | None]:
    """Yield a second host, or None if this machine does not allow one."""
    number = os.getpid() % 250
    found = Host(f"neorl-chaos-{number}", f"nc{number}", f"10.213.{number}.2")
    if shutil.which("ip") is None or not _possible("netns", "add", found.name):
        yield None
        return
    try:
        _ip("link", "add", found.cable, "type", "veth", "peer", "name", "eth0", "netns", found.name)
        _ip("addr", "add", f"10.213.{number}.1/24", "dev", found.cable)
        found.joined()
        _ip("-n", found.name, "addr", "add", f"{found.address}/24", "dev", "eth0")
        for device in ("eth0", "lo"):
            _ip("-n", found.name, "link", "set", device, "up")
        yield found
    finally:
        _ip("netns", "delete", found.name)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def _possible(*words: str) -> bool:
    return subprocess.run(["ip", *words], check=False, capture_output=True).returncode == 0
