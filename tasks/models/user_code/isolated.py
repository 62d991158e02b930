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
import traceback
from collections import namedtuple
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypedDict

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jax.export import default_export_platform

from configs.code import UserCode
from configs.errors import BadInput, NeoRLError, Refused
from configs.strict import NAME
from neorl_core.algorithms import ALGORITHMS
from neorl_core.online import LEARNERS
from neorl_core.safety.program import IMPLEMENTATION, ImpureProgram, Program, check_pure, lower, read_program
from neorl_core.training.optimisers import Optimiser, Recipe
from neorl_core.training.population import Algorithm, Metrics
from neorl_core.types import Params, PlantSpec, Transition
from tasks.files.canonical import sha256_hex
from tasks.files.sandbox import restrict
from tasks.files.spec import spec_of_record, spec_record
from tasks.models.user_code.contract import load_algorithm
from tasks.models.user_code.loading import copy_code, tree_of

SECONDS = 600.0
"""Time limit of one answer; checking the example of the documentation takes about 5 s, of which imports take 3 s."""
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


class _Answer(TypedDict, total=False):
    """The answer of the process, which is not trusted."""

    error: str
    refused: bool
    isolation: str
    name: str
    settings: dict[str, Any]
    batches_per_update: int
    usual_updates: int
    discrete: bool
    warm_up: bool
    result: list[Any]
    """Tree of a function's result, as `_described` writes it."""


class _Process:
    """The process of one algorithm. It waits for requests, and ends with this process."""

    def __init__(self, code: UserCode) -> None:
        self.code = code
        self._box = tempfile.TemporaryDirectory(prefix="neorl-")
        self._read = 0
        box = Path(self._box.name)
        self._said = box / "output"
        moved = copy_code(code, box / "code")
        (box / "code.json").write_text(moved.model_dump_json())
        with self._said.open("wb") as said:
            self._popen = subprocess.Popen(
                [sys.executable, "-I", "-c", START, str(Path(__file__).parents[3]), str(box)],
                cwd=box,
                # The process only lowers, on any platform, so it needs no accelerator.
                env={"JAX_TRACEBACK_FILTERING": "off", "JAX_PLATFORMS": "cpu"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                start_new_session=True,
            )

    @property
    def running(self) -> bool:
        return self._popen.poll() is None and Path(self._box.name).is_dir()

    def ask(self, request: _Request) -> tuple[_Answer, bytes]:
        """Return the answer to a request, and the program that belongs to it.

        Raises:
            BadInput: if the user's code fails.
            Refused: if the process ended, or took too long.
        """
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        box, place = Path(self._box.name), tree_of(self.code).file(self.code.module)
        try:
            self._popen.stdin.write(json.dumps(request).encode() + b"\n")
            self._popen.stdin.flush()
        except BrokenPipeError:
            pass  # the process has ended, which the next lines report
        if not select.select([self._popen.stdout], [], [], SECONDS)[0]:
            self.close()
            raise Refused(f"the isolated process of {place} gave no answer within {SECONDS:g} s: simplify the code")
        done = os.read(self._popen.stdout.fileno(), 1)
        said = self._printed()
        if not done:
            self.close()
            last = said.strip().splitlines()[-1][:300] if said.strip() else "no message"
            raise Refused(f"the isolated process of {place} ended ({last}): correct the code")
        answer = json.loads((box / "answer.json").read_bytes())
        if (error := answer.get("error")) is not None:
            text = " ".join(str(error).replace(str(box / "code"), str(tree_of(self.code).folder)).split())[:1000]
            raise (Refused if answer.get("refused") is True else BadInput)(text)
        program = box / "program.jax"
        return answer, program.read_bytes() if program.exists() else b""

    def _printed(self) -> str:
        """Print the new output of the process here, and return the output."""
        with self._said.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        self._read += len(data)
        text = data.decode(errors="replace")
        sys.stderr.write(text)
        return text

    def close(self) -> None:
        """Kill the process, and remove its folder."""
        self._popen.kill()
        self._popen.wait()
        for stream in (self._popen.stdin, self._popen.stdout):
            if stream:
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


def _ask(code: UserCode, request: _Request) -> tuple[_Answer, bytes]:
    with _lock:
        if not (_current and _current[0].code == code and _current[0].running):
            end_process()
            _current.append(_Process(code))
        return _current[0].ask(request)


class _Lowered(NamedTuple):
    program: Program
    answer: _Answer


def isolated_algorithm(code: UserCode) -> tuple[Algorithm, str]:
    """Check a user's algorithm in its process.

    Returns:
        An algorithm that calls the programs of the process, and the restrictions of the process.

    Raises:
        BadInput: if the algorithm violates the contract.
        Refused: if the code has changed, or the process ended.
    """
    answer, _ = _ask(code, {"function": "describe"})
    place = f"{tree_of(code).file(code.module)}: {code.attribute}"
    known: dict[str, _Lowered] = {}
    origins: dict[Any, _Origin] = {}

    def lowered(request: _Request) -> _Lowered:
        name = json.dumps(request)
        with _lock:
            if name not in known:
                found, data = _ask(code, request)
                try:
                    known[name] = _Lowered(check_pure(read_program(data)), found)
                except ImpureProgram as error:
                    raise BadInput(f"{place}: {error}: compute with JAX only") from error
            return known[name]

    def call(
        function: str, origin: _Origin, arguments: Any, varied: Sequence[str] = (), given: Sequence[str] = ()
    ) -> tuple[list[Any], _Answer]:
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
        return list(_batched(lowered, base, ())(*leaves)), found.answer

    def origin_of(state: Any) -> _Origin:
        structure = jax.tree.structure(state)
        if structure not in origins:
            raise ValueError(f"the state is not from init of {answer['name']}: call init in this process first")
        return origins[structure]

    def init(key: Any, spec: PlantSpec, config: Any) -> Any:
        settings = config._asdict()
        varied = {name: value for name, value in settings.items() if isinstance(value, jax.Array)}
        fixed = {name: _encoded(name, value) for name, value in settings.items() if name not in varied}
        origin = _Origin(json.dumps(spec_record(spec)), json.dumps(fixed))
        arguments = (jax.random.key_data(key), [varied[name] for name in sorted(varied)])
        leaves, found = call("init", origin, arguments, varied=sorted(varied))
        state = _built(found["result"], iter(leaves), sha256_hex(repr(origin).encode()))
        origins[jax.tree.structure(state)] = origin
        return state

    def update(function: str, state: Any, batches: Transition, key: Any) -> tuple[Any, Metrics]:
        arguments = (state, batches, jax.random.key_data(key))
        given = [name for name, value in batches._asdict().items() if value is not None]
        leaves, found = call(function, origin_of(state), arguments, given=given)
        size = len(jax.tree.leaves(state))
        metrics: Metrics = _built(found["result"], iter(leaves[size:]))
        return jax.tree.unflatten(jax.tree.structure(state), leaves[:size]), metrics

    def act(state: Any, observation: Any) -> Any:
        return call("act", origin_of(state), (state, observation))[0][0]

    def actor(state: Any) -> Params:
        leaves, found = call("actor", origin_of(state), state)
        weights: Params = _built(found["result"], iter(leaves))
        return weights

    if not re.fullmatch(NAME, str(answer["name"]), re.ASCII) or answer["name"] in {*ALGORITHMS, *LEARNERS}:
        raise Refused(f"the isolated process of {place} gave the name {str(answer['name'])[:80]!r}: correct the code")
    defaults = {name: _decoded(value) for name, value in answer["settings"].items()}
    algorithm = Algorithm(
        name=answer["name"],
        Config=namedtuple("Config", list(defaults), defaults=list(defaults.values())),
        batches_per_update=int(answer["batches_per_update"]),
        init=init,
        update=partial(update, "update"),
        act=act,
        actor=actor,
        warm_up=partial(update, "warm_up") if answer["warm_up"] else None,
        usual_updates=int(answer["usual_updates"]),
        discrete=bool(answer["discrete"]),
    )
    return algorithm, str(answer["isolation"])


def _batched(
    lowered: Callable[[_Request], _Lowered], base: _Request, levels: tuple[tuple[int, list[bool]], ...]
) -> Callable[..., tuple[Any, ...]]:
    """Return a function that calls a program. JAX cannot vectorise programs, so `vmap` asks for a vectorised one."""

    @custom_vmap
    def call(*leaves: Any) -> tuple[Any, ...]:
        program = lowered({**base, "leaves": _shapes(leaves), "levels": levels}).program
        return tuple(program.exported.call(*leaves))  # type: ignore[no-untyped-call]

    @call.def_vmap
    def vectorised(size: int, batched: Any, *leaves: Any) -> tuple[Any, Any]:
        found = _batched(lowered, base, (*levels, (size, list(batched))))(*leaves)
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
    # The parent reads one byte for each answer; prints of the user's code go to its standard error.
    answers = os.dup(1)
    os.dup2(2, 1)
    requests: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(requests,), daemon=True).start()
    code = UserCode.model_validate_json((box / "code.json").read_bytes())
    sys.path.insert(0, str(box / "code"))
    loaded: list[Algorithm] = []
    while True:
        request = json.loads(requests.get())
        answer: _Answer
        try:
            if not loaded:
                loaded.append(load_algorithm(code))
            if request["function"] == "describe":
                answer = {**_description(loaded[0]), "isolation": isolation}
            else:
                answer, data = _lower(loaded[0], request)
                (box / "program.jax").write_bytes(data)
        except NeoRLError as error:
            answer = {"error": str(error), "refused": isinstance(error, Refused)}
        except Exception as error:
            # Any exception of user code is a fault of that code.
            text = " ".join(str(error).split())[:300].rstrip(".")
            answer = {"error": f"in {_place(error, code)}, {type(error).__name__}: {text}: correct it"}
        sys.stdout.flush()
        (box / "answer.json").write_text(json.dumps(answer))
        os.write(answers, b".")


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


def _description(algorithm: Algorithm) -> _Answer:
    settings = algorithm.Config()._asdict()
    return {
        "name": algorithm.name,
        "settings": {name: _encoded(name, value) for name, value in settings.items()},
        "batches_per_update": algorithm.batches_per_update,
        "usual_updates": algorithm.usual_updates,
        "discrete": algorithm.discrete,
        "warm_up": algorithm.warm_up is not None,
    }


def _lower(algorithm: Algorithm, request: _Request) -> tuple[_Answer, bytes]:
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
    return {"result": described[0]}, program.serialise()


def _shape(shape: list[int], dtype: str) -> Any:
    return jax.ShapeDtypeStruct(tuple(shape), jnp.dtype(dtype))  # type: ignore[no-untyped-call]
