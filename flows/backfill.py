"""Backfill: retrain a plant on several past time windows of its logs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

from prefect import flow, get_run_logger

from configs.errors import BadInput, NeoRLError, Refused, ServiceMissing
from flows.flow_run import completed, operation, refusals_as_states, result_of, run_name_by_config
from flows.preflight import checked_run, logs_at
from flows.retrain import retrain
from tasks.conclusion import show_artifact
from tasks.references import Outcome, Reference

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State


class WindowOutcome(Reference):
    """Result of the retraining on one time window."""

    window: str
    sources: tuple[str, ...]
    outcome: Outcome | None
    refused: str = ""

    def __str__(self) -> str:
        return f"{self.window}: {self.outcome.headline if self.outcome else f'refused: {self.refused}'}"


class BackfillOutcome(Reference):
    """Results of a backfill, in the order of the windows."""

    plant: str
    windows: tuple[WindowOutcome, ...]


@flow(name="backfill", flow_run_name=run_name_by_config, persist_result=False)
@refusals_as_states
def backfill(config: str, data: list[str], windows: list[str]) -> State[BackfillOutcome]:
    """Retrain a plant on several time windows of its logs, in order. After a refusal the next window follows.

    Args:
        config: the run's file, with the key `data.mapping`.
        data: log files.
        windows: BEGIN/END of each window, such as 2026-01-05/2026-01-12 (midnight to midnight, UTC).

    Returns:
        The final Prefect state, with the outcome of each window as data.

    Raises:
        NeoRLError: if a window is invalid, the rows have no timestamps, a server does not answer, or every window
            was refused.
    """
    from tasks.data.historian.windows import Window, cut
    from tasks.models.plants.opening import mapping_of

    with operation(Path(config)) as (home, plant):
        run = checked_run(Path(config))
        mapping = mapping_of(run)
        if mapping is None:
            raise BadInput(f"{config} has no data.mapping, so NeoRL cannot cut the rows by time: add a mapping.")
        if not windows:
            raise BadInput(f"'windows' is empty for {plant}: name at least one window, such as 2026-01-05/2026-01-12.")
        spans = [Window.parse(window) for window in windows]
        files = cut(logs_at(home, run, [Path(path) for path in data]), mapping, spans, home.folder("backfill", plant))
        outcomes = []
        for span, own in zip(spans, files, strict=True):
            outcomes.append(_retrain_window(config, str(span), own))
            get_run_logger().info(str(outcomes[-1]))
        refused = sum(each.outcome is None for each in outcomes)
        headline = f"{len(outcomes)} windows of {plant}, {refused} of them refused"
        show_artifact(plant, headline, "\n".join(f"- {each}" for each in outcomes), "backfill")
        if refused == len(outcomes):
            raise Refused(f"every window of {plant} was refused ({refused}): read the reasons in the flow's log.")
        return completed(headline, BackfillOutcome(plant=plant, windows=tuple(outcomes)))


def _retrain_window(config: str, window: str, files: list[Path]) -> WindowOutcome:
    """Retrain on the log files of one window, in a separate flow run."""
    sources = tuple(map(str, files))
    if not files:
        return WindowOutcome(window=window, sources=(), outcome=None, refused="the logs have no row in this window")
    try:
        outcome = result_of(cast("State[Outcome]", retrain(config, list(sources), return_state=True)))
    except ServiceMissing:
        raise  # the next windows would fail, too
    except NeoRLError as error:
        return WindowOutcome(window=window, sources=sources, outcome=None, refused=str(error))
    return WindowOutcome(window=window, sources=sources, outcome=outcome)
