"""Policies in shadow: compared with what the plant did, and let run on by a person."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from configs.errors import Refused
from configs.home import Home
from flows.checks import checked_run, logs_at
from flows.running import without_simulator
from flows.services.locks import plant_lock
from flows.services.servers import connect
from neorl_core.safety.drift_test import LEAST_REFERENCE
from tasks.evidence.decisions import shadows
from tasks.evidence.ledger.ledger import Ledger
from tasks.evidence.people.statement import Signatory, read_payload
from tasks.ingest import ingest
from tasks.lifecycle.aliases import reconcile
from tasks.log_only.shadow_comparison import compare, shadow_of
from tasks.references import Aliases, DriftFinding, Reference, ShadowComparison
from tasks.registry.registry import Registry
from tasks.registry.upload import Artifact
from tasks.registry.version_page import END, split

BEGIN = "### In shadow\n\n"
"""Before what a version's page says of the last comparison: first, for MLflow cuts long descriptions at their end."""


class ShadowOutcome(Reference):
    """What a comparison of a shadow with newer logs came to."""

    plant: str
    version: str
    comparison: ShadowComparison
    entry: str
    """Digest of the ledger entry."""
    picture: Path
    until: str
    """When the shadow's period ends."""


class Extended(Reference):
    """How long a shadow may run on."""

    plant: str
    version: str
    until: str
    aliases: Aliases


def compare_shadow(home: Home, config: Path, data: Sequence[Path]) -> ShadowOutcome:
    """Lay a shadow's proposals beside newer logs; what is found goes into the ledger and onto the version's page.

    Args:
        home: of the ledger.
        config: the run's YAML, which names plant and mapping.
        data: files of newer logs.

    Raises:
        BadInput: when configuration or logs cannot be used.
        Refused: when the plant is simulated, nothing runs in shadow, or it was trained on these logs.
        ServiceMissing: when MLflow does not answer.
    """
    run = checked_run(config)
    if not without_simulator(run):
        raise Refused(
            f"expected a process without a simulator, got {run.plant}, which has one: retrain and certify it."
        )
    logs = logs_at(home, run, data)
    registry = Registry(connect(home).mlflow.url)
    with plant_lock(home, run.plant):
        watched, candidate = shadow_of(Ledger.open(home), run.plant)
        found = compare(home, run, ingest(home, run.part("data"), logs))
        version = registry.version(run.plant, candidate.version)
        registry.attach(version.run_id, [Artifact("shadow", found.picture)])
        _, told = split(version.description)
        rest = told.partition(END)[2] if told.startswith(BEGIN) else told
        text = BEGIN + in_words(found.finding) + END + rest
        registry.annotate(run.plant, candidate.version, {"neorl.shadow_comparison": found.entry.digest}, text)
        reconcile(home, run.plant, registry)
    return ShadowOutcome(
        plant=run.plant,
        version=candidate.version,
        comparison=found.finding,
        entry=found.entry.digest,
        picture=found.picture,
        until=watched.until.isoformat(timespec="seconds"),
    )


def in_words(found: ShadowComparison) -> str:
    """A comparison in a few lines of Markdown."""
    apart = ", ".join(f"{name} {share:.1%}" for name, share in found.difference.items())
    own = f"; {found.left_out} more, of the shadow's own dataset, are left out" if found.left_out else ""
    return "\n".join(
        (
            f"- {found.rows:,} steps of {found.episodes} episodes of newer logs (dataset `{found.dataset[:12]}`){own}.",
            f"- Agreement with what was done at {found.agreement:.1%} of steps; difference of ranges: {apart}.",
            f"- Inside the support of its data at {found.support:.1%}; interventions of the shield at "
            f"{found.interventions:.1%}.",
            f"- One-step error of the learned model under the operator's actions {found.model_error:.2f} times that of "
            "held-out episodes.",
            f"- {_drift_in_words(found.drift)}.",
            "- No return is told of actions that nobody took.",
        )
    )


def _drift_in_words(drift: DriftFinding) -> str:
    """An alarm, none, or that none could be: where there is next to nothing to compare, silence says nothing."""
    if not drift.watched and not drift.blocks:
        return f"**Drift not watched**: no episode of the newer logs is as long as a block of {drift.block_steps} steps"
    if not drift.watched and drift.reference_blocks >= LEAST_REFERENCE:
        return (
            f"**Drift not watched**: the newer logs hold {drift.blocks} blocks of {drift.block_steps} steps, too few "
            "for an alarm: wait for more"
        )
    if not drift.watched:
        return (
            f"**Drift not watched**: the held-out episodes hold {drift.reference_blocks} whole blocks of "
            f"{drift.block_steps} steps to compare with, and {LEAST_REFERENCE} are needed: hold out more or longer ones"
        )
    alarm = f"**Drift alarm** at {drift.alarm}" if drift.alarm else "No drift alarm"
    return (
        f"{alarm}, {drift.blocks} blocks watched: log evidence {drift.log_evidence:.1f} of {drift.log_threshold:.1f}, "
        f"at most {drift.alarms_per_year:g} false alarms a year on average while blocks of {drift.block_steps} steps "
        f"are exchangeable with the {drift.reference_blocks} held-out ones"
    )


def extend(home: Home, plant: str, days: int, by: str, note: str, signatory: Signatory | None = None) -> Extended:
    """Let the shadow of a process run on.

    Args:
        home: of the ledger.
        plant: the plant's name.
        days: from its end on, or from now where it has ended.
        by: who decides.
        note: why, for the record.
        signatory: the person with their key; in the home's name without one.

    Raises:
        Refused: when nothing runs in shadow, the period is too long, or the person has a key and did not sign.
        ServiceMissing: when MLflow does not answer; nothing is recorded then.
    """
    registry, ledger = Registry(connect(home).mlflow.url), Ledger.open(home)
    with plant_lock(home, plant):
        watched, candidate = shadow_of(ledger, plant)
        body = shadows.ExtensionBody(shadow=watched.entry.digest, days=days, by=by, note=note)
        if signatory is not None:
            envelope = signatory.sign(shadows.extension_content(watched.entry, body))
            body = body.model_copy(update={"signature": envelope, "signed": read_payload(envelope)["signed"]})
        ledger.append("extension", body, plant=plant)
        aliases = reconcile(home, plant, registry)
        now, _ = shadow_of(ledger, plant)
    until = now.until.isoformat(timespec="seconds")
    return Extended(plant=plant, version=candidate.version, until=until, aliases=aliases)
