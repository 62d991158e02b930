"""What a home tells Prometheus: against dates and counts worked out by hand, and with parts of it broken."""

from __future__ import annotations

import math
import os
import sqlite3
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from configs.home import Home
from tasks.evidence.ledger.ledger import Ledger
from tasks.evidence.policies import PolicyBody
from tasks.evidence.rules import NoteBody, RefusalBody
from tasks.files.canonical import sha256_hex
from tasks.metrics import homes
from tasks.metrics.catalogue import METRICS, Sample
from tasks.metrics.homes import Readings, note_backup
from tasks.references import (
    DecisionRecord,
    DriftRecord,
    Outcome,
    Verdict,
)
from tests import judged
from tests.evidence import DATASET, PLANT, POLICY, crown, forge, judged_record, open_ledger, propose
from tests.tasks.test_accounts import STEPS, frame, made

A, B, C, NEWER = (sha256_hex(name) for name in (b"a", b"b", b"c", b"newer"))
PROCESS = "kettle"
SEVENTH = datetime(2025, 11, 7, 8, tzinfo=UTC)
Told = dict[tuple[str, ...], float]


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = SEVENTH

    def __call__(self) -> datetime:
        return self.now

    def seconds(self) -> float:
        return self.now.timestamp()

    def set(self, *when: int) -> None:
        self.now = datetime(2025, *when, tzinfo=UTC)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(home: Path, clock: Clock) -> Ledger:
    """Version 'b' in place of 'a' from 10 November, 'c' waits from the 12th; a retraining was stopped on the 11th."""
    ledger = open_ledger(Home(home), clock)
    crown(ledger, A)
    clock.set(11, 10, 9)
    crown(ledger, B)
    clock.set(11, 11)
    ledger.append("refusal", RefusalBody(reason="no rows"), plant=PLANT)
    clock.set(11, 12, 6)
    propose(ledger, C)
    ledger.append("decision", decision("waiting"), plant=PLANT)
    clock.set(11, 13)
    return ledger


def decision(verdict: Verdict) -> DecisionRecord:
    outcome = Outcome(
        run="0", run_key="k", plant=PLANT, verdict=verdict, headline="", gates=(), population="", dataset=DATASET
    )
    return DecisionRecord(run_key="k", verdict=verdict, outcome=outcome)


def drift(against: str, evidence: float, alarm: str | None = None) -> DriftRecord:
    return judged.drift_record(against, DATASET, NEWER, log_evidence=evidence, alarm=alarm)


def look(readings: Readings, **up: bool) -> Told:
    """Samples by metric and labels; each is one that the catalogue has, told once."""
    found: Told = {}
    for metric, labels, value in readings.look(lambda: up):
        assert len(labels) == len(METRICS[metric].labels), metric
        assert (metric, *labels) not in found
        found[metric, *labels] = value
    return found


def test_champions_and_queues_are_those_of_the_ledger(ledger: Ledger, clock: Clock) -> None:
    told = look(Readings(ledger.home, clock.seconds), prefect=True, mlflow=False)
    assert told["neorl_champion_info", PLANT, "1", "candidate"] == 1
    assert told["neorl_champion_start_timestamp_seconds", PLANT] == datetime(2025, 11, 10, 9, tzinfo=UTC).timestamp()
    # 3660 days after 10 November 2025, by hand: ten years with leap days 2028 and 2032 are 3652 days, and 8 days more.
    ends = datetime(2035, 11, 18, 9, tzinfo=UTC).timestamp()
    assert told["neorl_champion_certificate_expiry_timestamp_seconds", PLANT] == ends
    assert told["neorl_candidates_waiting", PLANT] == 1
    twelfth = datetime(2025, 11, 12, 6, tzinfo=UTC).timestamp()
    assert told["neorl_candidates_waiting_since_timestamp_seconds", PLANT] == twelfth
    assert told["neorl_retraining_timestamp_seconds", PLANT] == twelfth
    outcomes = {key[2]: value for key, value in told.items() if key[0] == "neorl_retrainings_total" and value}
    assert outcomes == {"waiting": 1, "stopped": 1}
    kinds = {key[2]: value for key, value in told.items() if key[0] == "neorl_decisions_total" and value}
    assert kinds == {"approval": 2, "promotion": 2}
    assert told["neorl_ledger_entries",] == len(ledger.entries())
    assert told["neorl_ledger_verified",] == 1
    assert told["neorl_ledger_verification_timestamp_seconds",] == clock.seconds()
    assert {key[1]: value for key, value in told.items() if key[0] == "neorl_service_up"} == {"prefect": 1, "mlflow": 0}
    assert not any(value for key, value in told.items() if key[0] == "neorl_read_errors")


def test_who_waits_longest_is_told_of_and_a_certificate_counts_by_the_policy_of_now(
    ledger: Ledger, clock: Clock
) -> None:
    propose(ledger, sha256_hex(b"d"))
    last = next(e for e in reversed(ledger.entries()) if e.kind == "policy")
    told = look(Readings(ledger.home, clock.seconds))
    assert told["neorl_candidates_waiting", PLANT] == 2
    twelfth = datetime(2025, 11, 12, 6, tzinfo=UTC).timestamp()
    assert told["neorl_candidates_waiting_since_timestamp_seconds", PLANT] == twelfth
    # A policy that asks for a smaller p0 than the champion's certificate shows: it has none that counts.
    stricter = POLICY.model_copy(update={"p0": POLICY.p0 / 2})
    body = PolicyBody(policy=stricter, by="Ada", why="after an incident", replaces=last.digest)
    ledger.append("policy", body, plant=PLANT)
    told = look(Readings(ledger.home, clock.seconds))
    assert told["neorl_champion_info", PLANT, "1", "candidate"] == 1
    assert ("neorl_champion_certificate_expiry_timestamp_seconds", PLANT) not in told


def test_drift_is_told_of_the_newest_window_against_what_is_in_force(ledger: Ledger, clock: Clock) -> None:
    first, second = ledger.entries("promotion")
    ledger.append("drift", drift(second.digest, 2.0), plant=PLANT)
    ledger.append("drift", drift(first.digest, 20.0, "episode 1, step 5"), plant=PLANT)
    readings = Readings(ledger.home, clock.seconds)
    told = look(readings)
    assert told["neorl_drift_evidence_ratio", PLANT] == pytest.approx(2.0 / math.log(31_557_600))
    assert (told["neorl_drift_alarm", PLANT], told["neorl_drift_alarms_total", PLANT]) == (0, 1)
    clock.set(11, 14)
    ledger.append("drift", drift(second.digest, 18.0, "episode 2, step 5"), plant=PLANT)
    told = look(readings)
    assert (told["neorl_drift_alarm", PLANT], told["neorl_drift_alarms_total", PLANT]) == (1, 2)
    alarmed = clock.seconds()
    assert told["neorl_drift_window_timestamp_seconds", PLANT] == alarmed
    # A window without a block in it could raise none, so it takes none back.
    clock.set(11, 15)
    empty = drift(second.digest, 0.0)
    assert told["neorl_drift_missing_days", PLANT] == 0
    unwatched = empty.signals[0].model_copy(update={"blocks": 0, "needs_days": 11.5})
    ledger.append("drift", empty.model_copy(update={"signals": (unwatched,)}), plant=PLANT)
    told = look(readings)
    assert (told["neorl_drift_alarm", PLANT], told["neorl_drift_window_timestamp_seconds", PLANT]) == (1, alarmed)
    assert told["neorl_drift_missing_days", PLANT] == 11.5


def process_home(ledger: Ledger, folder: Path) -> None:
    """A process in shadow, on logs of which 73 % are beyond a limit; of newer ones none, but six samples lack."""
    dataset, _ = made(folder, frame())
    record = judged_record(PROCESS, A, judged.process_evidence(), shadow_days=30, dataset=dataset)
    candidate = forge(ledger.home, "candidate", record, plant=PROCESS)
    shadow = {"composite": A, "approval": "", "candidate": candidate.digest, "replaces": None, "days": 30}
    begun = forge(ledger.home, "shadow", {**shadow, "version": "1"}, plant=PROCESS)
    comparison = judged.shadow_comparison(begun.digest, DATASET)
    forge(ledger.home, "comparison", comparison, plant=PROCESS)
    (folder / "log.parquet").rename(folder / "first.parquet")
    pressure = np.where(np.arange(STEPS + 1) // 6 == 50, np.nan, frame()["P"].to_numpy())
    newer, _ = made(folder, frame().with_columns(T=50.0, P=pl.Series(pressure)))
    first, second = (folder / "home/datasets/kettle/manifests" / f"{d.digest}.json" for d in (dataset, newer))
    os.utime(first, (1_000, 1_000))
    os.utime(second, (2_000, 2_000))
    (ledger.home.root / "datasets").mkdir(exist_ok=True)
    (folder / "home/datasets/kettle").rename(ledger.home.root / "datasets/kettle")


def test_shadow_and_data_of_a_process(ledger: Ledger, clock: Clock, tmp_path: Path) -> None:
    process_home(ledger, tmp_path)
    told = look(Readings(ledger.home, clock.seconds))
    assert told["neorl_shadow_info", PROCESS, "1"] == 1
    # Thirty days after the 12th, by hand.
    assert told["neorl_shadow_end_timestamp_seconds", PROCESS] == datetime(2025, 12, 12, 6, tzinfo=UTC).timestamp()
    shares = [told[f"neorl_shadow_{name}_ratio", PROCESS] for name in ("interventions", "agreement", "support")]
    assert shares == [0.1, 0.5, 0.9]
    assert told["neorl_drift_evidence_ratio", PROCESS] == pytest.approx(2.0 / math.log(6_311_520))
    assert told["neorl_dataset_violations_ratio", PROCESS, "in_force"] == 0.73
    assert told["neorl_dataset_violations_ratio", PROCESS, "newest"] == 0.0
    assert told["neorl_dataset_timestamp_seconds", PROCESS, "newest"] == 2_000
    assert told["neorl_dataset_lost_ratio", PROCESS, "newest", "raw_rows"] == 6 / (3 * (STEPS + 1))
    lost = sum(value for key, value in told.items() if key[:3] == ("neorl_dataset_lost_rows", PROCESS, "newest"))
    assert told["neorl_dataset_read_rows", PROCESS, "newest"] == STEPS
    assert told["neorl_dataset_used_rows", PROCESS, "newest"] == STEPS - lost < STEPS
    good = [told["neorl_dataset_samples_ratio", PROCESS, "newest", name] for name in ("good", "uncertain", "bad")]
    # A number that is missing is a Bad sample.
    assert good == pytest.approx([1 - 6 / (3 * (STEPS + 1)), 0.0, 6 / (3 * (STEPS + 1))])


def test_every_metric_of_the_catalogue_is_told_by_a_home_that_has_everything(
    ledger: Ledger, clock: Clock, tmp_path: Path
) -> None:
    process_home(ledger, tmp_path)
    note_backup(ledger.home, SEVENTH, 3)
    told = look(Readings(ledger.home, clock.seconds), prefect=True)
    assert told["neorl_backup_timestamp_seconds",] == SEVENTH.timestamp()
    assert {key[0] for key in told} == METRICS.keys()


def test_an_odd_plant_is_counted_and_told_once_and_hides_nothing(ledger: Ledger, clock: Clock, tmp_path: Path) -> None:
    process_home(ledger, tmp_path)
    forge(ledger.home, "drift", {"against": "what no version of ours writes"}, plant=PROCESS)
    for manifest in (ledger.home.root / "datasets" / PROCESS / "manifests").glob("*.json"):
        manifest.chmod(0o600)
        manifest.write_text("{}")
    said: list[str] = []
    readings = Readings(ledger.home, clock.seconds, said.append)
    for _ in range(2):
        told = look(readings)
        errors = {key[1:] for key, value in told.items() if key[0] == "neorl_read_errors" and value}
        assert errors == {(PROCESS, "drift"), (PROCESS, "datasets")}
        assert told["neorl_champion_info", PLANT, "1", "candidate"] == 1
        assert told["neorl_shadow_info", PROCESS, "1"] == 1
        assert not any(key[0].startswith("neorl_drift_") and key[1] == PROCESS for key in told)
    told_of = [line.split(":")[1].strip() for line in said]
    assert told_of == [f"drift of {PROCESS}", f"datasets of {PROCESS}"]


def count_unsealed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Signatures that were verified, so far."""
    counted = [0]
    checked = Ledger._checked

    def counting(self: Ledger, row: object) -> object:
        counted[0] += 1
        return checked(self, row)

    monkeypatch.setattr(Ledger, "_checked", counting)
    return counted


def test_a_look_verifies_what_is_new_and_the_whole_once_an_hour(
    ledger: Ledger, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = len(ledger.entries())
    readings, counted = Readings(ledger.home, clock.seconds), count_unsealed(monkeypatch)
    look(readings)
    assert counted == [size]
    look(readings)
    assert counted == [size]
    ledger.append("note", NoteBody(text="one more"), plant=PLANT)
    counted[0] = 0
    assert look(readings)["neorl_ledger_entries",] == size + 1
    assert counted == [1]
    clock.set(11, 13, 0, 59)
    look(readings)
    assert counted == [1]
    clock.set(11, 13, 1)
    assert look(readings)["neorl_ledger_verification_timestamp_seconds",] == clock.seconds()
    assert counted == [1 + size + 1]


def test_a_ledger_that_was_altered_is_a_number_and_nothing_that_it_says_is_told(
    ledger: Ledger, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    readings = Readings(ledger.home, clock.seconds, said.append)
    look(readings)
    with sqlite3.connect(ledger.home.ledger) as database:
        database.execute("DROP TRIGGER ledger_no_update")
        database.execute("UPDATE ledger SET plant = 'another' WHERE sequence = 2")
    database.close()
    # A row that was read before is read again within the hour.
    assert look(readings)["neorl_ledger_verified",] == 1
    clock.set(11, 13, 1)
    told = look(readings)
    assert told["neorl_ledger_verified",] == 0
    assert told["neorl_read_errors", "", "ledger"] == 1
    assert not any(key[0].startswith(("neorl_champion", "neorl_candidates", "neorl_ledger_entries")) for key in told)
    assert len(said) == 1
    assert "ledger entry 2" in said[0]
    counted = count_unsealed(monkeypatch)
    look(readings)
    assert counted == [0]
    assert homes.TRY_AGAIN < 600
    clock.set(11, 13, 1, 10)
    look(readings)
    assert counted == [2]


def test_a_truncated_ledger_does_not_verify(ledger: Ledger, clock: Clock) -> None:
    report = ledger.home.folder("reports") / "one.html"
    report.write_text(ledger.signed_head())
    with sqlite3.connect(ledger.home.ledger) as database:
        database.execute("DROP TRIGGER ledger_no_delete")
        database.execute("DELETE FROM ledger WHERE sequence = (SELECT MAX(sequence) FROM ledger)")
    database.close()
    assert look(Readings(ledger.home, clock.seconds, lambda _: None))["neorl_ledger_verified",] == 0


def test_a_home_without_a_ledger_or_with_a_broken_record_of_its_backup_tells_the_rest(home: Path, clock: Clock) -> None:
    said: list[str] = []
    (home / "logs").mkdir(parents=True)
    (home / "logs" / "backup.json").write_text('{"made": "yesterday"}')
    told = look(Readings(Home(home), clock.seconds, said.append), prefect=True)
    assert [key for key in told if key[0].startswith("neorl_ledger")] == []
    assert told["neorl_service_up", "prefect"] == 1
    assert told["neorl_read_errors", "", "backup"] == 1
    assert len(said) == 1


def test_reasons_of_losses_beyond_the_tenth_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from tasks.metrics.homes import Scene, _quality
    from tasks.metrics.quality import Quality

    lost = {f"reason {i:02}": 100 - i for i in range(15)}
    found = Quality(dataset=A, sources=1, read=2000, used=0, lost=lost, shares={"rows": 0.5})
    rows = [s for s in _quality(Scene(Home(Path()), [], PLANT), "newest", found, 0.0) if "lost_rows" in s.metric]
    assert len(rows) == 11
    assert rows[-1] == Sample("neorl_dataset_lost_rows", (PLANT, "newest", "other reasons"), 90 + 89 + 88 + 87 + 86)
    assert sum(row.value for row in rows) == sum(lost.values())
