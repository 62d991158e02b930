"""What deployments run besides retraining: each does what a command does, and ends in a sentence in Prefect.

A flow that is refused ends failed, with the reason as its message. Those that people decide by, `promote` and
`rollback`, are in the home's name, as `neorl approve` without a key is: where the plant's policy asks for persons'
keys, they are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from prefect import flow, get_run_logger
from prefect.runtime import flow_run

from configs.errors import BadInput, NeoRLError, Refused, ServiceMissing
from configs.home import Home
from flows.checks import checked_run, logs_at
from flows.monitor import MonitorOutcome, in_words, monitor_plant
from flows.period_report import report_period
from flows.promote import Decided
from flows.promote import approve as approve_candidate
from flows.promote import rollback as roll_back
from flows.retrain import retrain
from flows.running import ending_of, refusals_as_states, tag_run
from flows.services.locks import recorded_run
from flows.services.servers import reap_dead_runs
from flows.shadow import ShadowOutcome, compare_shadow
from flows.shadow import in_words as shadow_in_words
from flows.watch import arrivals, incoming
from tasks.audit_report.tables import PeriodReport
from tasks.conclusion import show_artifact
from tasks.evidence.ledger.ledger import Ledger
from tasks.log_only.drift import NothingNewer, watched_of
from tasks.references import Outcome, Reference

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State

R = TypeVar("R")


class Refilled(Reference):
    """What retraining on one past window came to."""

    window: str
    sources: tuple[str, ...]
    """Files that hold its rows."""
    outcome: Outcome | None
    refused: str = ""
    """Why there is no outcome."""

    def in_words(self) -> str:
        """A line of the flow's log and artifact."""
        return f"{self.window}: {self.outcome.headline if self.outcome else f'refused: {self.refused}'}"


class Backfilled(Reference):
    """What a backfill came to."""

    plant: str
    windows: tuple[Refilled, ...]


def named_by_config() -> str:
    """The flow and what its run's file is named, from the parameters."""
    return f"{flow_run.flow_name} {Path(flow_run.parameters['config']).stem}"


def named_by_plant() -> str:
    """The flow, the plant and the version, from the parameters."""
    return f"{flow_run.flow_name} {flow_run.parameters['plant']} {flow_run.parameters['version']}"


@flow(name="monitor", flow_run_name=named_by_config, persist_result=False)
@refusals_as_states
def monitor(
    config: str, data: list[str] | None = None, alarms_per_year: float | None = None
) -> State[MonitorOutcome | None]:
    """Hold a plant's newest logs against those of its champion, and tell of drift.

    Args:
        config: the run's YAML.
        data: files of newer logs; all that came to the watched folder when not given.
        alarms_per_year: false alarms in a year that are put up with; the run's own when not given.

    Returns:
        What was found, as the state's data; nothing where no newer logs have come.

    Raises:
        NeoRLError: when there is no champion, or the logs cannot be used.
    """
    with _operating(Path(config)) as (home, plant):
        watched_of(Ledger.open(home), plant)
        given = [Path(path) for path in data] if data else [arrival.path for arrival in arrivals(home, plant)]
        if not given:
            return _ended(
                f"nothing to hold against the champion of {plant}: no file has come to {incoming(home)}", None
            )
        try:
            found = monitor_plant(home, Path(config), given, alarms_per_year)
        except NothingNewer:
            if data:
                raise
            return _ended(f"nothing newer to hold against the champion of {plant}: it learned from all that came", None)
        if found.finding.alarm is not None:
            tag_run("drift")
        show_artifact(plant, found.headline, "\n\n".join([*in_words(found.finding), found.url]), "monitor")
        return _ended(found.headline, found)


@flow(name="shadow", flow_run_name=named_by_config, persist_result=False)
@refusals_as_states
def shadow(config: str, data: list[str] | None = None) -> State[ShadowOutcome]:
    """Lay the proposals of a process's shadow beside what the plant did in newer logs.

    Args:
        config: the run's YAML.
        data: files of newer logs; the last that came to the watched folder when not given.

    Returns:
        What was found, as the state's data.

    Raises:
        NeoRLError: when nothing runs in shadow, or the logs cannot be used.
    """
    with _operating(Path(config)) as (home, plant):
        given = [Path(path) for path in data] if data else [arrival.path for arrival in arrivals(home, plant)[-1:]]
        if not given:
            raise BadInput(f"expected newer logs of {plant}, got none: name them, or put a file into {incoming(home)}.")
        found = compare_shadow(home, Path(config), given)
        headline = (
            f"version {found.version} of {plant}, in shadow until {found.until}: agrees at "
            f"{found.comparison.agreement:.1%} of {found.comparison.rows:,} steps"
        )
        show_artifact(plant, headline, shadow_in_words(found.comparison), "shadow")
        return _ended(headline, found)


@flow(name="promote", flow_run_name=named_by_plant, persist_result=False)
@refusals_as_states
def promote(plant: str, version: str, by: str, note: str) -> State[Decided]:
    """Approve a candidate that waits.

    Args:
        plant: the plant's name.
        version: in the registry.
        by: who decides.
        note: why, for the record.

    Returns:
        What the decision came to, as the state's data.

    Raises:
        NeoRLError: when there is no such candidate, a gate failed, or the plant's policy asks for more.
    """
    if not (by.strip() and note.strip()):
        raise BadInput("expected who approves a candidate, and why, got nothing: give 'by' and 'note'.")
    home = Home.locate()
    with recorded_run(home, str(flow_run.id), plant):
        tag_run(plant)
        decided = approve_candidate(home, plant, version, by, note)
        missing = f"; {decided.missing}" if decided.missing else ""
        now = f"in shadow: {decided.shadow}" if decided.shadow else f"champion: {decided.champion}"
        who = f"had been approved before by {decided.standing}" if decided.standing else f"is approved by {by}"
        return _ended(f"version {version} of {plant} {who}, {now}{missing}", decided)


@flow(name="rollback", flow_run_name=named_by_plant, persist_result=False)
@refusals_as_states
def rollback(plant: str, version: str, by: str, why: str) -> State[Decided]:
    """Bring an earlier champion back into service, once all that it rests on has been verified again.

    Args:
        plant: the plant's name.
        version: that was champion before.
        by: who decides.
        why: for the record.

    Returns:
        What the decision came to, as the state's data.

    Raises:
        NeoRLError: when the version never was champion, what it rests on does not hold, or the policy asks for more.
    """
    if not (by.strip() and why.strip()):
        raise BadInput("expected who rolls back, and why, got nothing: give 'by' and 'why'.")
    home = Home.locate()
    with recorded_run(home, str(flow_run.id), plant):
        tag_run(plant)
        decided = roll_back(home, plant, version, by, why)
        return _ended(f"version {version} of {plant} is back in service by {by}: {why}", decided)


@flow(name="report", flow_run_name="report {first} to {last}", persist_result=False)
@refusals_as_states
def report(first: str = "", last: str = "", plant: str | None = None) -> State[PeriodReport]:
    """Write the audit report over a period; over the month before this one when none is given.

    Args:
        first: first day, such as 2026-11-01, in UTC.
        last: last day, included.
        plant: only this one; all of them otherwise.

    Returns:
        The file, as the state's data.

    Raises:
        NeoRLError: when the period is none, there is no ledger, or a check of the audit does not hold.
    """
    home, before = Home.locate(), datetime.now(UTC).date().replace(day=1) - timedelta(days=1)
    try:
        begin = date.fromisoformat(first) if first else before.replace(day=1)
        end = date.fromisoformat(last) if last else (before if not first else datetime.now(UTC).date())
    except ValueError as error:
        raise BadInput(f"expected days such as 2026-11-01, got '{first}' and '{last}': write them so.") from error
    found = report_period(home, begin, end, plant)
    if found.failed:
        raise Refused(
            f"expected every check of the audit to hold, got failures in {', '.join(found.failed)}: read {found.path}."
        )
    return _ended(f"{begin} to {end}: {found.entries} entries of the ledger in {found.path}", found)


@flow(name="backfill", flow_run_name=named_by_config, persist_result=False)
@refusals_as_states
def backfill(config: str, data: list[str], windows: list[str]) -> State[Backfilled]:
    """Retrain a plant on past windows of its logs, one after the other; one that is refused stops none that follow.

    Args:
        config: the run's YAML, with a mapping.
        data: files of logs.
        windows: such as 2026-01-05/2026-01-12, in the order in which they are retrained on.

    Returns:
        What each window came to, as the state's data.

    Raises:
        NeoRLError: when a window is none, the files have no times to cut by, a server does not answer, or no window
            came to a decision.
    """
    from tasks.data.historian.windows import Window, cut
    from tasks.models.plants.opening import mapping_of

    with _operating(Path(config)) as (home, plant):
        run = checked_run(Path(config))
        mapping = mapping_of(run)
        if mapping is None or not windows:
            wanted = "at least one window" if mapping else "a run with a mapping, whose rows have times,"
            raise BadInput(f"expected {wanted} to retrain on, got none: see docs/how-to/operate.md.")
        spans = [Window.parse(window) for window in windows]
        files = cut(logs_at(home, run, [Path(path) for path in data]), mapping, spans, home.folder("backfill", plant))
        found = []
        for span, own in zip(spans, files, strict=True):
            found.append(_refilled(config, str(span), own))
            get_run_logger().info(found[-1].in_words())
        refused = sum(each.outcome is None for each in found)
        headline = f"{len(found)} windows of {plant}, {refused} of them refused"
        show_artifact(plant, headline, "\n".join(f"- {each.in_words()}" for each in found), "backfill")
        if refused == len(found):
            raise Refused(f"expected a window of {plant} to come to a decision, got none: read the flow's log.")
        return _ended(headline, Backfilled(plant=plant, windows=tuple(found)))


def _refilled(config: str, window: str, files: list[Path]) -> Refilled:
    """Retrain on the files of a window, in a run of its own."""
    named = tuple(map(str, files))
    if not files:
        return Refilled(window=window, sources=(), outcome=None, refused="no row of the logs is in it")
    try:
        # The run ends in the state that the flow returns.
        outcome = ending_of(cast("State[Outcome]", retrain(config, list(named), return_state=True)))
    except ServiceMissing:
        raise  # of the windows that follow none would do better
    except NeoRLError as error:
        return Refilled(window=window, sources=named, outcome=None, refused=str(error))
    return Refilled(window=window, sources=named, outcome=outcome)


@contextmanager
def _operating(config: Path) -> Iterator[tuple[Home, str]]:
    """The home and the plant of a run's file; a process that is killed leaves a record by which its run is ended."""
    home, plant = Home.locate(), checked_run(config).plant
    with recorded_run(home, str(flow_run.id), plant):
        reap_dead_runs(home)
        tag_run(plant)
        yield home, plant


def _ended(headline: str, found: R) -> State[R]:
    """End the flow run: its state and its log say what came of it."""
    from prefect.states import Completed

    get_run_logger().info(headline)
    return Completed(message=headline, data=found)
