"""Put a candidate into the registry with everything a reviewer needs to decide on it, and later what was decided."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from configs.run import named
from tasks.adapters.registry.registry import Registry
from tasks.adapters.registry.upload import Artifact, Curve, Submission, TrainingData
from tasks.record import Record
from tasks.references import Bundle, Version
from tasks.report import ReportFiles, describe, read_curves, view

VERDICT, HEAD = "neorl.verdict", "neorl.ledger_head"


def register(record: Record, registry: Registry, bundle: Bundle, plots: Mapping[str, Path]) -> Version:
    """Register a candidate; the same run key and composite again find the version that is there.

    Args:
        record: everything known so far; its digests become the version's tags.
        registry: MLflow.
        bundle: the composite that was certified.
        plots: the pictures that `tasks.report.draw_plots` made.

    Raises:
        ServiceMissing: when MLflow stops answering; running again completes it.
        Refused: when the bundle's files are not the composite that its digest names.
    """
    plant = record.run.plant
    known = registry.find(plant, record.run_key, bundle.digest)
    if known is None:
        experiment = registry.experiment(plant)
        known = registry.register(
            Submission(
                plant=plant,
                run_key=record.run_key,
                digest=bundle.digest,
                bundle=bundle.folder,
                source=record.run.source,
                dataset=TrainingData(
                    digest=record.dataset.digest,
                    store=record.dataset.store,
                    rows=record.dataset.rows,
                    episodes=record.dataset.episodes,
                    quarantined=record.dataset.quarantined,
                    card=record.dataset.card,
                    card_pictures=record.dataset.card_pictures,
                ),
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
    """Complete a version once the verdict is known: its description, verdict, ledger head, and the report.

    Args:
        record: with the final verdict.
        registry: MLflow.
        version: as `register` returned it.
        files: as `tasks.report.report` returned them.

    Raises:
        ServiceMissing: when MLflow stops answering; running again completes it.
    """
    plant = record.run.plant
    found = [Artifact("report", files.page)]
    if files.glance is not None:
        found.append(Artifact("plots", files.glance))
    registry.attach(version.run_id, found)
    text = description(record, registry.run_url(registry.experiment(plant), version.run_id), version.run_id)
    decided = {VERDICT: record.verdict, HEAD: record.ledger.signed if record.ledger else ""}
    registry.annotate(plant, version.version, {name: value for name, value in decided.items() if value}, text)


def description(record: Record, run_url: str, run_id: str) -> str:
    """A version's description, with the picture that the server holds among the run's plots.

    Args:
        record: everything known of the retraining.
        run_url: where MLflow's UI shows the run.
        run_id: of the run.
    """
    return describe(record, run_url, f"get-artifact?path=plots%2Ftrajectories.png&run_uuid={run_id}")


def tags(record: Record) -> dict[str, str]:
    """A version's tags: every digest, and the ledger's signed head."""
    found = {f"neorl.{name}": value for name, value in record.digests if value}
    return found | ({HEAD: record.ledger.signed} if record.ledger else {})


def curves(record: Record) -> dict[str, Curve]:
    """The selected member's learning curves; the plant's own controller has none."""
    if record.of_fallback:
        return {}
    steps, found = read_curves(record.population.curves)
    return {name: Curve(steps, values[record.selected.index]) for name, values in found.items()}


def artifacts(record: Record, plots: Mapping[str, Path]) -> Iterator[Artifact]:
    """The files of a run: pictures, Data Docs and certificates."""
    for path in plots.values():
        yield Artifact("plots", path)
    if record.validation.data_docs is not None:
        yield Artifact("data_docs", record.validation.data_docs.parent)
    for name, certificate in record.certificates():
        yield Artifact(f"certificates/{name}", certificate.path)


def parameters(record: Record) -> Iterator[tuple[str, str]]:
    """What the run was configured with, and the selected member's own hyper-parameters if the version is that member.

    Example:
        >>> dict(parameters(record))["train.algorithm"]  # doctest: +SKIP
        'td3_bc'
    """
    yield from record.run.settings()
    if not record.of_fallback:
        yield from named({"seed": record.selected.seed, **record.selected.hyperparameters}, "selected")


def metrics(record: Record) -> Iterator[tuple[str, float]]:
    """The numbers that a reviewer sorts runs by; of the plant's own controller only what is its own."""
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
