"""CycloneDX bill of materials of a lock file: all packages with versions and hashes."""

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
    """Package pinned in a lock file."""

    name: str
    version: str
    marker: str
    """Environment marker; empty if always installed."""
    hashes: tuple[str, ...]
    """SHA-256 of each distribution file."""

    @property
    def purl(self) -> str:
        """Package URL (lower case, hyphens for underscores)."""
        # A plus sign (local version) would be decoded as a space.
        return f"pkg:pypi/{self.name.lower().replace('_', '-')}@{self.version.replace('+', '%2B')}"


def read_lock(path: Path) -> list[Locked]:
    """Read a lock file in the format of pip and uv with hashes."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"cannot read the lock file {path} ({error}): name one with --lock FILE") from error
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
                f"line {number} of {path} must be 'name==version' or a hash, got '{line[:60]}': 'make lock' writes a "
                "lock file"
            )
    if not found:
        raise BadInput(f"the lock file {path} has no packages: 'make lock' writes one")
    return found


def lock_bill(path: Path, version: str) -> Bom:
    """Return the bill of materials of a lock file, without a time so that it is reproducible."""
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
        # A lock file does not record which package requires which.
        dependencies=(Dependency(ref=ROOT, dependsOn=tuple(str(part.ref) for part in parts)),),
    )


def made_by(version: str) -> Tools:
    """Return NeoRL as the tool that made a bill."""
    return Tools(components=(Component(type="application", name="neorl", version=version),))


def _component(package: Locked) -> Component:
    marker = (Named(name="neorl:lock:marker", value=package.marker),) if package.marker else None
    # A component's `hashes` describe a single file; a package has one file per platform.
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
