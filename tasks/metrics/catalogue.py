"""Every metric that a home has for Prometheus: its name, type, labels and meaning, once.

Moments are told as seconds since 1970, and ages are worked out by who asks (`time() - …`), as Prometheus recommends: so
a number changes only when something happened. https://prometheus.io/docs/practices/naming
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["gauge", "counter", "info"]


class Definition(NamedTuple):
    """A metric."""

    kind: Kind
    labels: tuple[str, ...]
    help: str


class Sample(NamedTuple):
    """A value of a metric."""

    metric: str
    """A name in `METRICS`."""
    labels: tuple[str, ...]
    """Values, in the order of the definition."""
    value: float


PLANT = ("plant",)
DATA = ("plant", "data")

METRICS: dict[str, Definition] = {
    "neorl_build_info": Definition("info", ("version",), "Version of NeoRL that tells these numbers; always 1."),
    "neorl_service_up": Definition("gauge", ("service",), "1 where a service of the home runs and answers."),
    "neorl_read_errors": Definition(
        "gauge", ("plant", "part"), "Parts that could not be read this time; the log of the service says why."
    ),
    "neorl_ledger_entries": Definition("gauge", (), "Entries of the ledger."),
    "neorl_ledger_verified": Definition(
        "gauge", (), "1 where signatures and chain of the ledger hold, and every head that its reports show is its own."
    ),
    "neorl_ledger_verification_timestamp_seconds": Definition(
        "gauge", (), "When the ledger was last verified from its first entry on; newer entries are with each look."
    ),
    "neorl_backup_timestamp_seconds": Definition("gauge", (), "When the home was last backed up."),
    "neorl_champion_info": Definition(
        "info", ("plant", "version", "role"), "The champion: a trained candidate, or the plant's own controller; 1."
    ),
    "neorl_champion_start_timestamp_seconds": Definition("gauge", PLANT, "Since when the champion is in force."),
    "neorl_champion_certificate_expiry_timestamp_seconds": Definition(
        "gauge", PLANT, "When the champion's certificate ceases to meet the plant's safety policy by its age."
    ),
    "neorl_shadow_info": Definition("info", ("plant", "version"), "The version in shadow; always 1."),
    "neorl_shadow_end_timestamp_seconds": Definition("gauge", PLANT, "When the shadow's period ends."),
    "neorl_shadow_interventions_ratio": Definition(
        "gauge", PLANT, "Share of the newest logs' steps at which the shield would have changed what the shadow asked."
    ),
    "neorl_shadow_agreement_ratio": Definition(
        "gauge", PLANT, "Share of the newest logs' steps at which the shadow proposed about what the plant did."
    ),
    "neorl_shadow_support_ratio": Definition(
        "gauge", PLANT, "Share of the newest logs' steps inside the support of the shadow's own data."
    ),
    "neorl_candidates_waiting": Definition("gauge", PLANT, "Candidates that wait for a person's decision."),
    "neorl_candidates_waiting_since_timestamp_seconds": Definition(
        "gauge", PLANT, "Since when the first of them waits."
    ),
    "neorl_retrainings_total": Definition(
        "counter",
        ("plant", "outcome"),
        "Retrainings by what they came to; `stopped` ended before anything was judged. One that found nothing new "
        "leaves no entry.",
    ),
    "neorl_retraining_timestamp_seconds": Definition("gauge", PLANT, "When a retraining last came to a decision."),
    "neorl_decisions_total": Definition("counter", ("plant", "kind"), "Decisions about versions by kind of entry."),
    "neorl_drift_evidence_ratio": Definition(
        "gauge", PLANT, "Evidence of drift in the newest window that was watched, as a share of what raises an alarm."
    ),
    "neorl_drift_alarm": Definition("gauge", PLANT, "1 where the newest window that was watched raised an alarm."),
    "neorl_drift_window_timestamp_seconds": Definition("gauge", PLANT, "When a window was last watched."),
    "neorl_drift_alarms_total": Definition("counter", PLANT, "Windows that raised an alarm, of all champions."),
    "neorl_dataset_info": Definition(
        "info", ("plant", "data", "dataset"), "Digest of the dataset ingested last, and of the one in force; always 1."
    ),
    "neorl_dataset_timestamp_seconds": Definition("gauge", DATA, "When the dataset was made."),
    "neorl_dataset_read_rows": Definition("gauge", DATA, "Rows read, or control steps of a historian's export."),
    "neorl_dataset_used_rows": Definition("gauge", DATA, "Rows of the dataset."),
    "neorl_dataset_lost_rows": Definition(
        "gauge", (*DATA, "reason"), "Rows or control steps that are not in the dataset, by reason."
    ),
    "neorl_dataset_lost_ratio": Definition(
        "gauge",
        (*DATA, "of"),
        "Share lost against anybody's wish: of raw rows and of rows (or control steps), and of control steps in gaps.",
    ),
    "neorl_dataset_samples_ratio": Definition(
        "gauge", (*DATA, "quality"), "Share of archived samples by their OPC UA severity."
    ),
    "neorl_dataset_violations_ratio": Definition(
        "gauge", DATA, "Share of a historian's rows that end beyond a hard limit."
    ),
}
"""`data` is `newest`, the dataset ingested last but for files that the one in force holds, or `in_force`, which the
champion, or of a process the shadow, learned from."""
