"""Register a candidate with everything that a reviewer needs, and complete the version after the decision."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from configs.run import flattened
from tasks.record import Record
from tasks.references import Bundle, RatedMember, Version, member_name
from tasks.registry.learning import rate_members
from tasks.registry.registry import Registry
from tasks.registry.upload import HEAD, Artifact, Curve, Submission
from tasks.report import ReportFiles, describe, read_curves, view


def register(
    record: Record, registry: Registry, bundle: Bundle, plots: Mapping[str, Path], signature: Path | None = None
) -> Version:
    """Register a candidate, or find the version with the same run key and composite.

    Args:
        signature: folder with the bundle's OpenSSF signature.

    Raises:
        ServiceMissing: if MLflow stops answering; a rerun completes the registration.
        Refused: if the bundle's files do not match the digest.
    """
    plant = record.run.plant
    rate_members(registry, plant, list(rated(record)))
    known = registry.find(plant, record.run_key, bundle.digest)
    if known is None:
        experiment = registry.experiment(plant)
        known = registry.register(
            Submission(
                plant=plant,
                run_key=record.run_key,
                name=run_name(record),
                digest=bundle.digest,
                bundle=bundle.folder,
                signature=signature,
                source=record.run.source,
                dataset=record.dataset,
                describe=lambda run_id: description(record, registry.run_url(experiment, run_id), run_id),
                params=dict(parameters(record)),
                metrics=dict(metrics(record)),
                curves=curves(record),
                tags=tags(record),
                artifacts=tuple(artifacts(record, plots)),
            )
        )
    return Version(version=known.version, run_id=known.run_id, url=known.url, digest=known.digest)


def conclude(record: Record, registry: Registry, version: Version, files: ReportFiles) -> None:
    """Add description, ledger head and report to a version once the verdict is known.

    Raises:
        ServiceMissing: if MLflow stops answering; a rerun completes the version.
    """
    plant = record.run.plant
    found = [Artifact("report", files.page)]
    if files.glance is not None:
        found.append(Artifact("plots", files.glance))
    registry.attach(version.run_id, found)
    text = description(record, registry.run_url(registry.experiment(plant), version.run_id), version.run_id)
    head = {HEAD: record.ledger.signed} if record.ledger else {}
    registry.annotate(plant, version.version, head, text)


def description(record: Record, run_url: str, run_id: str) -> str:
    """Return the text of a version's page in MLflow as Markdown, with a picture from the run's plots.

    The text contains no decisions, because these change later. `tasks.lifecycle.pages` adds decisions above the text.
    """
    passed = record.of_fallback or all(gate.passed for gate in record.gates)
    record = record.model_copy(update={"verdict": "passed" if passed else "failed"})
    return describe(record, run_url, f"get-artifact?path=plots%2Ftrajectories.png&run_uuid={run_id}")


def run_name(record: Record) -> str:
    """Return the name of a candidate's run in MLflow."""
    member = record.selected
    if record.of_fallback:
        return f"plant controller, {record.run_key[:8]}"
    return f"candidate {member_name(member.algorithm, member.seed, member.hyperparameters)}, {record.run_key[:8]}"


def rated(record: Record) -> Iterator[RatedMember]:
    """Yield the off-policy evaluation of every member."""
    for member, found in zip(record.population.members, record.evaluation.members, strict=True):
        numbers = {
            "ope/value": found.ope.value,
            "ope/low": found.ope.lower,
            "ope/high": found.ope.upper,
            "ope/gain": found.gain.value,
            "ope/gain_low": found.gain.lower,
            "ope/cost": found.cost_ope.value,
            "ope/outside": found.outside,
            "ope/disagreement": found.disagreement,
            "ope/supported": float(found.supported),
        }
        learner = record.population.learners[member.learner]
        yield RatedMember(key=learner.key, row=member.row, composite=member.bundle.digest, metrics=numbers)


def tags(record: Record) -> dict[str, str]:
    """Return the tags of a run in MLflow: all digests, and the ledger's signed head."""
    found = {f"neorl.{name}": value for name, value in record.digests if value}
    return found | ({HEAD: record.ledger.signed} if record.ledger else {})


def curves(record: Record) -> dict[str, Curve]:
    """Return the selected member's learning curves; empty for the tuned controller."""
    if record.of_fallback:
        return {}
    member = record.selected
    steps, found = read_curves(record.population.learners[member.learner].curves)
    return {name: Curve(steps, values[member.row]) for name, values in found.items()}


def artifacts(record: Record, plots: Mapping[str, Path]) -> Iterator[Artifact]:
    """Yield the files of a run: pictures, Data Docs and certificates."""
    for path in plots.values():
        yield Artifact("plots", path)
    if record.validation.data_docs is not None:
        yield Artifact("data_docs", record.validation.data_docs.parent)
    for name, certificate in record.certificates():
        yield Artifact(f"certificates/{name}", certificate.path)


def parameters(record: Record) -> Iterator[tuple[str, str]]:
    """Yield the run's settings, with the learner and the values of the selected member.

    Example:
        >>> dict(parameters(record))["train.algorithm"]  # doctest: +SKIP
        'td3_bc'
    """
    if record.of_fallback:
        yield from record.run.settings()
    else:
        learner = record.population.learners[record.selected.learner]
        alone = record.run.train.single_learners()[learner.place]
        yield from record.run.model_copy(update={"train": alone}).settings()
        yield from flattened(
            {"algorithm": record.selected.algorithm, "seed": record.selected.seed, **record.selected.hyperparameters},
            "selected",
        )


def metrics(record: Record) -> Iterator[tuple[str, float]]:
    """Yield the metrics of a run in MLflow. A run of the tuned controller has only the numbers of that controller."""
    shown = view(record)
    if not record.of_fallback and record.rollouts is not None:
        yield "score", record.rollouts.score
    for name, controller in shown.controllers.items():
        if record.of_fallback and name != "plant controller":
            continue
        if record.of_fallback:
            yield "score", controller.score
        prefix = name.replace(" ", "_")
        yield f"{prefix}/return", controller.returns.value
        yield f"{prefix}/violated_episodes", float(controller.violated)
    if not record.of_fallback:
        for name, difference in {**shown.differences, "logged controller OPE": record.evaluation.difference}.items():
            prefix = f"difference/{name.replace(' ', '_')}"
            yield f"{prefix}/value", difference.value
            yield f"{prefix}/lower", difference.lower
            yield f"{prefix}/upper", difference.upper
    if shown.certificate is not None:
        yield "certificate/episodes", float(shown.certificate.episodes)
        yield "certificate/violations", float(shown.certificate.violations)
        yield "certificate/upper_bound", shown.certificate.upper_bound
