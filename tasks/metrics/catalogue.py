"""Definitions of all Prometheus metrics of a home: name, type, labels and meaning.

Times are seconds since 1970; queries compute ages (`time() - …`), as Prometheus recommends, so that a value changes
only with an event. https://prometheus.io/docs/practices/naming"""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["gauge", "counter", "info"]


class Definition(NamedTuple):
    """Definition of a metric: type, names of the labels, and meaning."""

    kind: Kind
    labels: tuple[str, ...]
    help: str


class Sample(NamedTuple):
    """One value of a metric, with the values of its labels."""

    metric: str
    labels: tuple[str, ...]
    """Values of the labels, in the order of the definition."""
    value: float


PLANT = ("plant",)
DATA = ("plant", "data")

METRICS: dict[str, Definition] = {
    "neorl_build_info": Definition("info", ("version",), "Version of NeoRL; always 1."),
    "neorl_service_up": Definition("gauge", ("service",), "1 if a service of the home runs and answers."),
    "neorl_read_errors": Definition(
        "gauge", ("plant", "part"), "1 if a part could not be read; the log of the service has the reason."
    ),
    "neorl_ledger_entries": Definition("gauge", (), "Entries of the ledger."),
    "neorl_ledger_verified": Definition(
        "gauge", (), "1 if signatures, chain and all known heads of the ledger are valid."
    ),
    "neorl_ledger_verification_timestamp_seconds": Definition(
        "gauge", (), "Time of the last verification of the whole ledger. New entries are verified at each read."
    ),
    "neorl_backup_timestamp_seconds": Definition("gauge", (), "Time of the last backup of the home."),
    "neorl_champion_info": Definition(
        "info", ("plant", "version", "role"), "The champion: a trained candidate or the tuned controller; always 1."
    ),
    "neorl_champion_start_timestamp_seconds": Definition("gauge", PLANT, "Start of the champion's period."),
    "neorl_champion_certificate_expiry_timestamp_seconds": Definition(
        "gauge", PLANT, "Time at which the champion's certificate exceeds the age that the safety policy allows."
    ),
    "neorl_shadow_info": Definition("info", ("plant", "version"), "The version in shadow; always 1."),
    "neorl_shadow_end_timestamp_seconds": Definition("gauge", PLANT, "End of the shadow's period."),
    "neorl_shadow_interventions_ratio": Definition(
        "gauge", PLANT, "Share of steps in the newest logs at which the shield would have changed the shadow's action."
    ),
    "neorl_shadow_agreement_ratio": Definition(
        "gauge", PLANT, "Share of steps in the newest logs at which the shadow agrees with the plant's action."
    ),
    "neorl_shadow_support_ratio": Definition(
        "gauge", PLANT, "Share of steps in the newest logs inside the support of the shadow's data."
    ),
    "neorl_candidates_waiting": Definition("gauge", PLANT, "Candidates that wait for a person's decision."),
    "neorl_candidates_waiting_since_timestamp_seconds": Definition(
        "gauge", PLANT, "Time at which the candidate that waits longest began to wait."
    ),
    "neorl_retrainings_total": Definition(
        "counter",
        ("plant", "outcome"),
        "Retrainings by result. `stopped`: ended before the gates were evaluated. Repeated runs are not counted.",
    ),
    "neorl_retraining_timestamp_seconds": Definition("gauge", PLANT, "Time of the last decision of a retraining."),
    "neorl_decisions_total": Definition("counter", ("plant", "kind"), "Decisions about versions by kind of entry."),
    "neorl_drift_evidence_ratio": Definition(
        "gauge", PLANT, "Evidence of drift in the newest monitored window, as a share of the alarm threshold."
    ),
    "neorl_drift_missing_days": Definition(
        "gauge",
        PLANT,
        "Days of further training data until drift of a signal can be monitored; 0 if a signal is monitored.",
    ),
    "neorl_drift_alarm": Definition("gauge", PLANT, "1 if the newest monitored window raised an alarm."),
    "neorl_drift_window_timestamp_seconds": Definition("gauge", PLANT, "Time of the last monitored window."),
    "neorl_drift_alarms_total": Definition("counter", PLANT, "Windows with an alarm, over all champions."),
    "neorl_dataset_info": Definition(
        "info", ("plant", "data", "dataset"), "Digest of the newest dataset and of the dataset in force; always 1."
    ),
    "neorl_dataset_timestamp_seconds": Definition("gauge", DATA, "Creation time of the dataset."),
    "neorl_dataset_read_rows": Definition("gauge", DATA, "Rows read, or control steps of a historian's export."),
    "neorl_dataset_used_rows": Definition("gauge", DATA, "Rows of the dataset."),
    "neorl_dataset_lost_rows": Definition(
        "gauge", (*DATA, "reason"), "Rows or control steps that are not in the dataset, by reason."
    ),
    "neorl_dataset_lost_ratio": Definition(
        "gauge",
        (*DATA, "of"),
        "Share lost by faults. Label `of` names the lost things: `raw_rows`, control steps (`rows`), steps in `gaps`.",
    ),
    "neorl_dataset_samples_ratio": Definition(
        "gauge", (*DATA, "quality"), "Share of archived samples with OPC UA quality good, uncertain or bad."
    ),
    "neorl_dataset_violations_ratio": Definition(
        "gauge", DATA, "Share of a historian's rows whose next observation is beyond a hard limit."
    ),
}
"""Label `data` is `newest` or `in_force`. `in_force` is the dataset of the champion or shadow. `newest` is the newest
dataset, without the files that are also in the dataset in force."""
