"""What our bills of materials use of CycloneDX 1.6 (ECMA-424), as frozen models; field names are the format's."""

from __future__ import annotations

import uuid
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

SPACE = uuid.UUID("5d2f3a51-2f6b-5c0e-9a5e-6a0c9f0d7b11")
"""Name space of our bills' serial numbers: the same content has the same number."""


class Part(BaseModel):
    """A frozen part of a bill, which refuses unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, serialize_by_alias=True)


Ref = Annotated[str | None, Field(alias="bom-ref")]


class Hash(Part):
    """A digest of a component's bytes."""

    alg: Literal["SHA-256"] = "SHA-256"
    content: str


class Named(Part):
    """A property: what the format has no field for."""

    name: str
    value: str


class Contact(Part):
    """A person, by name."""

    name: str


class Attachment(Part):
    """Content within the bill."""

    contentType: str
    encoding: Literal["base64"] = "base64"
    content: str


class Contents(Part):
    """Where content is: within the bill, or at an address relative to the home."""

    attachment: Attachment | None = None
    url: str | None = None


class Data(Part):
    """What a component of type data holds, or the content of an evidence."""

    type: Literal["dataset"] | None = None
    name: str
    contents: Contents | None = None
    description: str | None = None


class EvidenceData(Part):
    """The content of an evidence."""

    name: str
    contents: Contents


class ExternalReference(Part):
    """A document that belongs to a component."""

    type: Literal["attestation", "evidence", "distribution"]
    url: str
    comment: str | None = None
    hashes: tuple[Hash, ...] | None = None


class ReferenceTo(Part):
    """Another component of the bill."""

    ref: str


class Approach(Part):
    """How a model learned."""

    type: Literal["reinforcement-learning"]


class Format(Part):
    """What a model takes or gives."""

    format: str


class ModelParameters(Part):
    """What a model is, and what it learned from."""

    approach: Approach | None = None
    task: str
    modelArchitecture: str
    datasets: tuple[ReferenceTo, ...]
    inputs: tuple[Format, ...]
    outputs: tuple[Format, ...]


class ConfidenceInterval(Part):
    """Ends of an interval, as text."""

    lowerBound: str
    upperBound: str


class PerformanceMetric(Part):
    """A number that was measured of a model."""

    type: str
    value: str
    slice: str
    confidenceInterval: ConfidenceInterval | None = None


class QuantitativeAnalysis(Part):
    """What was measured of a model."""

    performanceMetrics: tuple[PerformanceMetric, ...]


class Considerations(Part):
    """Whom a model is for, and what it is not good for."""

    users: tuple[str, ...]
    useCases: tuple[str, ...]
    technicalLimitations: tuple[str, ...]


class ModelCard(Part):
    """What is to be known of a model."""

    modelParameters: ModelParameters
    quantitativeAnalysis: QuantitativeAnalysis
    considerations: Considerations
    properties: tuple[Named, ...]


class Pedigree(Part):
    """What a component was made of."""

    ancestors: tuple[Component, ...]


class Component(Part):
    """A model, its files, data, the code, or a package."""

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
    """What made the bill."""

    components: tuple[Component, ...]


class Metadata(Part):
    """What the bill is about."""

    timestamp: str | None = None
    tools: Tools
    component: Component


class Dependency(Part):
    """What a component rests on."""

    ref: str
    dependsOn: tuple[str, ...]


class Claim(Part):
    """A statement about a component, with the evidence for it."""

    ref: Ref
    target: str
    predicate: str
    reasoning: str
    evidence: tuple[str, ...]


class Evidence(Part):
    """What stands behind a claim."""

    ref: Ref
    propertyName: str
    description: str
    data: tuple[EvidenceData, ...]
    created: str


class Declarations(Part):
    """Claims with their evidence."""

    claims: tuple[Claim, ...]
    evidence: tuple[Evidence, ...]


class Bom(Part):
    """A bill of materials."""

    bomFormat: Literal["CycloneDX"] = "CycloneDX"
    specVersion: Literal["1.6"] = "1.6"
    serialNumber: str
    version: int = 1
    metadata: Metadata
    components: tuple[Component, ...]
    dependencies: tuple[Dependency, ...] | None = None
    declarations: Declarations | None = None

    def text(self) -> str:
        """The bill as JSON, with the format's names and without what is not said."""
        return self.model_dump_json(exclude_none=True, by_alias=True, indent=1) + "\n"


def serial_number(*names: str) -> str:
    """The serial number of a bill, which follows from what it is about."""
    return f"urn:uuid:{uuid.uuid5(SPACE, ' '.join(names))}"
