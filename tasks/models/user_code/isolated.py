"""Execute a user's algorithm in a process without this one's environment, files and network.

The process lowers the algorithm's functions to StableHLO. This process runs the programs, which can only compute, as
parts of its own training program. It never imports the user's code.
"""

from __future__ import annotations

import atexit
import json
import os
import queue
import re
import select
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import namedtuple
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NoReturn, TypedDict, TypeVar

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jax.export import default_export_platform
from pydantic import Field, ValidationError

from configs.code import UserCode
from configs.errors import BadInput, NeoRLError, Refused, printable
from configs.strict import Count, Name, Strict
from neorl_core.algorithms import ALGORITHMS
from neorl_core.online import LEARNERS
from neorl_core.safety.program import IMPLEMENTATION, ImpureProgram, Program, check_pure, lower, read_program
from neorl_core.training.optimisers import Optimiser, Recipe
from neorl_core.training.population import Algorithm, Metrics
from neorl_core.types import Params, PlantSpec, Transition
from tasks.files.canonical import sha256_hex
from tasks.files.sandbox import HELD, WRITTEN, kill_tree, read_back, restrict
from tasks.files.spec import spec_of_record, spec_record
from tasks.models.user_code.contract import load_algorithm
from tasks.models.user_code.loading import copy_code, tree_of

SECONDS = 600.0
"""Time limit of one answer; checking the example of the documentation takes about 5 s, of which imports take 3 s."""
ANSWER, PRINTED = 2**24, 2**20
"""Limits in bytes of one answer, and of the output before one answer."""
START = f"import sys; sys.path.insert(0, sys.argv[1]); from {__name__} import main; main(sys.argv[2])"
"""Python code of the process: it uses this NeoRL, even if another is installed."""


class _Origin(NamedTuple):
    """Arguments of `init` apart from arrays; they determine the structure of a state."""

    spec: str
    """`spec_record` as JSON."""
    fixed: str
    """Settings that are not arrays, as JSON."""


class _Request(TypedDict, total=False):
    """A request to the process: to describe the algorithm, or to lower a function."""

    function: str
    """Function of the algorithm, or "describe"."""
    spec: str
    """As in `_Origin`."""
    fixed: str
    varied: Sequence[str]
    """Settings that `init` receives as arrays."""
    given: Sequence[str]
    """Fields of the batches that are not None."""
    precision: str | None
    platform: str
    leaves: list[Any]
    """Shape and dtype of each argument."""
    levels: Sequence[tuple[int, list[bool]]]
    """For each `vmap`, from inside: the size, and whether each argument has the axis."""


class _Failed(Strict):
    """An answer of the process, if the user's code failed."""

    error: str
    refused: bool = False


class _Description(Strict):
    """The answer to the request to describe the algorithm."""

    name: Name
    settings: dict[str, Any]
    batches_per_update: Count
    usual_updates: Annotated[int, Field(ge=0)]
    discrete: bool | None
    warm_up: bool


class _Result(Strict):
    """The answer to the request to lower a function."""

    result: list[Any]
    """Tree of the function's result, as `_described` writes it."""


_Answer = TypeVar("_Answer", _Description, _Result)


class _Process:
    """The process of one algorithm. It waits for requests, and ends with this process."""

    def __init__(self, code: UserCode) -> None:
        self.code = code
        self._box = tempfile.TemporaryDirectory(prefix="neorl-")
        self._read = 0
        # Outside the box, where the process cannot replace it.
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  # `close` closes it
        box = Path(self._box.name)
        moved = copy_code(code, box / "code")
        (box / "code.json").write_text(moved.model_dump_json())
        self._popen = subprocess.Popen(
            [sys.executable, "-I", "-c", START, str(Path(__file__).parents[3]), str(box)],
            cwd=box,
            # The process only lowers, on any platform, so it needs no accelerator.
            env={"JAX_TRACEBACK_FILTERING": "off", "JAX_PLATFORMS": "cpu"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            start_new_session=True,
        )
        self.isolation = ""

    @property
    def running(self) -> bool:
        return self._popen.poll() is None and Path(self._box.name).is_dir()

    def ask(self, request: _Request, kind: type[_Answer]) -> tuple[_Answer, bytes]:
        """Return the answer to a request, and the program that belongs to it.

        Raises:
            BadInput: if the user's code fails.
            Refused: if the process ended, took too long, or answered wrongly. Then it is closed.
        """
        try:
            if not self.isolation:
                # The process writes this line before it imports the user's code.
                self.isolation = self._line().decode(errors="replace")
                if not re.fullmatch(HELD, self.isolation):
                    raise Refused(f"{self._name} started with {self.isolation!r}: correct the installation of NeoRL")
            answer = self._answered(request, kind)
            program = Path(self._box.name) / "program.jax"
            data = read_back(program, WRITTEN) if kind is _Result and isinstance(answer, kind) else b""
        except BaseException:
            self.close()
            raise
        if isinstance(answer, _Failed):
            moved, folder = str(Path(self._box.name) / "code"), str(tree_of(self.code).folder)
            text = " ".join(answer.error.replace(moved, folder).split())[:1000]
            raise (Refused if answer.refused else BadInput)(text)
        return answer, data

    def _answered(self, request: _Request, kind: type[_Answer]) -> _Answer | _Failed:
        assert self._popen.stdin is not None
        try:
            self._popen.stdin.write(json.dumps(request).encode() + b"\n")
            self._popen.stdin.flush()
        except BrokenPipeError:
            pass  # the process has ended, which the next lines report
        self._line()
        self._printed()
        data = read_back(Path(self._box.name) / "answer.json", ANSWER)
        with suppress(ValidationError):
            return kind.model_validate_json(data)
        try:
            return _Failed.model_validate_json(data)
        except ValidationError as error:
            shown = repr(data[:80].decode(errors="replace"))
            raise Refused(f"{self._name} answered {shown}: correct the code") from error

    @property
    def _name(self) -> str:
        return f"the isolated process of {tree_of(self.code).file(self.code.module)}"

    def _line(self) -> bytes:
        """Return the next line of the process, up to 100 characters."""
        assert self._popen.stdout is not None
        until, line = time.monotonic() + SECONDS, b""
        while len(line) < 100:
            if not select.select([self._popen.stdout], [], [], max(0.0, until - time.monotonic()))[0]:
                raise Refused(f"{self._name} gave no answer within {SECONDS:g} s: simplify the code")
            sign = os.read(self._popen.stdout.fileno(), 1)
            if not sign:
                said = self._printed().strip().splitlines()
                raise Refused(f"{self._name} ended ({said[-1][:300] if said else 'no message'}): correct the code")
            if sign == b"\n":
                break
            line += sign
        return line

    def _printed(self) -> str:
        """Print the new output of the process here, and return the output."""
        data = os.pread(self._said.fileno(), PRINTED, self._read)
        self._read = os.fstat(self._said.fileno()).st_size
        text = printable(data.decode(errors="replace"))
        sys.stderr.write(text)
        return text

    def close(self) -> None:
        """Kill the process, and remove its folder."""
        kill_tree(self._popen)
        for stream in (self._popen.stdin, self._popen.stdout, self._said):
            if stream:
                with suppress(BrokenPipeError):
                    stream.close()
        self._box.cleanup()


_lock = threading.RLock()
_current: list[_Process] = []


@atexit.register
def end_process() -> None:
    """End the process of the last algorithm; the next request starts a new one."""
    with _lock:
        while _current:
            _current.pop().close()


def _ask(code: UserCode, request: _Request, kind: type[_Answer]) -> tuple[_Answer, bytes]:
    with _lock:
        if not (_current and _current[0].code == code and _current[0].running):
            end_process()
            _current.append(_Process(code))
        return _current[0].ask(request, kind)


class _Lowered(NamedTuple):
    program: Program
    result: list[Any]


class Isolated(NamedTuple):
    """A user's algorithm that runs by the programs of its process."""

    algorithm: Algorithm
    isolation: str
    """Restrictions of the process."""
    programs: Callable[[], dict[str, str]]
    """Return the digest of each program that the process has lowered so far, by the digest of the request."""


def isolated_algorithm(code: UserCode) -> Isolated:
    """Check a user's algorithm in its process.

    Raises:
        BadInput: if the algorithm violates the contract.
        Refused: if the code has changed, or the process ended.
    """
    with _lock:
        answer, _ = _ask(code, {"function": "describe"}, _Description)
        isolation = _current[0].isolation
    place = f"{tree_of(code).file(code.module)}: {code.attribute}"
    known: dict[str, _Lowered] = {}
    origins: dict[Any, _Origin] = {}

    def wrong(problem: str) -> Refused:
        end_process()
        return Refused(f"the isolated process of {place} gave {problem}: correct the code")

    def built(described: list[Any], leaves: Sequence[Any], origin: str = "") -> Any:
        rest = iter(leaves)
        try:
            tree = _built(described, rest, origin)
        except Exception as error:  # the process may describe anything
            raise wrong(f"the result {str(described)[:80]}") from error
        if next(rest, None) is not None:
            raise wrong(f"{len(leaves)} arrays for the result {str(described)[:80]}")
        return tree

    def lowered(request: _Request, results: list[Any] | None = None) -> _Lowered:
        name = json.dumps(request)
        with _lock:
            if name not in known:
                found, data = _ask(code, request, _Result)
                try:
                    program = read_program(data)
                except Exception as error:  # the process may write anything
                    raise wrong(f"{len(data)} bytes that are no program of {request['function']}") from error
                try:
                    known[name] = _Lowered(check_pure(program), found.result)
                except ImpureProgram as error:
                    raise BadInput(f"{place}: {error}: compute with JAX only") from error
            exported = known[name].program.exported
            if _shapes(exported.in_avals) != request["leaves"] or results not in (None, _shapes(exported.out_avals)):
                raise wrong(f"a program of {request['function']} for other arrays")
            if exported.platforms != (request["platform"],) or exported.nr_devices != 1:
                raise wrong(f"a program for {exported.nr_devices} devices of {', '.join(exported.platforms)}")
            return known[name]

    def call(
        function: str, origin: _Origin, arguments: Any, varied: Sequence[str] = (), given: Sequence[str] = ()
    ) -> tuple[list[Any], list[Any]]:
        """Return the leaves of a function's result, and the description of the result."""
        leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(arguments)]
        base: _Request = {
            "function": function,
            "spec": origin.spec,
            "fixed": origin.fixed,
            "varied": varied,
            "given": given,
            "precision": jax.config.jax_default_matmul_precision,  # type: ignore[attr-defined]
            "platform": default_export_platform(),
        }
        found = lowered({**base, "leaves": _shapes(leaves), "levels": []})
        results = _shapes(found.program.exported.out_avals)
        return list(_batched(lowered, base, (), results)(*leaves)), found.result

    def origin_of(state: Any) -> _Origin:
        structure = jax.tree.structure(state)
        if structure not in origins:
            raise ValueError(f"the state is not from init of {answer.name}: call init in this process first")
        return origins[structure]

    def init(key: Any, spec: PlantSpec, config: Any) -> Any:
        settings = config._asdict()
        varied = {name: value for name, value in settings.items() if isinstance(value, jax.Array)}
        fixed = {name: _encoded(name, value) for name, value in settings.items() if name not in varied}
        origin = _Origin(json.dumps(spec_record(spec)), json.dumps(fixed))
        arguments = (jax.random.key_data(key), [varied[name] for name in sorted(varied)])
        leaves, found = call("init", origin, arguments, varied=sorted(varied))
        state = built(found, leaves, sha256_hex(repr(origin).encode()))
        origins[jax.tree.structure(state)] = origin
        return state

    def update(function: str, state: Any, batches: Transition, key: Any) -> tuple[Any, Metrics]:
        arguments = (state, batches, jax.random.key_data(key))
        given = [name for name, value in batches._asdict().items() if value is not None]
        leaves, found = call(function, origin_of(state), arguments, given=given)
        size = len(jax.tree.leaves(state))
        if _shapes(leaves[:size]) != _shapes(map(jnp.asarray, jax.tree.leaves(state))):
            raise wrong(f"a program of {function} that changes the arrays of the state")
        metrics: Metrics = built(found, leaves[size:])
        if not isinstance(metrics, dict):
            raise wrong(f"the metrics {str(found)[:80]}")
        return jax.tree.unflatten(jax.tree.structure(state), leaves[:size]), metrics

    def act(state: Any, observation: Any) -> Any:
        leaves, found = call("act", origin_of(state), (state, observation))
        return built(found, leaves)

    def actor(state: Any) -> Params:
        leaves, found = call("actor", origin_of(state), state)
        weights: Params = built(found, leaves)
        return weights

    if answer.name in {*ALGORITHMS, *LEARNERS}:
        raise wrong(f"the name '{answer.name}' of a built-in algorithm")
    try:
        config = _config(answer)
    except Exception as error:  # the process may answer anything
        raise wrong(f"the settings {str(answer.settings)[:80]}") from error
    algorithm = Algorithm(
        name=answer.name,
        Config=config,
        batches_per_update=answer.batches_per_update,
        init=init,
        update=partial(update, "update"),
        act=act,
        actor=actor,
        warm_up=partial(update, "warm_up") if answer.warm_up else None,
        usual_updates=answer.usual_updates,
        discrete=answer.discrete,
    )

    def programs() -> dict[str, str]:
        return {sha256_hex(name.encode()): found.program.digest for name, found in list(known.items())}

    return Isolated(algorithm, isolation, programs)


def _batched(
    lowered: Callable[[_Request, list[Any]], _Lowered],
    base: _Request,
    levels: tuple[tuple[int, list[bool]], ...],
    results: list[Any],
) -> Callable[..., tuple[Any, ...]]:
    """Return a function that calls a program. JAX cannot vectorise programs, so `vmap` asks for a vectorised one.

    Args:
        results: shapes and dtypes of the results.
    """

    @custom_vmap
    def call(*leaves: Any) -> tuple[Any, ...]:
        program = lowered({**base, "leaves": _shapes(leaves), "levels": levels}, results).program
        return tuple(program.exported.call(*leaves))  # type: ignore[no-untyped-call]

    @call.def_vmap
    def vectorised(size: int, batched: Any, *leaves: Any) -> tuple[Any, Any]:
        vectors = [[[size, *shape], dtype] for shape, dtype in results]
        found = _batched(lowered, base, (*levels, (size, list(batched))), vectors)(*leaves)
        return found, tuple(True for _ in found)

    return call


def _shapes(leaves: Any) -> list[Any]:
    return [[list(leaf.shape), str(leaf.dtype)] for leaf in leaves]


def _encoded(name: str, value: Any) -> Any:
    """Encode a setting as JSON."""
    if isinstance(value, Recipe):
        return {"recipe": value._asdict()}
    if type(value) is tuple:
        return {"tuple": [_encoded(name, item) for item in value]}
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise ValueError(f"{name} of Config must be a number, text, tuple or Recipe, got {type(value).__name__}")


def _decoded(value: Any) -> Any:
    if isinstance(value, dict):
        return Recipe(**value["recipe"]) if "recipe" in value else tuple(map(_decoded, value["tuple"]))
    return value


def _config(described: _Description) -> Any:
    """Return the class of an algorithm's settings."""
    return namedtuple(
        "Config", list(described.settings), defaults=[_decoded(value) for value in described.settings.values()]
    )


def _described(tree: Any) -> Any:
    """Describe the nodes of a tree as JSON; containers of unknown types become NamedTuples."""
    if tree is None:
        return ["none"]
    if isinstance(tree, Recipe):
        return ["recipe", tree._asdict()]
    if isinstance(tree, Optimiser):
        return ["optimiser", [_described(tree.recipe), _described(tree.memory)]]
    if hasattr(tree, "unfreeze"):
        return _described(tree.unfreeze())
    if type(tree) is dict and all(isinstance(name, str) for name in tree):
        return ["dict", {name: _described(tree[name]) for name in sorted(tree)}]
    if type(tree) in (list, tuple):
        return [type(tree).__name__, [_described(item) for item in tree]]
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        if not jax.tree.leaves(tree):
            # A type that the user registered as static. The process knows its value.
            return ["named", type(tree).__name__, [], []]
        if wrong := [name for name in tree._fields if name.startswith("_") or not name.isidentifier()]:
            raise ValueError(f"{type(tree).__name__} has the field {wrong[0]!r}: give each field a name without rename")
        return ["named", type(tree).__name__, list(tree._fields), [_described(item) for item in tree]]
    if jax.tree_util.all_leaves([tree]):
        return ["leaf"]
    children = list(jax.tree_util.default_registry.flatten_one_level(tree)[0])
    names = [f"field_{number}" for number in range(len(children))]
    return ["named", type(tree).__name__, names, [_described(item) for item in children]]


def _built(described: Any, leaves: Iterator[Any], origin: str = "") -> Any:
    """Build a tree from its description and its leaves.

    Args:
        origin: part of the types of NamedTuples, so that only states of one origin have equal structures.
    """
    kind, *rest = described
    if kind == "leaf":
        return next(leaves)
    if kind == "none":
        return None
    if kind == "recipe":
        return Recipe(**rest[0])
    if kind == "dict":
        return {name: _built(item, leaves, origin) for name, item in sorted(rest[0].items())}
    items = [_built(item, leaves, origin) for item in rest[-1]]
    if kind == "named":
        return _named(str(rest[0]), tuple(map(str, rest[1])), origin)(*items)
    return Optimiser(*items) if kind == "optimiser" else tuple(items) if kind == "tuple" else items


@lru_cache(maxsize=1024)
def _named(name: str, fields: tuple[str, ...], origin: str) -> Any:
    return namedtuple(name, fields)


def main(folder: str) -> None:
    """Answer the requests on standard input with `answer.json` and `program.jax` in a folder."""
    box = Path(folder)
    os.umask(0o077)
    os.environ["TMPDIR"] = folder
    isolation = restrict(box, Path(__file__).parents[3])
    # The parent reads this line, and one line for each answer; prints of the user's code go to its standard error.
    answers = os.dup(1)
    os.dup2(2, 1)
    os.write(answers, f"{isolation}\n".encode())
    requests: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(requests,), daemon=True).start()
    code = UserCode.model_validate_json((box / "code.json").read_bytes())
    sys.path.insert(0, str(box / "code"))
    loaded: list[Algorithm] = []
    while True:
        request = json.loads(requests.get())
        answer: _Failed | _Description | _Result
        try:
            if not loaded:
                loaded.append(load_algorithm(code))
            if request["function"] == "describe":
                answer = _description(loaded[0])
            else:
                answer, data = _lower(loaded[0], request)
                (box / "program.jax").write_bytes(data)
        except NeoRLError as error:
            answer = _Failed(error=str(error), refused=isinstance(error, Refused))
        except Exception as error:
            # Any exception of user code is a fault of that code.
            text = " ".join(str(error).split())[:300].rstrip(".")
            answer = _Failed(error=f"in {_place(error, code)}, {type(error).__name__}: {text}: correct it")
        sys.stdout.flush()
        (box / "answer.json").write_text(answer.model_dump_json())
        os.write(answers, b"\n")


def _receive(requests: queue.SimpleQueue[str]) -> NoReturn:
    """Pass on the requests, and exit when the parent ends, even if the user's code is busy."""
    for line in sys.stdin:
        requests.put(line)
    os._exit(0)


def _place(error: BaseException, code: UserCode) -> str:
    """Return the last line of the user's code in an error's traceback, or the name of the algorithm."""
    tree = tree_of(code)
    lines = [
        f"{frame.filename} line {frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).is_relative_to(tree.folder)
    ]
    return lines[-1] if lines else f"{tree.file(code.module)}: {code.attribute}"


def _description(algorithm: Algorithm) -> _Description:
    settings = algorithm.Config()._asdict()
    return _Description(
        name=algorithm.name,
        settings={name: _encoded(name, value) for name, value in settings.items()},
        batches_per_update=algorithm.batches_per_update,
        usual_updates=algorithm.usual_updates,
        discrete=algorithm.discrete,
        warm_up=algorithm.warm_up is not None,
    )


def _lower(algorithm: Algorithm, request: _Request) -> tuple[_Result, bytes]:
    """Lower one function of an algorithm, vectorised as requested."""
    spec = spec_of_record(json.loads(request["spec"]))
    config = algorithm.Config(**{name: _decoded(value) for name, value in json.loads(request["fixed"]).items()})
    described: list[Any] = []

    def start(key: Any, values: Any = ()) -> Any:
        varied = dict(zip(request.get("varied", ()), values, strict=False))
        return algorithm.init(jax.random.wrap_key_data(key, impl=IMPLEMENTATION), spec, config._replace(**varied))

    def flat(*leaves: Any) -> tuple[Any, ...]:
        if request["function"] == "init":
            found = start(leaves[0], leaves[1:])
            described[:] = [_described(jax.eval_shape(lambda: found))]
            return tuple(jax.tree.leaves(found))
        fresh = jax.eval_shape(start, _shape([2], "uint32"))
        size, structure = len(jax.tree.leaves(fresh)), jax.tree.structure(fresh)
        state, rest = jax.tree.unflatten(structure, leaves[:size]), leaves[size:]
        if request["function"] in ("act", "actor"):
            found = getattr(algorithm, request["function"])(state, *rest)
            described[:] = [_described(found)]
            return tuple(jax.tree.leaves(found))
        key = jax.random.wrap_key_data(rest[-1], impl=IMPLEMENTATION)
        batches = Transition(**{**dict.fromkeys(Transition._fields), **dict(zip(request["given"], rest, strict=False))})
        after, metrics = getattr(algorithm, request["function"])(state, batches, key)
        if jax.tree.map(lambda _: 0, after) != jax.tree.map(lambda _: 0, state):
            name = request["function"]
            raise ValueError(f"{name} must return a state with the same arrays as its argument")
        described[:] = [_described(metrics)]
        return (*jax.tree.leaves(after), *jax.tree.leaves(metrics))

    function: Callable[..., tuple[Any, ...]] = flat
    for size, batched in request["levels"]:
        function = jax.vmap(function, in_axes=tuple(0 if axis else None for axis in batched), axis_size=size)
    with jax.default_matmul_precision(request["precision"]):
        program = lower(function, *(_shape(*leaf) for leaf in request["leaves"]), platform=request["platform"])
    return _Result(result=described[0]), program.serialise()


def _shape(shape: list[int], dtype: str) -> Any:
    return jax.ShapeDtypeStruct(tuple(shape), jnp.dtype(dtype))  # type: ignore[no-untyped-call]
