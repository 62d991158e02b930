"""Read all metrics of a home and its plants. An error in one plant does not hide the metrics of other plants."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property, partial
from importlib import metadata
from pathlib import Path
from typing import NamedTuple, get_args

from pydantic import BaseModel, ConfigDict

from configs.home import Home
from tasks.data.store.records import SourceRecord
from tasks.evidence.decisions.champions import champion
from tasks.evidence.decisions.queue import record_of, waiting
from tasks.evidence.decisions.shadows import shadow
from tasks.evidence.ledger.entry import Entry
from tasks.evidence.ledger.ledger import Ledger
from tasks.evidence.ledger.signing import report_heads
from tasks.evidence.policies import certified_claims, expires, policy_of, unmet_requirement
from tasks.files.canonical import write_json
from tasks.metrics.catalogue import Sample
from tasks.metrics.quality import Quality, Share, quality_of, read_sources
from tasks.references import DecisionRecord, DriftFinding, DriftRecord, ShadowComparison, Verdict

VERIFY_AGAIN = 3600.0
"""Seconds between verifications of the whole ledger; in between only new entries are verified."""
TRY_AGAIN = 300.0


class LastBackup(BaseModel):
    """Record of a home's last backup."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    made: datetime
    entries: int


class Readings:
    """Reader of a home's metrics, which may read many times.

    Args:
        say: called with a message if a part cannot be read, once for each error.
    """

    def __init__(self, home: Home, clock: Callable[[], float], say: Callable[[str], None] | None = None) -> None:
        self._home, self._clock = home, clock
        self._say = say or (lambda line: print(line, file=sys.stderr, flush=True))
        self._ledger: Ledger | None = None
        self._verified_at, self._until = 0.0, 0.0
        self._head, self._known = "", dict[tuple[str, str], list[Sample]]()
        self._datasets = Datasets()
        self._told: dict[tuple[str, str], str] = {}

    def look(self, services: Callable[[], Mapping[str, bool]]) -> Iterator[Sample]:
        """Yield all current samples.

        Args:
            services: returns by name whether each service answers.
        """
        yield Sample("neorl_build_info", (metadata.version("neorl"),), 1.0)
        yield from self._part("", "services", lambda: _services(services()))
        yield from self._part("", "backup", lambda: _backup(self._home))
        entries = self._entries()
        yield from self._ledger_samples(entries)
        head = entries[-1].digest if entries else ""
        if head != self._head:
            self._head, self._known = head, {}
        for plant in sorted(self._plants(entries or ())):
            scene = Scene(self._home, entries or (), plant)
            for name in FROM_LEDGER if entries else ():
                yield from self._of_ledger(scene, name)
            yield from self._part(plant, "datasets", partial(self._datasets, scene))

    def _entries(self) -> Sequence[Entry] | None:
        """Return the verified entries, an empty sequence without a ledger, or None if the ledger is invalid."""
        now = self._clock()
        if now >= self._until:
            self._ledger = None
        elif self._ledger is None:
            return None
        try:
            if self._ledger is None:
                if not Ledger.exists(self._home):
                    return ()
                found = Ledger.open(self._home, write=False)
                found.verify(report_heads(self._home))
                self._ledger, self._verified_at, self._until = found, now, now + VERIFY_AGAIN
                self._head = ""  # the pinned keys may have changed
            entries = self._ledger.entries()
        # A metric reports an invalid ledger; the service must go on.
        except Exception as error:
            self._ledger, self._until = None, now + TRY_AGAIN
            self._tell("", "ledger", error)
            return None
        self._tell("", "ledger", None)
        return entries

    def _ledger_samples(self, entries: Sequence[Entry] | None) -> Iterator[Sample]:
        if entries is None:
            yield Sample("neorl_ledger_verified", (), 0.0)
            yield Sample("neorl_read_errors", ("", "ledger"), 1.0)
        elif entries:
            yield Sample("neorl_ledger_entries", (), float(len(entries)))
            yield Sample("neorl_ledger_verified", (), 1.0)
            yield Sample("neorl_ledger_verification_timestamp_seconds", (), self._verified_at)
            yield Sample("neorl_read_errors", ("", "ledger"), 0.0)

    def _plants(self, entries: Iterable[Entry]) -> set[str]:
        stores = (self._home.root / "datasets").glob("*/manifests")
        return {entry.plant for entry in entries if entry.plant} | {path.parent.name for path in stores}

    def _of_ledger(self, scene: Scene, name: str) -> Iterator[Sample]:
        """Yield the samples of a part, which are cached until the ledger grows."""
        key = (scene.plant, name)
        if key not in self._known:
            self._known[key] = list(self._part(scene.plant, name, partial(FROM_LEDGER[name], scene)))
        yield from self._known[key]

    def _part(self, plant: str, name: str, read: Callable[[], Iterable[Sample]]) -> Iterator[Sample]:
        """Yield all samples of a part, or none after an error, and a sample that reports the error."""
        try:
            found = list(read())
        # A fault of one plant must not hide the others.
        except Exception as error:
            self._tell(plant, name, error)
            yield Sample("neorl_read_errors", (plant, name), 1.0)
            return
        self._tell(plant, name, None)
        yield Sample("neorl_read_errors", (plant, name), 0.0)
        yield from found

    def _tell(self, plant: str, name: str, error: Exception | None) -> None:
        said = " ".join(f"{type(error).__name__}: {error}".split()) if error else ""
        if said and self._told.get((plant, name)) != said:
            self._say(f"not read: {name}{f' of {plant}' if plant else ''}: {said}")
        self._told[plant, name] = said


def note_backup(home: Home, made: datetime, entries: int) -> None:
    """Record the time of a backup in the folder of logs, which backups do not contain."""
    home.folder("logs")
    write_json(_backup_file(home), LastBackup(made=made, entries=entries).model_dump(mode="json"))


def _backup_file(home: Home) -> Path:
    return home.root / "logs" / "backup.json"


def _backup(home: Home) -> Iterator[Sample]:
    if (path := _backup_file(home)).exists():
        found = LastBackup.model_validate_json(path.read_bytes())
        yield Sample("neorl_backup_timestamp_seconds", (), found.made.timestamp())


def _services(answers: Mapping[str, bool]) -> Iterator[Sample]:
    for name, up in answers.items():
        yield Sample("neorl_service_up", (name,), float(up))


STOPPED = "stopped"
DECISIONS = ("approval", "rejection", "promotion", "shadow", "rollback", "withdrawal")
MOST_REASONS = 10
"""Largest number of loss reasons with their own time series, most rows first."""


class Scene:
    """The ledger entries of one plant at one time, from which metrics are computed."""

    def __init__(self, home: Home, entries: Sequence[Entry], plant: str) -> None:
        self.home, self.entries, self.plant = home, entries, plant
        self.own = [entry for entry in entries if entry.plant == plant]

    @cached_property
    def in_force(self) -> Entry | None:
        """The promotion or rollback in force; for a log-only plant its last shadow."""
        found = shadow(self.entries, self.plant)
        return champion(self.entries, self.plant) or (found.entry if found else None)

    @cached_property
    def learned_from(self) -> str | None:
        """Digest of the dataset of the version in force."""
        if self.in_force is None:
            return None
        candidate = next(entry for entry in self.own if entry.digest == self.in_force.body["candidate"])
        return record_of(candidate).dataset.digest

    def sample(self, metric: str, value: float, *labels: str) -> Sample:
        """Return a sample of this plant."""
        return Sample(metric, (self.plant, *labels), float(value))


Part = Callable[[Scene], Iterator[Sample]]


def versions(scene: Scene) -> Iterator[Sample]:
    """Yield samples of champion, certificate and shadow."""
    plant = scene.plant
    if (now := champion(scene.entries, plant)) is not None:
        candidate = next(entry for entry in scene.own if entry.digest == now.body["candidate"])
        record = record_of(candidate)
        yield scene.sample("neorl_champion_info", 1, record.version, record.role)
        yield scene.sample("neorl_champion_start_timestamp_seconds", _seconds(now))
        if policy := policy_of(scene.entries, plant):
            claims = certified_claims(scene.entries, plant, record.composite)
            met = [result for result, claim in claims if unmet_requirement(policy, claim) is None]
            ends = [expires(result, policy.certificate_days) for result in met]
            if ends:
                yield scene.sample("neorl_champion_certificate_expiry_timestamp_seconds", max(ends).timestamp())
    if (found := shadow(scene.entries, plant)) is not None:
        yield scene.sample("neorl_shadow_info", 1, str(found.entry.body["version"]))
        yield scene.sample("neorl_shadow_end_timestamp_seconds", found.until.timestamp())


def decisions(scene: Scene) -> Iterator[Sample]:
    """Yield samples of waiting candidates, retrainings and decisions."""
    queue = waiting(scene.entries, scene.plant)
    yield scene.sample("neorl_candidates_waiting", len(queue))
    if queue:
        yield scene.sample("neorl_candidates_waiting_since_timestamp_seconds", _seconds(queue[0]))
    concluded = [entry for entry in scene.own if entry.kind == "decision"]
    outcomes = [str(entry.read(DecisionRecord).verdict) for entry in concluded]
    outcomes += [STOPPED for entry in scene.own if entry.kind == "refusal"]
    # Include zeros: Prometheus sees no increase in a series that starts with its first event.
    for outcome in (*get_args(Verdict), STOPPED):
        yield scene.sample("neorl_retrainings_total", outcomes.count(outcome), outcome)
    if concluded:
        yield scene.sample("neorl_retraining_timestamp_seconds", _seconds(concluded[-1]))
    for kind in DECISIONS:
        yield scene.sample("neorl_decisions_total", sum(entry.kind == kind for entry in scene.own), kind)


AGAINST = {"drift": "against", "comparison": "shadow"}
"""Kinds of entries about drift, and their fields with the digest of the version that is compared."""


class _Window(NamedTuple):
    """Newer logs compared with the data of a version."""

    entry: Entry
    against: str
    evidence: float
    threshold: float
    alarm: bool


def drift(scene: Scene) -> Iterator[Sample]:
    """Yield samples of the newest monitored window of the version in force, and the number of all alarms."""
    windows = list(_windows(scene.own))
    yield scene.sample("neorl_drift_alarms_total", sum(window.alarm for window in windows))
    now = scene.in_force.digest if scene.in_force else None
    compared = [e for e in scene.own if e.kind in AGAINST and e.body[AGAINST[e.kind]] == now]
    if compared:
        yield scene.sample("neorl_drift_missing_days", _missing_days(compared[-1]))
    newest = next((window for window in reversed(windows) if window.against == now), None)
    if newest is not None:
        # The log threshold is 0 if an alarm at each step is accepted.
        yield scene.sample("neorl_drift_evidence_ratio", newest.evidence / max(newest.threshold, 1e-12))
        yield scene.sample("neorl_drift_alarm", newest.alarm)
        yield scene.sample("neorl_drift_window_timestamp_seconds", _seconds(newest.entry))


def shadows(scene: Scene) -> Iterator[Sample]:
    """Yield the results of the shadow's last comparison with newer logs."""
    now = shadow(scene.entries, scene.plant)
    told = [entry for entry in scene.own if entry.kind == "comparison"]
    found = next((e for e in reversed(told) if now and e.body["shadow"] == now.entry.digest), None)
    if found is not None:
        comparison = found.read(ShadowComparison)
        yield scene.sample("neorl_shadow_interventions_ratio", comparison.interventions)
        yield scene.sample("neorl_shadow_agreement_ratio", comparison.agreement)
        yield scene.sample("neorl_shadow_support_ratio", comparison.support)


class Datasets:
    """Samples of the newest dataset and of the dataset in force. Manifests cannot change, so each is read once."""

    def __init__(self) -> None:
        self._read: dict[str, tuple[SourceRecord, ...]] = {}

    def __call__(self, scene: Scene) -> Iterator[Sample]:
        """Yield samples of the two datasets of a plant."""
        store = scene.home.root / "datasets" / scene.plant
        made = {path.stem: path.stat().st_mtime for path in store.glob("manifests/*.json")}
        held: frozenset[str] = frozenset()
        if (in_force := scene.learned_from) is not None and in_force in made:
            sources = self._sources(scene, in_force)
            held = frozenset(source.sha256 for source in sources)
            yield from _quality(scene, "in_force", quality_of(in_force, sources), made[in_force])
        newest = max(made, key=lambda digest: (made[digest], digest), default=None)
        if newest is not None:
            # If the dataset in force contains all files of the newest dataset, the newest is reported completely.
            found = quality_of(newest, self._sources(scene, newest), held)
            found = found or quality_of(newest, self._sources(scene, newest))
            yield from _quality(scene, "newest", found, made[newest])

    def _sources(self, scene: Scene, digest: str) -> tuple[SourceRecord, ...]:
        if digest not in self._read:
            self._read[digest] = read_sources(scene.home.root / "datasets" / scene.plant, digest)
        return self._read[digest]


def _quality(scene: Scene, data: str, found: Quality | None, made: float) -> Iterator[Sample]:
    if found is None:
        return
    yield scene.sample("neorl_dataset_info", 1, data, found.dataset)
    yield scene.sample("neorl_dataset_timestamp_seconds", made, data)
    yield scene.sample("neorl_dataset_read_rows", found.read, data)
    yield scene.sample("neorl_dataset_used_rows", found.used, data)
    most = sorted(found.lost.items(), key=lambda item: (-item[1], item[0]))
    for reason, count in most[:MOST_REASONS]:
        yield scene.sample("neorl_dataset_lost_rows", count, data, reason)
    if rest := most[MOST_REASONS:]:
        yield scene.sample("neorl_dataset_lost_rows", sum(count for _, count in rest), data, "other reasons")
    of: tuple[Share, ...] = ("raw_rows", "rows", "gaps")
    for share in of:
        if share in found.shares:
            yield scene.sample("neorl_dataset_lost_ratio", found.shares[share], data, share)
    if "bad" in found.shares:
        bad, uncertain = found.shares["bad"], found.shares["uncertain"]
        for quality, value in (("good", 1.0 - bad - uncertain), ("uncertain", uncertain), ("bad", bad)):
            yield scene.sample("neorl_dataset_samples_ratio", value, data, quality)
        yield scene.sample("neorl_dataset_violations_ratio", found.shares["violations"], data)


def _missing_days(entry: Entry) -> float:
    """Return the days of further training data until a signal can be monitored."""
    if entry.kind == "comparison":
        return entry.read(ShadowComparison).drift.needs_days or 0.0
    return min(signal.needs_days or 0.0 for signal in entry.read(DriftRecord).signals)


def _windows(entries: Sequence[Entry]) -> Iterator[_Window]:
    """Yield windows with enough blocks for an alarm. Shorter windows are left out, because they must not reset one."""
    for entry in entries:
        if entry.kind == "drift":
            found: DriftRecord | DriftFinding = entry.read(DriftRecord)
            against = entry.body["against"]
        elif entry.kind == "comparison":
            found, against = entry.read(ShadowComparison).drift, entry.body["shadow"]
        else:
            continue
        if found.watched:
            yield _Window(entry, against, found.log_evidence, found.log_threshold, found.alarm is not None)


def _seconds(entry: Entry) -> float:
    return datetime.fromisoformat(entry.timestamp).timestamp()


FROM_LEDGER: dict[str, Part] = {"versions": versions, "decisions": decisions, "drift": drift, "shadows": shadows}
"""Parts that depend on the ledger only, so they are cached until its head changes."""
