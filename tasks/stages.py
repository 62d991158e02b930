"""Tasks of flows: functions that run as Prefect tasks inside a flow, and as plain functions outside.

A *cached* task has no side effects. Its stored result is reused if neither the arguments nor the source code changed.
An *effect* changes files, the ledger or MLflow, and runs every time. A repeated effect with the same arguments changes
nothing. Pass whole references to a task, because Prefect's graph shows dependencies only between whole references.

A stored result is used only if it is JSON and its seal is valid. The seal is the home's signature of the file's digest.
"""

from __future__ import annotations

import functools
import inspect
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar, cast

from pydantic import BaseModel

from configs.code import UserCode
from configs.errors import NeoRLError
from configs.home import Home
from configs.run import NO_RESULT, OpenedRun
from tasks.files.canonical import digest_json, file_sha256, sha256_hex
from tasks.files.provenance import sources_digest
from tasks.files.stored import is_stored, stored_sha256
from tasks.models.plants.known import run_sources
from tasks.references import Reference

if TYPE_CHECKING:
    from prefect import Task
    from prefect.client.schemas.objects import State

    from tasks.progress import FollowLearning, Report


class Stage(NamedTuple):
    """Name of a task, and whether its results are cached."""

    name: str
    cached: bool


STAGES: dict[str, Stage] = {}
"""Tasks by the full name of their function, filled when modules are imported."""

P = ParamSpec("P")
R = TypeVar("R", bound=Reference)
Modules = Callable[[OpenedRun], Sequence[str]]
Came = Reference | str
"""Result of a task, or the reason for its failure."""


@dataclass
class Session:
    """State that all tasks of one flow run share."""

    probe: Callable[[], object]
    """Checks before each task that the servers answer, because Prefect would continue without its server."""
    seal: Callable[[str, str, str], None]
    """Signs a stored result, given the task's name, the cache key and the SHA-256 of the file."""
    sealed: Callable[[str, str, str], bool]
    """Returns whether a stored result was signed; the arguments are those of `seal`."""
    progress: Callable[[str], AbstractContextManager[Report]]
    """Returns the progress display of a task. Tasks do not import the display, which would change cache keys."""
    learning: FollowLearning
    mlflow: str
    flow_run: str
    url: str
    follow: Callable[[str, Iterable[object]], Callable[[Came], None]] = lambda name, given: lambda came: None
    """Called at the start of a task with its name and arguments; returns a callback for the result."""
    seconds: dict[str, float] = field(default_factory=dict)
    reused: list[str] = field(default_factory=list)
    produced: dict[int, tuple[Reference, State[Any]]] = field(default_factory=dict)
    """Results by `id`, each with the state of its Prefect task run, to link the tasks in Prefect's graph."""

    def upstream(self, values: Iterable[object]) -> list[State[Any]]:
        """Return the states of the Prefect task runs that produced these values or references inside the values."""
        found: list[State[Any]] = []
        for value in values:
            if id(value) in self.produced:
                found.append(self.produced[id(value)][1])
            elif isinstance(value, Reference):
                found += self.upstream(item for _, item in value)
        return found


_session: ContextVar[Session | None] = ContextVar("session", default=None)


@contextmanager
def session(found: Session) -> Iterator[Session]:
    """Run the tasks that are called inside the context as Prefect tasks of this session."""
    token = _session.set(found)
    try:
        yield found
    finally:
        _session.reset(token)


def current() -> Session:
    """Return the session of the running flow.

    Raises:
        RuntimeError: if no flow is running.
    """
    found = _session.get()
    if found is None:
        raise RuntimeError("no flow is running: open a session first")
    return found


PROGRESS = ("progress", "learning")
"""Arguments that the session supplies to show progress. They do not change results, so cache keys leave them out."""


def config_digest(run: OpenedRun) -> str:
    """Return the SHA-256 of all settings that results depend on, including the content of the mapping file."""
    parts = (name for name in OpenedRun.model_fields if name not in NO_RESULT)
    return digest_json(content(run.part(*parts)))


def content(value: object) -> Any:
    """Convert a value to JSON for a cache key. Digests replace files and paths, so that moved files do not matter.

    Returns:
        The digest or the fields of a reference, the SHA-256 of a file, or the fields of another model.
    """
    if isinstance(value, Reference):
        digest = getattr(value, "digest", None)
        return digest or {name: content(item) for name, item in value if not isinstance(item, Path)}
    if isinstance(value, UserCode):
        return value.digest
    if isinstance(value, BaseModel):
        return {name: content(item) for name, item in value}
    if isinstance(value, Path):
        return path_content(value)
    if isinstance(value, Mapping):
        return {str(name): content(item) for name, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [content(item) for item in value]
    if isinstance(value, float):
        return repr(value)
    return value


def path_content(path: Path) -> str:
    """Return the SHA-256 of a file or of all files in a folder; the path if nothing is there."""
    if not is_stored(path):
        return str(path)
    if not path.is_dir():
        return stored_sha256(path)
    files = sorted(file for file in path.rglob("*") if file.is_file())
    return digest_json([[file.relative_to(path).as_posix(), file_sha256(file)] for file in files])


def cached(*, also: Modules | None = None, name: str = "") -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a function a cached task of flows.

    The cache key covers the content of the arguments and the source code of the function's module, its imports and the
    plant's module. The result is computed again if the key changed, a file of the result is missing, or the seal is
    invalid.

    Args:
        also: function of the run that names further modules for the cache key, such as the algorithm's module.
        name: name of the task. Default: the function's name.

    Example:
        >>> @cached()  # doctest: +SKIP
        ... def train(home: Home, run: OpenedRun, dataset: Dataset) -> Population: ...
    """

    def run(running: Session, stage: str, function: Callable[P, R], given: inspect.BoundArguments) -> R:
        given.apply_defaults()
        return _found_or_computed(running, stage, f"{stage}-{_key(function, given, also)}", function, given)

    return _stage(name, True, run)


def effect(*, name: str = "") -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a function a task that changes files, the ledger or MLflow, and runs every time.

    Args:
        name: name of the task. Default: the function's name.
    """

    def run(running: Session, stage: str, function: Callable[P, R], given: inspect.BoundArguments) -> R:
        from prefect.cache_policies import NO_CACHE

        task = _task(stage, function).with_options(cache_policy=NO_CACHE, persist_result=False)
        result: R = _run_task(running, task, given).result()
        return result

    return _stage(name, False, run)


def _stage(
    name: str, cached: bool, run: Callable[[Session, str, Callable[P, R], inspect.BoundArguments], R]
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that runs a function by `run` inside a flow, and directly outside."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        stage = name or function.__name__
        STAGES[f"{function.__module__}.{function.__name__}"] = Stage(stage, cached)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            running = _session.get()
            if running is None:
                return function(*args, **kwargs)
            running.probe()
            started = time.monotonic()
            result = run(running, stage, function, inspect.signature(function).bind(*args, **kwargs))
            running.seconds[stage] = time.monotonic() - started
            return result

        return call

    return decorate


def _key(function: Callable[..., R], given: inspect.BoundArguments, also: Modules | None) -> str:
    arguments = given.arguments
    run = next((value for value in arguments.values() if isinstance(value, OpenedRun)), None)
    modules = [function.__module__, *(also(run) if run is not None and also else ())]
    sources = sources_digest(*modules) if run is None else run_sources(run, *modules)
    parts = {
        name: content(value)
        for name, value in arguments.items()
        if name not in PROGRESS and not isinstance(value, Home)
    }
    return digest_json([parts, sources])[:32]


def _found_or_computed(
    running: Session,
    stage: str,
    key: str,
    function: Callable[..., R],
    given: inspect.BoundArguments,
) -> R:
    """Reuse a valid stored result, or compute the result and seal the file that Prefect stores."""
    from prefect.settings import get_current_settings

    path = get_current_settings().results.local_storage_path / key
    why = _unusable(running, stage, key, path)
    task = _task(stage, function).with_options(
        cache_key_fn=lambda *_: key,
        persist_result=True,
        result_serializer="json",
        cache_result_in_memory=False,
        refresh_cache=why is not None,
    )
    if why:
        _log(f"{stage} is computed again: {why}")
    state = _run_task(running, task, given)
    if state.is_failed():
        # Prefect stores the error of a failed state as if the error were a result.
        path.unlink(missing_ok=True)
    result: R = state.result()
    if state.name == "Cached" and not result.complete:
        gone = next(file for file in result.files() if not is_stored(file))
        _log(f"{stage} is computed again: {gone.name}, a file of its result, is missing")
        state = _run_task(running, task.with_options(refresh_cache=True), given)
        result = state.result()
    if state.name == "Cached":
        running.reused.append(stage)
        _log(f"reused: {result.found}")
    else:
        running.seal(stage, key, file_sha256(path))
    return result


def _run_task(running: Session, task: Task[..., R], given: inspect.BoundArguments) -> State[R]:
    """Run a task to its final state.

    Prefect searches all parts of the arguments for earlier results, and mistakes equal names and small numbers for
    dependencies. To prevent this, clear Prefect's memory of results, quote arguments, and name upstream task runs.
    """
    from prefect.context import FlowRunContext
    from prefect.utilities.annotations import quote

    if context := FlowRunContext.get():
        context.run_results.clear()
    quoted = [quote(value) for value in given.args]
    named = {name: quote(value) for name, value in given.kwargs.items()}
    arguments = [*given.args, *given.kwargs.values()]
    upstream, tell = running.upstream(arguments), running.follow(task.name, arguments)
    state = cast("State[R]", task(*quoted, **named, wait_for=upstream, return_state=True))
    if state.is_completed():
        result: R = state.result()
        running.produced[id(result)] = (result, state)
        tell(result)
    else:
        tell(state.message or state.name or "no message")
    return state


def _unusable(running: Session, stage: str, key: str, path: Path) -> str | None:
    """Return the reason not to use a stored result; None if it is valid or absent."""
    if not path.exists():
        return None
    data = path.read_bytes()
    try:
        kind = json.loads(data)["metadata"]["serializer"]["type"]
    except (ValueError, KeyError, TypeError):
        return f"{path.name} is not a stored result of Prefect"
    if kind != "json":
        return f"{path.name} has serializer {kind!r}, only JSON is read"
    if not running.sealed(stage, key, sha256_hex(data)):
        return f"{path.name} does not have the sealed digest"
    return None


@functools.cache
def _task(stage: str, function: Callable[..., R]) -> Task[..., R]:
    """Return a function as a Prefect task, which shows progress and logs the result in one line."""
    from prefect import Task

    signature = inspect.signature(function)
    wanted = [name for name in PROGRESS if name in signature.parameters]

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> R | State[R]:
        try:
            with ExitStack() as stack:
                bound = signature.bind(*args, **kwargs)
                if "progress" in wanted:
                    bound.arguments["progress"] = stack.enter_context(current().progress(stage))
                if "learning" in wanted:
                    bound.arguments["learning"] = current().learning
                result = function(*bound.args, **bound.kwargs)
        except NeoRLError as error:
            return failed(error)
        _log(result.found)
        return result

    # The type is R, because Prefect replaces a returned state by the state's result.
    return Task(cast("Callable[..., R]", run), name=stage, task_run_name=stage)


def failed(error: NeoRLError) -> State[R]:
    """Return a failed state with the error's message instead of a traceback."""
    from prefect.states import Failed

    return cast("State[R]", Failed(message=str(error), data=error))


def _log(line: str) -> None:
    from prefect import get_run_logger

    get_run_logger().info(line)
