"""Bill of materials (CycloneDX) of a registered version: its files, training data, code and certificate."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence

from configs.errors import Refused
from configs.home import Home
from neorl_core.types import PlantSpec
from tasks.evidence.attempts import CERTIFICATES
from tasks.evidence.bills.cyclonedx import (
    Approach,
    Attachment,
    Bom,
    Claim,
    Component,
    ConfidenceInterval,
    Considerations,
    Contact,
    Contents,
    Data,
    Declarations,
    Dependency,
    Evidence,
    EvidenceData,
    ExternalReference,
    Format,
    Hash,
    Metadata,
    ModelCard,
    ModelParameters,
    Named,
    Pedigree,
    PerformanceMetric,
    QuantitativeAnalysis,
    ReferenceTo,
    made_by,
    serial_number,
)
from tasks.evidence.certificate import read_certificate
from tasks.evidence.claims import NON_CLAIMS, Materials, Predicate
from tasks.evidence.decisions.queue import find_candidate
from tasks.evidence.ledger.entry import Entry
from tasks.evidence.ledger.ledger import Ledger
from tasks.evidence.ledger.protocol import Artefact
from tasks.files.canonical import file_sha256, sha256_hex
from tasks.models.bundles.manifest import MANIFEST, read_manifest
from tasks.references import CandidateRecord, Dataset, Interval, ProcessEvidence

USES = (
    "Control of the named plant, within the operating domain that the certificate names, behind its shield and with "
    "the plant's own controller as its fallback."
)
NO_CERTIFICATE = "No statistical safety claim: there is no certificate of it."


def model_bill(home: Home, ledger: Ledger, plant: str, version: str, program: str) -> Bom:
    """Return the bill of materials of a registered version; `program` is the version of NeoRL that writes it."""
    entry = find_candidate(ledger.entries(), plant, version)
    record = CandidateRecord.model_validate(entry.body)
    bundle = next((home.root / f.path).parent for f in entry.artefacts if f.path.endswith(f"/{MANIFEST}"))
    for file in entry.artefacts:
        _check(home, file)
    spec = read_manifest(bundle).spec
    certificate = next((f for f in entry.artefacts if f.path.startswith(CERTIFICATES)), None)
    predicate = read_certificate(home.root / certificate.path, ledger.trust).predicate if certificate else None
    model, data, code = f"composite:{record.composite}", f"dataset:{record.dataset.digest}", "code"
    parts = [_dataset(entry, record.dataset, data)]
    parts += [_code(program, predicate.materials if predicate else None, code)]
    return Bom(
        serialNumber=serial_number("model", entry.digest),
        metadata=Metadata(
            timestamp=entry.timestamp,
            tools=made_by(program),
            component=_model(entry, record, spec, certificate, model, data),
        ),
        components=tuple(parts),
        dependencies=(Dependency(ref=model, dependsOn=(data, code)),),
        declarations=_declarations(home, certificate, predicate, model),
    )


def _check(home: Home, file: Artefact) -> None:
    path = home.root / file.path
    found = file_sha256(path) if path.is_file() else "no file"
    if found != file.sha256:
        raise Refused(
            f"{file.path} must have SHA-256 {file.sha256[:12]} (ledger), got {found[:12]}: restore it from a backup"
        )


def _model(
    entry: Entry, record: CandidateRecord, spec: PlantSpec, certificate: Artefact | None, ref: str, data: str
) -> Component:
    files = [f for f in entry.artefacts if f.name.startswith("bundle/")]
    attested = ExternalReference(
        type="attestation",
        url=certificate.path,
        comment="safety certificate: DSSE envelope of an in-toto statement",
        hashes=(Hash(content=certificate.sha256),),
    ) if certificate else None  # fmt: skip
    return Component(
        type="machine-learning-model",
        ref=ref,
        name=entry.plant,
        version=record.version,
        description="Policy, shield and fallback as one controller"
        if record.role == "candidate"
        else "The plant's own controller behind its shield, without a learned policy",
        authors=(Contact(name=record.author),) if record.author else None,
        externalReferences=(attested,) if attested else None,
        components=tuple(
            Component(type="file", ref=f"file:{f.path}", name=f.name, hashes=(Hash(content=f.sha256),)) for f in files
        ),
        modelCard=ModelCard(
            modelParameters=ModelParameters(
                approach=Approach(type="reinforcement-learning") if record.role == "candidate" else None,
                task=f"control of {entry.plant}",
                modelArchitecture="composite of policy, shield and fallback",
                datasets=(ReferenceTo(ref=data),),
                inputs=_formats(spec.observation.names, spec.observation.units),
                outputs=_formats(spec.action.names, spec.action.units),
            ),
            quantitativeAnalysis=QuantitativeAnalysis(performanceMetrics=tuple(_metrics(record))),
            considerations=Considerations(
                users=("Process control engineers of the named plant",),
                useCases=(USES,),
                technicalLimitations=NON_CLAIMS if record.claim else (NO_CERTIFICATE,),
            ),
            properties=tuple(
                Named(name=f"neorl:gate:{g.name}", value=f"{_mark(g.passed)}: {g.detail}") for g in record.gates
            ),
        ),
        properties=(
            Named(name="neorl:composite", value=record.composite),
            Named(name="neorl:ledger:entry", value=entry.digest),
            Named(name="neorl:configuration", value=record.config),
            Named(name="neorl:run", value=record.run_key),
        ),
    )


def _formats(names: Sequence[str], units: Sequence[str]) -> tuple[Format, ...]:
    return tuple(Format(format=f"{name} [{unit}], float32") for name, unit in zip(names, units, strict=True))


def _mark(passed: bool | None) -> str:
    return "not run" if passed is None else "pass" if passed else "fail"


def _metrics(record: CandidateRecord) -> Iterator[PerformanceMetric]:
    evidence = record.evidence
    yield _metric("gain in return over the logged controller", evidence.ope, "held-out logs, off-policy estimate")
    if isinstance(evidence, ProcessEvidence):
        return
    yield _metric("gain in return over the plant's own controller", evidence.rollouts, "rollouts on the simulator")
    own = evidence.fallback if record.role == "fallback" else evidence.certificate
    if own is not None:
        episodes = f"{own.episodes} episodes of the operating domain"
        yield PerformanceMetric(type="episodes that violate a limit", value=str(own.violations), slice=episodes)


def _metric(name: str, found: Interval, of: str) -> PerformanceMetric:
    interval = ConfidenceInterval(lowerBound=f"{found.lower:.6g}", upperBound=f"{found.upper:.6g}")
    return PerformanceMetric(type=name, value=f"{found.value:.6g}", slice=of, confidenceInterval=interval)


def _dataset(entry: Entry, dataset: Dataset, ref: str) -> Component:
    """Return the dataset (named by the SHA-256 of its manifest) with its shards and sources."""
    files = [f for f in entry.artefacts if f.name.startswith("dataset ")]
    sources = tuple(
        Component(type="file", name=s.path.rpartition("/")[2] or s.path, hashes=(Hash(content=s.sha256),))
        for s in dataset.sources
    )
    manifest = next(f for f in files if f.name == "dataset manifest")
    return Component(
        type="data",
        ref=ref,
        name=f"logs of {dataset.plant}",
        version=dataset.digest,
        description=dataset.found,
        components=tuple(
            Component(
                type="file", ref=f"file:{f.path}", name=f.path, description=f.name, hashes=(Hash(content=f.sha256),)
            )
            for f in files
        ),
        pedigree=Pedigree(ancestors=sources) if sources else None,
        data=(Data(type="dataset", name=dataset.digest, contents=Contents(url=manifest.path)),),
        properties=tuple(Named(name="neorl:accounted", value=line) for line in dataset.accounted) or None,
    )


def _code(program: str, materials: Materials | None, ref: str) -> Component:
    digests = ("code", "lock", "simulator", "shield", "processor") if materials else ()
    return Component(
        type="application",
        ref=ref,
        name="neorl",
        version=program if materials is None else None,
        description="Program that trained and certified it" if materials else "Program that wrote this bill",
        properties=tuple(Named(name=f"neorl:{name}", value=getattr(materials, name)) for name in digests) or None,
    )


def _declarations(
    home: Home, certificate: Artefact | None, predicate: Predicate | None, model: str
) -> Declarations | None:
    """Return the certificate's claim, with the complete signed certificate as evidence that readers can verify."""
    if certificate is None or predicate is None:
        return None
    envelope = (home.root / certificate.path).read_bytes()
    ref = f"certificate:{sha256_hex(envelope)}"
    attachment = Attachment(contentType="application/vnd.in-toto+json", content=base64.b64encode(envelope).decode())
    evidence = Evidence(
        ref=ref,
        propertyName="neorl:safety-certificate",
        description="DSSE envelope of an in-toto statement: 'neorl certificate verify' checks it.",
        data=(EvidenceData(name=certificate.path, contents=Contents(attachment=attachment)),),
        created=predicate.attempt.opened,
    )
    claim = Claim(
        ref=f"claim:{sha256_hex(envelope)}",
        target=model,
        predicate=predicate.claim.partition("\n")[0],
        reasoning=predicate.protocol,
        evidence=(ref,),
    )
    return Declarations(claims=(claim,), evidence=(evidence,))
