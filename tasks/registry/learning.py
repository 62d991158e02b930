"""Learning curves in MLflow during training. Each member has one MLflow run, which a resumed training continues.

A background thread sends new points. If the server stops answering, training continues without curves in MLflow.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

import numpy as np

from tasks.references import Learning, RatedMember
from tasks.registry.upload import BATCH, COMPOSITE, CURVE_POINTS

if TYPE_CHECKING:
    from mlflow.entities import Metric

    from tasks.registry.registry import Registry

TRAINING, MEMBER = "neorl.training", "neorl.member"
BETWEEN = 5.0
"""Seconds between updates of the curves; MLflow's pages do not refresh more often."""
ENDED = {True: "FINISHED", False: "FAILED"}


class LearningRuns:
    """MLflow runs of a learner's members; use it as a context manager around training.

    Leaving the context without `end` marks the runs as failed.

    Example:
        >>> with LearningRuns(registry, learning) as runs:  # doctest: +SKIP
        ...     runs.log(curves, 20_000)
        ...     runs.end(np.asarray([True, False]))
    """

    def __init__(self, registry: Registry, learning: Learning) -> None:
        self._registry, self._learning = registry, learning
        self._changed = threading.Condition()
        self._newest: tuple[dict[str, np.ndarray], int] | None = None
        self._ended: list[bool] | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def log(self, curves: Mapping[str, np.ndarray], updates: int) -> None:
        """Queue the current curves, and return at once.

        Args:
            curves: for each metric, values (P, L) of P members at L points; NaN after the current update.
            updates: number of updates of the whole training; the L points are spaced evenly over them.
        """
        with self._changed:
            self._newest = dict(curves), updates
            self._changed.notify()

    def end(self, sound: np.ndarray) -> None:
        """Set the final status of the members' runs: finished if `sound` (P,) is true, otherwise failed."""
        self._ended = [bool(each) for each in sound]

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def _follow(self) -> None:
        try:
            with self._registry.answering():
                ids = self._open()
                sent = [self._sent(run_id) for run_id in ids]
                closing = False
                while not closing:
                    with self._changed:
                        self._changed.wait_for(lambda: self._closing or self._newest is not None)
                        (newest, self._newest), closing = (self._newest, None), self._closing
                    if newest is not None:
                        sent = [self._send(i, run_id, sent[i], *newest) for i, run_id in enumerate(ids)]
                    with self._changed:
                        self._changed.wait_for(lambda: self._closing, timeout=BETWEEN)
                ended = self._ended or [False] * len(ids)
                for run_id, sound in zip(ids, ended, strict=True):
                    self._registry.client.set_terminated(run_id, ENDED[sound])
        except Exception as error:
            # An error of MLflow must not end a training that takes hours.
            said = " ".join(str(error).split())[:300]
            print(f"  train: learning curves do not reach MLflow: {said}", file=sys.stderr, flush=True)

    def _open(self) -> list[str]:
        """Return the ids of the members' runs; create the runs unless an earlier process did."""
        from mlflow.entities import Param

        client, learning = self._registry.client, self._learning
        experiment = self._registry.experiment(learning.plant)
        query = f"tags.`{TRAINING}` = '{learning.key}'"
        found = {run.data.tags.get(MEMBER): run.info for run in client.search_runs([experiment], query)}
        ids = []
        for index, member in enumerate(learning.members):
            known = found.get(str(index))
            if known is None:
                tags = {TRAINING: learning.key, MEMBER: str(index), "neorl.dataset": learning.dataset}
                known = client.create_run(experiment, tags=tags, run_name=member.name).info
                client.log_batch(known.run_id, params=[Param(key, value) for key, value in member.params.items()])
            elif known.status != "RUNNING":
                client.update_run(known.run_id, status="RUNNING")
            ids.append(known.run_id)
        return ids

    def _sent(self, run_id: str) -> int:
        client = self._registry.client
        histories = (client.get_metric_history(run_id, name) for name in client.get_run(run_id).data.metrics)
        return max((point.step for history in histories for point in history), default=0)

    def _send(self, index: int, run_id: str, sent: int, curves: Mapping[str, np.ndarray], updates: int) -> int:
        points = list(self._points(index, sent, curves, updates))
        for start in range(0, len(points), BATCH):
            self._registry.client.log_batch(run_id, metrics=points[start : start + BATCH], synchronous=True)
        return max((point.step for point in points), default=sent)

    def _points(self, index: int, sent: int, curves: Mapping[str, np.ndarray], updates: int) -> Iterator[Metric]:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        for name, values in curves.items():
            rows = len(values[index])
            for row in range(0, rows, max(rows // CURVE_POINTS, 1)):
                step = updates * (row + 1) // rows
                if step > sent and np.isfinite(values[index, row]):
                    yield Metric(name, float(values[index, row]), now, step)


def rate_members(registry: Registry, plant: str, rated: Sequence[RatedMember]) -> None:
    """Log the off-policy evaluation of each member to the member's run, so that MLflow can compare members.

    Raises:
        ServiceMissing: if MLflow stops answering; a rerun completes the log.
    """
    from mlflow.entities import Metric, RunTag

    now = int(time.time() * 1000)
    experiment = registry.experiment(plant)
    with registry.answering():
        for member in rated:
            query = f"tags.`{TRAINING}` = '{member.key}' and tags.`{MEMBER}` = '{member.row}'"
            for run in registry.client.search_runs([experiment], query):
                if run.data.tags.get(COMPOSITE) == member.composite:
                    continue
                told = [Metric(name, value, now, 0) for name, value in member.metrics.items() if np.isfinite(value)]
                registry.client.log_batch(
                    run.info.run_id, metrics=told, tags=[RunTag(COMPOSITE, member.composite)], synchronous=True
                )


def log_numbers(registry: Registry, run_id: str, numbers: Mapping[str, float], step: int) -> None:
    """Log occasional numbers, such as those of drift detection, to a version's run.

    Args:
        numbers: values by name of the metric; values that are not finite are left out.
        step: position on the horizontal axis of the metric's chart.

    Raises:
        ServiceMissing: if MLflow does not answer.
    """
    from mlflow.entities import Metric

    now = int(time.time() * 1000)
    told = [Metric(name, value, now, step) for name, value in numbers.items() if np.isfinite(value)]
    with registry.answering(f"run {run_id}"):
        for start in range(0, len(told), BATCH):
            registry.client.log_batch(run_id, metrics=told[start : start + BATCH], synchronous=True)
