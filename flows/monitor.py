"""Monitoring: a plant's newest logs beside those of its champion; what is found goes to the ledger and to MLflow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from configs.errors import ServiceMissing
from configs.home import Home
from flows.checks import checked_run, logs_at
from flows.services.events import DRIFTED, WORSENED, Event, announce
from flows.services.locks import plant_lock
from flows.services.servers import connect
from flows.services.state import Services
from tasks.evidence.ledger.ledger import Ledger
from tasks.ingest import ingest
from tasks.log_only.drift import watch, watched_of
from tasks.metrics.quality import Quality, Rise, quality_of, read_sources, rises
from tasks.references import Dataset, DriftRecord, Reference
from tasks.registry.learning import log_numbers
from tasks.registry.registry import Registry

TAG = "neorl.drift"
"""Of a version in MLflow: the digest of the ledger entry of the last window that was held against its data."""


class MonitorOutcome(Reference):
    """What monitoring a window of logs came to."""

    plant: str
    version: str
    """The champion's, or the shadow's."""
    finding: DriftRecord
    entry: str
    """Digest of the ledger entry."""
    quality: Quality | None
    """Of the newer logs, but for files that the champion learned from; none where all of them are such."""
    worse: tuple[Rise, ...]
    """Shares of lost rows, bad samples or violations that are larger than what the run puts up with."""
    url: str
    """Where MLflow shows the numbers."""

    @property
    def headline(self) -> str:
        """What came of it, in a sentence."""
        said = f"; data are worse: {', '.join(map(str, self.worse))}" if self.worse else ""
        return f"version {self.version} of {self.plant}: {self.finding.found}{said}"


def monitor_plant(
    home: Home, config: Path, data: Sequence[Path], alarms_per_year: float | None = None
) -> MonitorOutcome:
    """Hold a window of newer logs against the data of a plant's champion, or of a process's shadow.

    What is found is logged once. On an alarm Prefect is told of the event `neorl.drift.detected`, once, too, and of
    `neorl.data.worsened` where more was lost, bad or beyond limits than the run puts up with.

    Args:
        home: of the ledger.
        config: the run's YAML, which names plant and mapping.
        data: files of newer logs, or datasets of the home.
        alarms_per_year: false alarms in a year that are put up with; the run's `shadow.alarms_per_year` when not given.

    Raises:
        BadInput: when configuration or logs cannot be used.
        Refused: when there is no champion or shadow, or it learned from these logs.
        ServiceMissing: when a server does not answer; what was logged stays, and running again completes the rest.
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
        told = {f"data/{name}": share for name, share in quality.shares.items()} if quality else {}
        numbers = numbers_of(finding) | told | {"data/worse": float(len(worse))}
        log_numbers(registry, version.run_id, numbers, [e.digest for e in earlier].index(entry.digest))
        registry.annotate(run.plant, watched.record.version, {TAG: entry.digest})
    files = [str(path.resolve()) for path in sources]
    if finding.alarm is not None:
        payload = {"data": files, "entry": entry.digest, "found": finding.found}
        _announce(services, Event(DRIFTED, run.plant, entry.digest, payload))
    if worse:
        said = f"data of {run.plant} are worse: {', '.join(map(str, worse))}"
        _announce(services, Event(WORSENED, run.plant, entry.digest, {"data": files, "found": said}))
    return MonitorOutcome(
        plant=run.plant,
        version=watched.record.version,
        finding=finding,
        entry=entry.digest,
        quality=quality,
        worse=worse,
        url=registry.version_url(run.plant, watched.record.version),
    )


def _quality(newer: Dataset, known: Dataset, allowed: float) -> tuple[Quality | None, tuple[Rise, ...]]:
    """The quality of newer logs, and what of it is worse than that of the data which a version learned from."""
    reference = read_sources(known.store, known.digest)
    held = frozenset(source.sha256 for source in reference)
    now = quality_of(newer.digest, read_sources(newer.store, newer.digest), held)
    before = quality_of(known.digest, reference)
    return now, rises(now, before, allowed) if now and before else ()


def _announce(services: Services, event: Event) -> None:
    try:
        announce(services, event)
    except OSError as error:
        raise ServiceMissing(
            f"expected Prefect at {services.prefect.url} to take the event {event.name}, got '{error}': start it with "
            "'neorl up', then give the same command again."
        ) from error


def numbers_of(finding: DriftRecord) -> dict[str, float]:
    """A finding as metrics: the evidence as a share of what an alarm takes, and those of watched signals."""
    bar = max(finding.log_threshold, 1e-12)
    watched = [signal for signal in finding.signals if signal not in finding.unwatched]
    told = {"drift/rows": float(finding.rows), "drift/watched": len(watched) / len(finding.signals)}
    if finding.watched:
        told |= {"drift/alarm": float(finding.alarm is not None), "drift/evidence": finding.log_evidence / bar}
    for signal in watched:
        name = f"{signal.group}/{signal.name}".replace("[", "_").replace("]", "")
        told[f"drift/evidence/{name}"] = signal.log_evidence / bar
        told[f"drift/shift/{name}"] = signal.shift
    return told


def in_words(finding: DriftRecord) -> list[str]:
    """A finding in a few lines: the sentence, and the signals that tell most."""
    most = sorted(finding.signals, key=lambda signal: -signal.log_evidence)[:5]
    left = f", {finding.left_out} of the champion's own left out" if finding.left_out else ""
    return [
        finding.found,
        f"dataset {finding.dataset[:12]} beside {finding.reference[:12]}{left}; one step ahead by a {finding.model}",
        *(
            f"  {signal.group}: {signal.name} moved by {signal.shift:+.2f} deviations, log evidence "
            f"{signal.log_evidence:.1f}, {signal.blocks} blocks of {signal.block_steps} steps beside "
            f"{signal.reference_blocks}"
            for signal in most
        ),
    ]
