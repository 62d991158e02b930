"""Stages of a flow: cached by content or done every time, timed, and shown with their progress."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.states import State

from tasks.adapters.files.canonical import digest_json
from tasks.progress import StageProgress

Result = dict[str, Any]
FILES = ("path", "curves_path", "summary_path", "quarantine_path", "trajectories", "data_docs")
"""Keys under which results name files."""
Work = Callable[[StageProgress], Result]


def _cache_key(_: Any, parameters: dict[str, Any]) -> str:
    return f"{parameters['stage']}-{parameters['key']}"


@task(cache_key_fn=_cache_key, persist_result=True, result_serializer="json", task_run_name="{stage}")
def computed(stage: str, key: str, work: Work) -> Result:
    """A stage whose result depends on nothing but what its key was made of."""
    with StageProgress(stage) as progress:
        return work(progress)


@task(cache_policy=NO_CACHE, task_run_name="{stage}")
def done(stage: str, work: Work) -> Result:
    """A stage with a side effect, never cached: each is idempotent by content instead."""
    with StageProgress(stage) as progress:
        return work(progress)


class Stages:
    """Runs the stages of one flow run and keeps how long each took, and which were found done.

    Args:
        probe: asked before each stage whether the servers still answer; Prefect itself goes on without its own.
    """

    def __init__(self, probe: Callable[[], object]) -> None:
        self._probe = probe
        self.seconds: dict[str, float] = {}
        self.reused: list[str] = []

    def cached(self, name: str, parts: list[Any], work: Work) -> Result:
        """A pure stage: found by the digest of `parts`, or computed.

        A result whose files have gone is computed again.

        Args:
            name: the stage's.
            parts: everything that the result depends on, as JSON.
            work: computes it, given a progress report.
        """
        self._probe()
        key = digest_json(parts)[:32]
        with_name = computed.with_options(name=name)
        started = time.monotonic()
        state: State[Result] = with_name(name, key, work, return_state=True)
        result: Result = state.result()
        if state.name == "Cached" and not _files_exist(result):
            result = with_name.with_options(refresh_cache=True)(name, key, work)
        elif state.name == "Cached":
            self.reused.append(name)
        self.seconds[name] = time.monotonic() - started
        return result

    def effect(self, name: str, work: Work) -> Result:
        """A stage that changes something outside."""
        self._probe()
        started = time.monotonic()
        result = done.with_options(name=name)(name, work)
        self.seconds[name] = time.monotonic() - started
        return result


def _files_exist(value: Any) -> bool:
    """Whether every file that a result names is still there."""
    if isinstance(value, dict):
        return all(
            (key not in FILES or item is None or Path(item).exists()) and _files_exist(item)
            for key, item in value.items()
            # A source may be taken away once it is ingested.
            if key != "sources"
        )
    if isinstance(value, list):
        return all(_files_exist(item) for item in value)
    return True
