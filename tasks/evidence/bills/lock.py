"""The bill of materials of a lock file: every package that an installation may hold, with its version and hashes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from configs.errors import BadInput
from tasks.evidence.bills.cyclonedx import (
    Bom,
    Component,
    Dependency,
    ExternalReference,
    Hash,
    Metadata,
    Named,
    Tools,
    serial_number,
)
from tasks.files.canonical import file_sha256

PIN = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[^\s;\\]+)(?:\s*;\s*(?P<marker>[^\\]*?))?\s*\\?")
HASH = re.compile(r"--hash=sha256:(?P<digest>[0-9a-f]{64})\s*\\?")
ROOT = "neorl"


class Locked(NamedTuple):
    """A package as a lock file pins it."""

    name: str
    version: str
    marker: str
    """Where it is installed at all; empty for everywhere."""
    hashes: tuple[str, ...]
    """SHA-256 of each file that may be installed."""

    @property
    def purl(self) -> str:
        """Its package URL, by the rules for PyPI: lower case, and hyphens for underscores."""
        # A local version's plus sign would be read as a space.
        return f"pkg:pypi/{self.name.lower().replace('_', '-')}@{self.version.replace('+', '%2B')}"


def read_lock(path: Path) -> list[Locked]:
    """The packages of a lock file as pip and uv read it, with hashes.

    Raises:
        BadInput: when it cannot be read, or has a line that is neither a pin nor a hash.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"expected a lock file at {path}, got {error}: name one with --lock FILE.") from error
    found: list[Locked] = []
    for number, line in enumerate((line.strip() for line in lines), 1):
        if not line or line.startswith("#"):
            continue
        if pin := PIN.fullmatch(line):
            found.append(Locked(pin["name"], pin["version"], pin["marker"] or "", ()))
        elif (digest := HASH.fullmatch(line)) and found:
            found[-1] = found[-1]._replace(hashes=(*found[-1].hashes, digest["digest"]))
        else:
            raise BadInput(
                f"expected 'name==version' or a hash in line {number} of {path}, got '{line[:60]}': 'make lock' writes "
                "a lock file."
            )
    if not found:
        raise BadInput(f"expected packages in {path}, got none: 'make lock' writes a lock file.")
    return found


def lock_bill(path: Path, version: str) -> Bom:
    """The bill of materials of a lock file.

    Args:
        path: the lock file.
        version: of NeoRL, which it is the lock of.

    Returns:
        A bill without a time: the same lock has the same bill.
    """
    packages, digest = read_lock(path), file_sha256(path)
    parts = tuple(_component(package) for package in packages)
    application = Component(
        type="application",
        ref=ROOT,
        name="neorl",
        version=version,
        properties=(Named(name="neorl:lock:sha256", value=digest),),
    )
    return Bom(
        serialNumber=serial_number("lock", digest, version),
        metadata=Metadata(tools=made_by(version), component=application),
        components=parts,
        # A lock says what is installed, not which package asked for which.
        dependencies=(Dependency(ref=ROOT, dependsOn=tuple(str(part.ref) for part in parts)),),
    )


def made_by(version: str) -> Tools:
    """This program, as what makes bills."""
    return Tools(components=(Component(type="application", name="neorl", version=version),))


def _component(package: Locked) -> Component:
    marker = (Named(name="neorl:lock:marker", value=package.marker),) if package.marker else None
    # `hashes` of a component is of one file; a package has a file for each platform.
    files = ExternalReference(
        type="distribution",
        url=package.purl,
        comment="SHA-256 of each file that may be installed",
        hashes=tuple(Hash(content=digest) for digest in package.hashes),
    )
    return Component(
        type="library",
        ref=package.purl if not package.marker else f"{package.purl}#{package.marker}",
        name=package.name,
        version=package.version,
        purl=package.purl,
        externalReferences=(files,) if package.hashes else None,
        properties=marker,
    )
