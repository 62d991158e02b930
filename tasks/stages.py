"""Stages: functions that become Prefect tasks inside a flow, and stay plain functions outside of one.

A *cached* stage is pure: it is found again by the content of its arguments and of the source that computes it. An
*effect* changes something outside and runs every time; it is idempotent by content instead. Both keep their function's
own signature, so that a type checker sees every hand-over, and Prefect sees who depends on whom as long as whole
references are passed on.

A cached result is no evidence: it is believed only while the seal that the home's key put on it holds, and only JSON is
ever read.
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
    """What is known of a stage before it runs."""

    name: str
    """Name of its Prefect task."""
    cached: bool


STAGES: dict[str, Stage] = {}
"""Stages by their function's full name, filled as their modules are imported."""

P = ParamSpec("P")
R = TypeVar("R", bound=Reference)
Modules = Callable[[OpenedRun], Sequence[str]]
Came = Reference | str
"""What came of a stage, or why nothing did."""


@dataclass
class Session:
    """What the stages of one flow run share, and what is told of them at its end."""

    probe: Callable[[], object]
    """Asked before each stage whether the servers still answer; Prefect itself goes on without its own."""
    seal: Callable[[str, str, str], None]
    """Signs what a stored result is: (stage, key, SHA-256 of its file)."""
    sealed: Callable[[str, str, str], bool]
    """Whether that is what was signed."""
    progress: Callable[[str], AbstractContextManager[Report]]
    """Shows the progress of a stage, given its name: no import of ours, for how it looks changes no result."""
    learning: FollowLearning
    """Keeps the curves of a learner while it trains."""
    mlflow: str
    """Address of the MLflow server."""
    flow_run: str
    """The flow run's id."""
    url: str
    """Where Prefect's pages show the flow run."""
    follow: Callable[[str, Iterable[object]], Callable[[Came], None]] = lambda name, given: lambda came: None
    """Told of each stage with its arguments as it begins; what it returns is told what came of it."""
    seconds: dict[str, float] = field(default_factory=dict)
    reused: list[str] = field(default_factory=list)
    produced: dict[int, tuple[Reference, State[Any]]] = field(default_factory=dict)
    """What each stage handed on, by identity, with its task run's state: the edges of Prefect's graph."""

    def upstream(self, values: Iterable[object]) -> list[State[Any]]:
        """States of the task runs that some arguments, or the references inside them, came from."""
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
    """Make the stages called inside Prefect tasks of this session."""
    token = _session.set(found)
    try:
        yield found
    finally:
        _session.reset(token)


def current() -> Session:
    """The session that a stage runs in.

    Raises:
        RuntimeError: outside of a flow.
    """
    found = _session.get()
    if found is None:
        raise RuntimeError("expected a stage to run inside a flow, got a plain call: open a session first")
    return found


TOLD = ("progress", "learning")
"""Arguments by which a stage tells how far it is: a session gives them, and they change no result."""


def config_digest(run: OpenedRun) -> str:
    """SHA-256 of all that a run's results depend on in its configuration; a mapping counts by its file's content."""
    parts = (name for name in OpenedRun.model_fields if name not in NO_RESULT)
    return digest_json(content(run.part(*parts)))


def content(value: object) -> Any:
    """What a cache key is made of: digests where there are any, never paths.

    Args:
        value: a stage's argument.

    Returns:
        JSON: a reference's digest, or its fields without its files; a file's SHA-256; other models by their fields.
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
    """What stands for a file or folder in a key: its SHA-256, for a folder that of all files; else its path."""
    if not is_stored(path):
        return str(path)
    if not path.is_dir():
        return stored_sha256(path)
    files = sorted(file for file in path.rglob("*") if file.is_file())
    return digest_json([[file.relative_to(path).as_posix(), file_sha256(file)] for file in files])


def cached(*, also: Modules | None = None, name: str = "") -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a function a cached stage.

    The key covers the arguments' content, and the source of the function's module, of all that it imports and of the
    plant's module. A result is computed again when its source or its arguments changed, a file that it names has gone,
    or its seal does not hold.

    Args:
        also: names further modules whose source has a say, given the run (such as the algorithm's).
        name: the stage's, where it is not the function's.

    Example:
        >>> @cached()  # doctest: +SKIP
        ... def train(home: Home, run: OpenedRun, dataset: Dataset) -> Population: ...
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        stage = name or function.__name__
        STAGES[f"{function.__module__}.{function.__name__}"] = Stage(stage, cached=True)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            running = _session.get()
            if running is None:
                return function(*args, **kwargs)
            running.probe()
            given = inspect.signature(function).bind(*args, **kwargs)
            given.apply_defaults()
            key = f"{stage}-{_key(function, given, also)}"
            started = time.monotonic()
            result = _found_or_computed(running, stage, key, function, given)
            running.seconds[stage] = time.monotonic() - started
            return result

        return call

    return decorate


def effect(*, name: str = "") -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a function a stage that changes something outside: it runs every time.

    Args:
        name: the stage's, where it is not the function's.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        stage = name or function.__name__
        STAGES[f"{function.__module__}.{function.__name__}"] = Stage(stage, cached=False)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            running = _session.get()
            if running is None:
                return function(*args, **kwargs)
            running.probe()
            from prefect.cache_policies import NO_CACHE

            started = time.monotonic()
            task = _task(stage, function).with_options(cache_policy=NO_CACHE, persist_result=False)
            given = inspect.signature(function).bind(*args, **kwargs)
            result: R = _run_task(running, task, given).result()
            running.seconds[stage] = time.monotonic() - started
            return result

        return call

    return decorate


def _key(function: Callable[..., R], given: inspect.BoundArguments, also: Modules | None) -> str:
    arguments = given.arguments
    run = next((value for value in arguments.values() if isinstance(value, OpenedRun)), None)
    modules = [function.__module__, *(also(run) if run is not None and also else ())]
    sources = sources_digest(*modules) if run is None else run_sources(run, *modules)
    parts = {name: content(value) for name, value in arguments.items() if name not in TOLD and not _is_home(value)}
    return digest_json([parts, sources])[:32]


def _is_home(value: object) -> bool:
    return isinstance(value, Home)


def _found_or_computed(
    running: Session,
    stage: str,
    key: str,
    function: Callable[..., R],
    given: inspect.BoundArguments,
) -> R:
    """Let Prefect find a stored result that holds, or compute it and seal what Prefect stored."""
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
        # Prefect stores a returned state's error as if it were a result.
        path.unlink(missing_ok=True)
    result: R = state.result()
    if state.name == "Cached" and not result.complete:
        gone = next(file for file in result.files() if not is_stored(file))
        _log(f"{stage} is computed again: {gone.name}, which its result names, has gone")
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

    Prefect looks for earlier results in every part of the arguments, and takes equal names and small numbers for
    dependencies. So what it remembers of results is forgotten, the arguments are quoted, and the task runs that they
    came from are named.
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
        tell(state.message or state.name or "no word")
    return state


def _unusable(running: Session, stage: str, key: str, path: Path) -> str | None:
    """Why a stored result must not be read; None where it may be, or where there is none."""
    if not path.exists():
        return None
    data = path.read_bytes()
    try:
        kind = json.loads(data)["metadata"]["serializer"]["type"]
    except (ValueError, KeyError, TypeError):
        return f"expected a stored result in {path.name}, got other bytes"
    if kind != "json":
        return f"expected a stored result of JSON in {path.name}, got one marked {kind!r}, which is not read"
    if not running.sealed(stage, key, sha256_hex(data)):
        return f"expected the result that was sealed as {path.name}, got other bytes"
    return None


@functools.cache
def _task(stage: str, function: Callable[..., R]) -> Task[..., R]:
    """The Prefect task of a stage; its progress is shown, and what it found is logged in one line."""
    from prefect import Task

    signature = inspect.signature(function)
    told = [name for name in TOLD if name in signature.parameters]

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> R | State[R]:
        try:
            with ExitStack() as stack:
                bound = signature.bind(*args, **kwargs)
                if "progress" in told:
                    bound.arguments["progress"] = stack.enter_context(current().progress(stage))
                if "learning" in told:
                    bound.arguments["learning"] = current().learning
                result = function(*bound.args, **bound.kwargs)
        except NeoRLError as error:
            return failed(error)
        _log(result.found)
        return result

    # A returned state stands for the result that it holds.
    return Task(cast("Callable[..., R]", run), name=stage, task_run_name=stage)


def failed(error: NeoRLError) -> State[R]:
    """A failed state whose message is the error's sentence: a traceback would tell a user nothing more."""
    from prefect.states import Failed

    return cast("State[R]", Failed(message=str(error), data=error))


def _log(line: str) -> None:
    from prefect import get_run_logger

    get_run_logger().info(line)
