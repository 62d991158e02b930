"""Monitor drift: compare newer logs with the training data of a plant's champion or shadow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from prefect import flow

from configs.errors import ServiceMissing
from configs.home import Home
from flows.flow_run import completed, operation, refusals_as_states, run_name_by_config, tag_run
from flows.preflight import checked_run, logs_at
from flows.services.events import DRIFTED, WORSENED, Event, announce
from flows.services.locks import plant_lock
from flows.services.servers import connect
from flows.services.state import Services
from flows.services.watched_folder import arrivals, incoming
from tasks.conclusion import show_artifact
from tasks.evidence.ledger.ledger import Ledger
from tasks.ingest import ingest
from tasks.log_only.drift import NothingNewer, watch, watched_of
from tasks.metrics.quality import Quality, Rise, quality_of, read_sources, rises
from tasks.references import Dataset, DriftRecord, Reference, needs_more_days
from tasks.registry.learning import log_numbers
from tasks.registry.registry import Registry

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State

TAG = "neorl.drift"
"""MLflow tag of a version, with the digest of the ledger entry about the last drift check."""


class MonitorOutcome(Reference):
    """Result of one drift check."""

    plant: str
    version: str
    finding: DriftRecord
    entry: str
    quality: Quality | None
    """Data quality of the newer logs, without files of the training data; None if no file remains."""
    worse: tuple[Rise, ...]
    """Shares of lost rows, bad samples or limit violations that rose by more than `shadow.worse_by` of the run."""
    url: str

    @property
    def headline(self) -> str:
        """Summary in one sentence."""
        quality = f"; data are worse: {', '.join(map(str, self.worse))}" if self.worse else ""
        return f"version {self.version} of {self.plant}: {self.finding.found}{quality}"


@flow(name="monitor", flow_run_name=run_name_by_config, persist_result=False)
@refusals_as_states
def monitor(
    config: str, data: list[str] | None = None, alarms_per_year: float | None = None
) -> State[MonitorOutcome | None]:
    """Compare a plant's newest logs with the champion's training data, and report drift.

    Args:
        config: the run's file.
        data: newer log files; by default all files of the plant in the watched folder.
        alarms_per_year: accepted false alarms per year; by default the run's `shadow.alarms_per_year`.

    Returns:
        The final Prefect state, with the result as data, or None if there are no newer logs.

    Raises:
        NeoRLError: if there is no champion, or the logs are unusable.
    """
    with operation(Path(config)) as (home, plant):
        watched_of(Ledger.open(home), plant)
        logs = [Path(path) for path in data] if data else [arrival.path for arrival in arrivals(home, plant)]
        if not logs:
            return completed(f"{incoming(home)} has no logs of {plant}: nothing was compared with the champion", None)
        try:
            outcome = monitor_plant(home, Path(config), logs, alarms_per_year)
        except NothingNewer:
            if data:
                raise
            return completed(f"no newer logs of {plant}: the champion was trained on all of them", None)
        if outcome.finding.alarm is not None:
            tag_run("drift")
        text = "\n\n".join([*drift_lines(outcome.finding), outcome.url])
        show_artifact(plant, outcome.headline, text, "monitor")
        return completed(outcome.headline, outcome)


def monitor_plant(
    home: Home, config: Path, data: Sequence[Path], alarms_per_year: float | None = None
) -> MonitorOutcome:
    """Compare newer logs with the training data of a plant's champion, or of a log-only plant's shadow.

    The finding is appended to the ledger. Prefect receives the event `neorl.drift.detected` for an alarm, and
    `neorl.data.worsened` for worse data quality. A repeated call adds no second entry and no second event.

    Raises:
        BadInput: if configuration or logs are unusable.
        Refused: if there is no champion or shadow, or if that version was trained on these logs.
        ServiceMissing: if a server does not answer; a repeated call completes the remaining steps.
    """
    run = checked_run(config)
    services = connect(home)
    registry = Registry(services.mlflow.url)
    with plant_lock(home, run.plant, "wait"):
        watched = watched_of(Ledger.open(home), run.plant)
        version = registry.version(run.plant, watched.record.version)
        rate = run.shadow.alarms_per_year if alarms_per_year is None else alarms_per_year
        sources = logs_at(home, run, data)
        dataset = ingest(home, run.part("data"), sources)
        entry, finding = watch(home, run, dataset, rate)
        earlier = [e for e in Ledger.open(home).entries("drift", run.plant) if e.body["against"] == finding.against]
        quality, worse = _quality(dataset, watched.record.dataset, run.shadow.worse_by)
        shares = {f"data/{name}": share for name, share in quality.shares.items()} if quality else {}
        numbers = drift_metrics(finding) | shares | {"data/worse": float(len(worse))}
        log_numbers(registry, version.run_id, numbers, [e.digest for e in earlier].index(entry.digest))
        registry.annotate(run.plant, watched.record.version, {TAG: entry.digest})
    files = [str(path.resolve()) for path in sources]
    if finding.alarm is not None:
        payload = {"data": files, "entry": entry.digest, "found": finding.found}
        _announce(services, Event(DRIFTED, run.plant, entry.digest, payload))
    if worse:
        message = f"data of {run.plant} are worse: {', '.join(map(str, worse))}"
        _announce(services, Event(WORSENED, run.plant, entry.digest, {"data": files, "found": message}))
    return MonitorOutcome(
        plant=run.plant,
        version=watched.record.version,
        finding=finding,
        entry=entry.digest,
        quality=quality,
        worse=worse,
        url=registry.version_url(run.plant, watched.record.version),
    )


def _quality(newer: Dataset, trained: Dataset, allowed: float) -> tuple[Quality | None, tuple[Rise, ...]]:
    """Return the quality of the newer logs, and the shares that are worse than in the training data."""
    reference = read_sources(trained.store, trained.digest)
    training_files = frozenset(source.sha256 for source in reference)
    now = quality_of(newer.digest, read_sources(newer.store, newer.digest), training_files)
    before = quality_of(trained.digest, reference)
    return now, rises(now, before, allowed) if now and before else ()


def _announce(services: Services, event: Event) -> None:
    try:
        announce(services, event)
    except OSError as error:
        raise ServiceMissing(
            f"Prefect at {services.prefect.url} did not accept the event {event.name} ({error}): start it with "
            "'neorl up', then repeat the command."
        ) from error


def drift_metrics(finding: DriftRecord) -> dict[str, float]:
    """Return the metrics of a drift check for MLflow, by name. Evidence is a fraction of the alarm threshold."""
    threshold = max(finding.log_threshold, 1e-12)
    watched = [signal for signal in finding.signals if signal not in finding.unwatched]
    metrics = {"drift/rows": float(finding.rows), "drift/watched": len(watched) / len(finding.signals)}
    if finding.watched:
        alarm = float(finding.alarm is not None)
        metrics |= {"drift/alarm": alarm, "drift/evidence": finding.log_evidence / threshold}
    for signal in watched:
        name = f"{signal.group}/{signal.name}".replace("[", "_").replace("]", "")
        metrics[f"drift/evidence/{name}"] = signal.log_evidence / threshold
        metrics[f"drift/shift/{name}"] = signal.shift
    return metrics


def drift_lines(finding: DriftRecord) -> list[str]:
    """Return a drift finding as text: a summary, then the five signals with the strongest evidence."""
    strongest = sorted(finding.signals, key=lambda signal: -signal.log_evidence)[:5]
    left_out = f" ({finding.left_out} of the champion's own episodes left out)" if finding.left_out else ""
    season = "" if finding.season in ("", "none") else f" at the same time of the {finding.season}"
    return [
        finding.found,
        f"compared with the reference{season}; a season of a year is not covered",
        f"dataset {finding.dataset[:12]} against {finding.reference[:12]}{left_out}; prediction by a {finding.model}",
        *(
            f"  {signal.group}: {signal.name} shifted by {signal.shift:+.2f} standard deviations, log evidence "
            f"{signal.log_evidence:.1f}, {signal.blocks} blocks of {signal.block_steps} steps against "
            f"{signal.reference_blocks}{f', {needs_more_days(signal.needs_days)}' if signal.needs_days else ''}"
            for signal in strongest
        ),
    ]
