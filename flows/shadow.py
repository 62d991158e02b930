"""Compare the proposals of a log-only plant's shadow with the plant's actions, or extend the shadow's period."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from prefect import flow

from configs.errors import BadInput, Refused
from configs.home import Home
from flows.flow_run import completed, is_log_only, operation, refusals_as_states, run_name_by_config
from flows.preflight import checked_run, logs_at
from flows.services.locks import plant_lock
from flows.services.servers import connect
from flows.services.watched_folder import arrivals, incoming
from tasks.conclusion import show_artifact
from tasks.evidence.decisions import shadows
from tasks.evidence.ledger.ledger import Ledger
from tasks.evidence.people.statement import Signatory, with_signature
from tasks.ingest import ingest
from tasks.lifecycle.aliases import reconcile
from tasks.log_only.shadow_comparison import compare, shadow_of
from tasks.references import Aliases, DriftFinding, Reference, ShadowComparison, needs_more_days
from tasks.registry.reading import END, split
from tasks.registry.registry import Registry
from tasks.registry.upload import Artifact

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State

BEGIN = "### In shadow\n\n"
"""Heading of the last comparison. The comparison is at the top of a version's page, because MLflow cuts long pages."""


class ShadowOutcome(Reference):
    """Result of comparing a shadow with newer logs."""

    plant: str
    version: str
    comparison: ShadowComparison
    entry: str
    picture: Path
    until: str


class Extended(Reference):
    """New end of a shadow's period."""

    plant: str
    version: str
    until: str
    aliases: Aliases


@flow(name="shadow", flow_run_name=run_name_by_config, persist_result=False)
@refusals_as_states
def shadow(config: str, data: list[str] | None = None) -> State[ShadowOutcome]:
    """Compare the proposals of a plant's shadow with the actions in newer logs.

    Args:
        config: the run's file.
        data: newer log files; by default the plant's latest file in the watched folder.

    Returns:
        The final Prefect state, with the comparison as data.

    Raises:
        NeoRLError: if the plant has no shadow, or the logs are unusable.
    """
    with operation(Path(config)) as (home, plant):
        logs = [Path(path) for path in data] if data else [arrival.path for arrival in arrivals(home, plant)[-1:]]
        if not logs:
            raise BadInput(f"{incoming(home)} has no logs of {plant}: pass 'data', or put a file there.")
        outcome = compare_shadow(home, Path(config), logs)
        headline = (
            f"version {outcome.version} of {plant}, in shadow until {outcome.until}: agrees at "
            f"{outcome.comparison.agreement:.1%} of {outcome.comparison.rows:,} steps"
        )
        show_artifact(plant, headline, comparison_markdown(outcome.comparison), "shadow")
        return completed(headline, outcome)


def compare_shadow(home: Home, config: Path, data: Sequence[Path]) -> ShadowOutcome:
    """Compare a shadow's proposals with newer logs; record the result in the ledger and on the version's page.

    Raises:
        BadInput: if configuration or logs are unusable.
        Refused: if the plant is simulated, has no shadow, or the shadow was trained on these logs.
        ServiceMissing: if MLflow does not answer.
    """
    run = checked_run(config)
    if not is_log_only(run):
        raise Refused(f"{run.plant} has a simulator, so it has no shadow: certify it with 'neorl retrain {config}'.")
    logs = logs_at(home, run, data)
    registry = Registry(connect(home).mlflow.url)
    with plant_lock(home, run.plant):
        watched, candidate = shadow_of(Ledger.open(home), run.plant)
        result = compare(home, run, ingest(home, run.part("data"), logs))
        version = registry.version(run.plant, candidate.version)
        registry.attach(version.run_id, [Artifact("shadow", result.picture)])
        _, page = split(version.description)
        rest = page.partition(END)[2] if page.startswith(BEGIN) else page
        text = BEGIN + comparison_markdown(result.finding) + END + rest
        registry.annotate(run.plant, candidate.version, {"neorl.shadow_comparison": result.entry.digest}, text)
        reconcile(home, run.plant, registry)
    return ShadowOutcome(
        plant=run.plant,
        version=candidate.version,
        comparison=result.finding,
        entry=result.entry.digest,
        picture=result.picture,
        until=watched.until.isoformat(timespec="seconds"),
    )


def comparison_markdown(comparison: ShadowComparison) -> str:
    """Return a comparison as a Markdown list."""
    differences = ", ".join(f"{name} {share:.1%}" for name, share in comparison.difference.items())
    left_out = f"; {comparison.left_out} episodes of the shadow's own dataset left out" if comparison.left_out else ""
    return "\n".join(
        (
            f"- Newer logs: {comparison.rows:,} steps in {comparison.episodes} episodes "
            f"(dataset `{comparison.dataset[:12]}`){left_out}.",
            f"- Agreement with the plant's actions at {comparison.agreement:.1%} of steps; RMS difference as "
            f"share of the range: {differences}.",
            f"- Plant's actions inside the support at {comparison.support:.1%} of steps; shield interventions at "
            f"{comparison.interventions:.1%}.",
            f"- One-step error of the learned model: {comparison.model_error:.2f} times that on held-out episodes.",
            f"- {_drift_in_words(comparison.drift)}.",
            "- The return of the proposed actions is unknown, because they were not taken.",
        )
    )


def _drift_in_words(drift: DriftFinding) -> str:
    """Return the drift verdict as text: an alarm, no alarm, or "not monitored" if there are too few data."""
    block = f"blocks of {drift.block_steps} steps"
    if drift.needs_days:
        return f"**Drift {needs_more_days(drift.needs_days)}** in the held-out episodes"
    if not drift.watched and not drift.blocks:
        return f"**Drift not monitored**: no episode of the newer logs has {drift.block_steps} steps (one block)"
    if not drift.watched:
        return f"**Drift not monitored**: {drift.blocks} {block} in the newer logs cannot raise an alarm: wait for more"
    alarm = f"**Drift alarm** at {drift.alarm}" if drift.alarm else "No drift alarm"
    return (
        f"{alarm} in {drift.blocks} blocks: log evidence {drift.log_evidence:.1f}, threshold "
        f"{drift.log_threshold:.1f}. At most {drift.alarms_per_year:g} false alarms per year on average, if {block} "
        f"are exchangeable with the {drift.reference_blocks} held-out blocks"
    )


def extend(home: Home, plant: str, days: int, by: str, note: str, signatory: Signatory | None = None) -> Extended:
    """Extend the period of a plant's shadow by `days` from its end, or from now if the period has ended.

    The other arguments are those of `flows.decisions.approve`.

    Raises:
        Refused: if the plant has no shadow, the period is too long, or the person has a key and did not sign.
        ServiceMissing: if MLflow does not answer; nothing is recorded.
    """
    registry, ledger = Registry(connect(home).mlflow.url), Ledger.open(home)
    with plant_lock(home, plant):
        watched, candidate = shadow_of(ledger, plant)
        body = shadows.ExtensionBody(shadow=watched.entry.digest, days=days, by=by, note=note)
        body = with_signature(body, signatory, shadows.extension_content(watched.entry, body))
        ledger.append("extension", body, plant=plant)
        aliases = reconcile(home, plant, registry)
        extended, _ = shadow_of(ledger, plant)
    until = extended.until.isoformat(timespec="seconds")
    return Extended(plant=plant, version=candidate.version, until=until, aliases=aliases)
