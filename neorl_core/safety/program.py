"""Computed programs of simulators and episodes: their identity, their export, and refused host calls.

Equal sources of a plant may compute different numbers: Python code may read the environment, a file or the
call stack while JAX traces it. The lowered program does. Two programs with equal StableHLO compute the same numbers.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from difflib import unified_diff
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jax.extend import core
from jaxtyping import Array, Key, UInt32

from neorl_core.plants.base import EpisodeResult, clip_to, rollouts
from neorl_core.safety.operations import impurity
from neorl_core.types import Controller, Params, Plant

IMPLEMENTATION = "threefry2x32"
"""Generator of the episodes' keys."""
CUSTOM_CALL = re.compile(r"stablehlo\.custom_call @\"?([\w.$-]+)")
LOCATION = re.compile(
    r' loc\((?:#loc\d*|unknown|"(?:[^"\\]|\\.)*"(?:\(#loc\d*\))?'
    r"|callsite\((?:#loc\d*|unknown) at (?:#loc\d*|unknown)\))\)"
    r"|^#loc.*\n",
    re.MULTILINE,
)
"""Source locations in the text of a program."""
HOST = ("callback", "infeed", "outfeed", "debug_print")
"""Parts of the names of primitives that call the host."""
IMPURE = {"ffi_call": "may write anywhere", "rng_uniform": "has a hidden state", "empty": "reads unused memory"}
"""Other refused primitives, and why."""


class Program:
    """A lowered program with its own digest.

    Attributes:
        exported: the program as `jax.export` stores it, without source locations.
    """

    def __init__(self, exported: export.Exported) -> None:
        self.exported = exported

    @cached_property
    def text(self) -> str:
        """StableHLO with all constants, without source locations."""
        return LOCATION.sub("", self.exported.mlir_module())

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the text, hexadecimal."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @cached_property
    def custom_calls(self) -> tuple[str, ...]:
        """Names of the custom calls, sorted."""
        return tuple(sorted(set(CUSTOM_CALL.findall(self.text))))

    def serialise(self, derivatives: bool = False) -> bytes:
        """Return the program as bytes, for `read_program`.

        Args:
            derivatives: include the first derivatives in reverse mode. A program with a `while_loop` has none.
        """
        if derivatives:
            try:
                return bytes(self.exported.serialize(vjp_order=1))
            except ValueError as error:
                if "Reverse-mode differentiation" not in str(error):
                    raise
        return bytes(self.exported.serialize())


class ImpureProgram(ValueError):
    """A program that depends on more than its arguments."""


def read_program(data: bytes) -> Program:
    """Read the result of `Program.serialise`; verify a digest of `data` first."""
    return Program(export.deserialize(bytearray(data)))


def lower(function: Callable[..., Any], *arguments: Any, platform: str = "cpu") -> Program:
    """Lower a function to a program of the leaves of its arguments, which returns the leaves of the result.

    Args:
        arguments: shapes and dtypes of the arguments.
        platform: platform of the program, as `jax.export` names it.

    Raises:
        ImpureProgram: if the program may do more than compute.
    """
    leaves, tree = jax.tree.flatten(arguments)

    # Leaves only, so that a program can be stored without the classes of its arguments.
    @jax.jit
    def flat(*leaves: Any) -> tuple[Any, ...]:
        return tuple(jax.tree.leaves(function(*jax.tree.unflatten(tree, leaves))))

    called = sorted(set(_host_calls(flat.trace(*leaves).jaxpr.jaxpr)))
    if called and (why := IMPURE.get(called[0])):
        raise ImpureProgram(f"the program uses '{called[0]}', which {why}: use JAX's other operations")
    if called:
        raise ImpureProgram(f"the program calls the host by '{called[0]}': compute with JAX only")
    try:
        exported = export.export(flat, platforms=(platform,))(*leaves)
    except ValueError as error:
        # JAX refuses custom calls without a guarantee that their meaning stays.
        if not (unknown := CUSTOM_CALL.search(str(error))):
            raise
        raise ImpureProgram(
            f"the program makes the custom call '{unknown[1]}', which may read anything: use JAX's own operations"
        ) from error
    if reason := impurity(exported):
        raise ImpureProgram(f"the program does more than compute, got {reason}: use JAX's other operations")
    return Program(exported)


def check_pure(program: Program, derivatives: bool = False) -> Program:
    """Return a program from another process, if it can only compute.

    Args:
        derivatives: allow stored derivatives, which are not checked: the caller must not differentiate the program.

    Raises:
        ImpureProgram: if the program may do more than compute, or contains derivatives, which are not checked.
    """
    reason = impurity(program.exported)
    if not reason and not derivatives and program.exported.has_vjp():
        reason = "stored derivatives"
    if reason:
        raise ImpureProgram(f"the program does more than compute, got {reason}")
    return program


def simulator_program(plant: Plant, domain: Params) -> Program:
    """Lower one step of a simulator from the start of an episode, with constants drawn from the operating domain.

    The program covers `sample_params`, `reset` and `step` for any key, domain values and action, and no shield.

    Args:
        domain: the operating domain; only its structure matters.

    Raises:
        ImpureProgram: if the program may do more than compute.
    """

    def step(key_data: UInt32[Array, " 2"], domain: Params, action: Any) -> Any:
        constants, start, noise = jax.random.split(jax.random.wrap_key_data(key_data, impl=IMPLEMENTATION), 3)
        params = plant.sample_params(constants, domain)
        state, observation = plant.reset(start, params)
        return observation, plant.step(noise, state, clip_to(plant.spec.action, action), params)

    action = _shape((plant.spec.action.size,), jnp.float32)
    return lower(step, _shape((2,), jnp.uint32), _abstract(domain), action)


def episode_program(plant: Plant, controller: Controller, params: Params, domain: Params, batch: int) -> Program:
    """Lower `plants.base.rollouts` of a controller: the whole episode, batched.

    Args:
        controller: usually `composite_controller(plant)`.
        params: the controller's parameters, usually a `Composite`; only shapes and dtypes matter.
        domain: the operating domain; only its structure matters.
        batch: number of episodes E of a call.

    Returns:
        Program of (key data (E, 2), params, domain) -> `EpisodeResult`; `run_episodes` calls it.

    Raises:
        ImpureProgram: if the program may do more than compute.
    """

    def episodes(key_data: UInt32[Array, "E 2"], params: Params, domain: Params) -> EpisodeResult:
        keys = jax.random.wrap_key_data(key_data, impl=IMPLEMENTATION)
        found: EpisodeResult = rollouts(plant, controller, params, keys, domain)
        return found

    return lower(episodes, _shape((batch, 2), jnp.uint32), _abstract(params), _abstract(domain))


def run_episodes(program: Program) -> Callable[..., EpisodeResult]:
    """Compile an episode program.

    Returns:
        (keys (E,), params, domain) -> results, as `plants.base.rollouts` gives them; params and domain may also be
        given as their leaves.
    """
    call = jax.jit(program.exported.call)

    def run(keys: Key[Array, " E"], *arguments: Any) -> EpisodeResult:
        return EpisodeResult(*call(np.asarray(jax.random.key_data(keys)), *map(_typed, jax.tree.leaves(arguments))))

    return run


def first_difference(here: str, there: str) -> str:
    """Return the first line in which two programs differ, as 'first / second'; empty if they are equal."""
    removed = added = None
    for line in unified_diff(here.splitlines(), there.splitlines(), n=0, lineterm=""):
        if line.startswith(("---", "+++")):
            continue
        if line.startswith("@@") and (removed or added):
            break
        if line.startswith("-") and removed is None:
            removed = line[1:].strip()
        if line.startswith("+") and added is None:
            added = line[1:].strip()
    return "" if removed is added is None else f"{(removed or 'nothing')[:200]} / {(added or 'nothing')[:200]}"


def _host_calls(jaxpr: Any) -> Iterator[str]:
    """Yield the names of primitives that call the host or have side effects, in inner programs too."""
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if any(part in name for part in HOST) or name in IMPURE or equation.effects:
            yield name
        for inner in jax.tree.leaves(
            tuple(equation.params.values()), is_leaf=lambda leaf: isinstance(leaf, core.Jaxpr | core.ClosedJaxpr)
        ):
            if isinstance(inner, core.ClosedJaxpr):
                yield from _host_calls(inner.jaxpr)
            elif isinstance(inner, core.Jaxpr):
                yield from _host_calls(inner)


def _shape(shape: tuple[int, ...], dtype: Any) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype)  # type: ignore[no-untyped-call]


def _abstract(tree: Params) -> Params:
    return jax.tree.map(lambda leaf: _shape(np.shape(_typed(leaf)), _typed(leaf).dtype), tree)


def _typed(leaf: Any) -> Any:
    """Return a Python number as an array of JAX's default precision; leave arrays as they are."""
    return leaf if hasattr(leaf, "dtype") else np.asarray(leaf, jnp.result_type(type(leaf)))
