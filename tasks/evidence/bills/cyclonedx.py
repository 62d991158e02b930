"""Models of the CycloneDX 1.6 standard (ECMA-424), as far as NeoRL uses it, and the bill of a lock file."""

from __future__ import annotations

import re
import uuid
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from configs.errors import BadInput
from tasks.files.canonical import file_sha256

SPACE = uuid.UUID("5d2f3a51-2f6b-5c0e-9a5e-6a0c9f0d7b11")
"""Name space for serial numbers (UUIDs): bills of equal content get the same number."""
PIN = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[^\s;\\]+)(?:\s*;\s*(?P<marker>[^\\]*?))?\s*\\?")
HASH = re.compile(r"--hash=sha256:(?P<digest>[0-9a-f]{64})\s*\\?")
ROOT = "neorl"


class Part(BaseModel):
    """Base class: values cannot be changed, and unknown fields are rejected."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, serialize_by_alias=True)


Ref = Annotated[str | None, Field(alias="bom-ref")]


class Hash(Part):
    """SHA-256 of a component's bytes."""

    alg: Literal["SHA-256"] = "SHA-256"
    content: str


class Named(Part):
    """A name and a value, for data that the standard has no field for."""

    name: str
    value: str


class Contact(Part):
    name: str


class Attachment(Part):
    """Content that is embedded in the bill, in base64."""

    contentType: str
    encoding: Literal["base64"] = "base64"
    content: str


class Contents(Part):
    """Embedded content, or a path relative to the home."""

    attachment: Attachment | None = None
    url: str | None = None


class Data(Part):
    type: Literal["dataset"] | None = None
    name: str
    contents: Contents | None = None
    description: str | None = None


class EvidenceData(Part):
    name: str
    contents: Contents


class ExternalReference(Part):
    type: Literal["attestation", "evidence", "distribution"]
    url: str
    comment: str | None = None
    hashes: tuple[Hash, ...] | None = None


class ReferenceTo(Part):
    ref: str


class Approach(Part):
    type: Literal["reinforcement-learning"]


class Format(Part):
    """One input or output signal of a model: name, unit and number type."""

    format: str


class ModelParameters(Part):
    approach: Approach | None = None
    task: str
    modelArchitecture: str
    datasets: tuple[ReferenceTo, ...]
    inputs: tuple[Format, ...]
    outputs: tuple[Format, ...]


class ConfidenceInterval(Part):
    """Lower and upper limit of a confidence interval, as text."""

    lowerBound: str
    upperBound: str


class PerformanceMetric(Part):
    type: str
    value: str
    slice: str
    confidenceInterval: ConfidenceInterval | None = None


class QuantitativeAnalysis(Part):
    performanceMetrics: tuple[PerformanceMetric, ...]


class Considerations(Part):
    users: tuple[str, ...]
    useCases: tuple[str, ...]
    technicalLimitations: tuple[str, ...]


class ModelCard(Part):
    modelParameters: ModelParameters
    quantitativeAnalysis: QuantitativeAnalysis
    considerations: Considerations
    properties: tuple[Named, ...]


class Pedigree(Part):
    """Components that a component was made from."""

    ancestors: tuple[Component, ...]


class Component(Part):
    type: Literal["machine-learning-model", "data", "file", "application", "library"]
    ref: Ref = None
    name: str
    version: str | None = None
    description: str | None = None
    authors: tuple[Contact, ...] | None = None
    purl: str | None = None
    hashes: tuple[Hash, ...] | None = None
    externalReferences: tuple[ExternalReference, ...] | None = None
    components: tuple[Component, ...] | None = None
    pedigree: Pedigree | None = None
    modelCard: ModelCard | None = None
    data: tuple[Data, ...] | None = None
    properties: tuple[Named, ...] | None = None


class Tools(Part):
    components: tuple[Component, ...]


class Metadata(Part):
    timestamp: str | None = None
    tools: Tools
    component: Component


class Dependency(Part):
    ref: str
    dependsOn: tuple[str, ...]


class Claim(Part):
    ref: Ref
    target: str
    predicate: str
    reasoning: str
    evidence: tuple[str, ...]


class Evidence(Part):
    ref: Ref
    propertyName: str
    description: str
    data: tuple[EvidenceData, ...]
    created: str


class Declarations(Part):
    claims: tuple[Claim, ...]
    evidence: tuple[Evidence, ...]


class Bom(Part):
    """A bill of materials: a list of everything that a model or an installation consists of."""

    bomFormat: Literal["CycloneDX"] = "CycloneDX"
    specVersion: Literal["1.6"] = "1.6"
    serialNumber: str
    version: int = 1
    metadata: Metadata
    components: tuple[Component, ...]
    dependencies: tuple[Dependency, ...] | None = None
    declarations: Declarations | None = None

    def text(self) -> str:
        """Return the bill as JSON with the standard's names and without empty fields."""
        return self.model_dump_json(exclude_none=True, by_alias=True, indent=1) + "\n"


def serial_number(*names: str) -> str:
    """Return the serial number (UUID) of a bill; the same names always give the same number."""
    return f"urn:uuid:{uuid.uuid5(SPACE, ' '.join(names))}"


class Locked(NamedTuple):
    """A package in a lock file, with its exact version."""

    name: str
    version: str
    marker: str
    """Condition for the installation (environment marker); empty if the package is always installed."""
    hashes: tuple[str, ...]
    """SHA-256 of each distribution file."""

    @property
    def purl(self) -> str:
        """Package URL (lower case, hyphens for underscores)."""
        # A plus sign (local version) would be decoded as a space.
        return f"pkg:pypi/{self.name.lower().replace('_', '-')}@{self.version.replace('+', '%2B')}"


def read_lock(path: Path) -> list[Locked]:
    """Read a lock file of pip or uv; return its packages with their hashes."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"cannot read the lock file {path} ({error}): name a lock file with --lock FILE") from error
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
    """Return the bill of materials of a lock file. It contains no time, so repeated calls give the same bill."""
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
