"""The part of CycloneDX 1.6 (ECMA-424) that NeoRL uses, as frozen models with the standard's field names."""

from __future__ import annotations

import uuid
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

SPACE = uuid.UUID("5d2f3a51-2f6b-5c0e-9a5e-6a0c9f0d7b11")
"""UUID name space of serial numbers: equal content gets an equal number."""


class Part(BaseModel):
    """Base: frozen, unknown fields are rejected."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, serialize_by_alias=True)


Ref = Annotated[str | None, Field(alias="bom-ref")]


class Hash(Part):
    """SHA-256 of a component's bytes."""

    alg: Literal["SHA-256"] = "SHA-256"
    content: str


class Named(Part):
    """Name-value property for data without a field of the standard."""

    name: str
    value: str


class Contact(Part):
    """Name of a person."""

    name: str


class Attachment(Part):
    """Content embedded in the bill."""

    contentType: str
    encoding: Literal["base64"] = "base64"
    content: str


class Contents(Part):
    """Embedded content, or an address relative to the home."""

    attachment: Attachment | None = None
    url: str | None = None


class Data(Part):
    """Content of a data component."""

    type: Literal["dataset"] | None = None
    name: str
    contents: Contents | None = None
    description: str | None = None


class EvidenceData(Part):
    """Content of a piece of evidence."""

    name: str
    contents: Contents


class ExternalReference(Part):
    """Document about a component."""

    type: Literal["attestation", "evidence", "distribution"]
    url: str
    comment: str | None = None
    hashes: tuple[Hash, ...] | None = None


class ReferenceTo(Part):
    """Reference to another component of the bill."""

    ref: str


class Approach(Part):
    """Learning approach of a model."""

    type: Literal["reinforcement-learning"]


class Format(Part):
    """Input or output of a model."""

    format: str


class ModelParameters(Part):
    """Kind, architecture, datasets, inputs and outputs of a model."""

    approach: Approach | None = None
    task: str
    modelArchitecture: str
    datasets: tuple[ReferenceTo, ...]
    inputs: tuple[Format, ...]
    outputs: tuple[Format, ...]


class ConfidenceInterval(Part):
    """Interval limits as text."""

    lowerBound: str
    upperBound: str


class PerformanceMetric(Part):
    """One measured quantity of a model."""

    type: str
    value: str
    slice: str
    confidenceInterval: ConfidenceInterval | None = None


class QuantitativeAnalysis(Part):
    """Measured quantities of a model."""

    performanceMetrics: tuple[PerformanceMetric, ...]


class Considerations(Part):
    """Users, uses and limitations of a model."""

    users: tuple[str, ...]
    useCases: tuple[str, ...]
    technicalLimitations: tuple[str, ...]


class ModelCard(Part):
    """Model card."""

    modelParameters: ModelParameters
    quantitativeAnalysis: QuantitativeAnalysis
    considerations: Considerations
    properties: tuple[Named, ...]


class Pedigree(Part):
    """Components that a component was made from."""

    ancestors: tuple[Component, ...]


class Component(Part):
    """Model, file, dataset, program or package."""

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
    """Programs that made the bill."""

    components: tuple[Component, ...]


class Metadata(Part):
    """Time, tools and subject of the bill."""

    timestamp: str | None = None
    tools: Tools
    component: Component


class Dependency(Part):
    """Components that a component depends on."""

    ref: str
    dependsOn: tuple[str, ...]


class Claim(Part):
    """Statement about a component, with references to evidence."""

    ref: Ref
    target: str
    predicate: str
    reasoning: str
    evidence: tuple[str, ...]


class Evidence(Part):
    """Evidence for a claim."""

    ref: Ref
    propertyName: str
    description: str
    data: tuple[EvidenceData, ...]
    created: str


class Declarations(Part):
    """Claims and their evidence."""

    claims: tuple[Claim, ...]
    evidence: tuple[Evidence, ...]


class Bom(Part):
    """Bill of materials."""

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
    """Return the UUID of a bill, derived from names of its content."""
    return f"urn:uuid:{uuid.uuid5(SPACE, ' '.join(names))}"
