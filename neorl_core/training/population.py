"""Algorithms as pure functions, and populations of their states in one compiled program."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, UInt32

from neorl_core.networks import Normaliser, Policy
from neorl_core.training import optimisers
from neorl_core.training.preparation import LARGEST
from neorl_core.types import Params, PlantSpec, Transition

ABOVE_ZERO = frozenset({"huber", "tau", "temperature"})
"""Hyper-parameters that must be positive."""
AT_LEAST_ZERO = frozenset(
    {"alpha", "beta", "noise", "noise_clip", "diversity", "penalty", "actor_penalty", "critic_penalty", "support"}
    | {"actor_lr", "critic_lr", "clone_lr", "model_lr", "alpha_lr", "temperature_lr"}
)
"""Hyper-parameters that must not be negative; 0 switches something off."""
SHARES = frozenset({"discount", "tau", "expectile", "real", "entropy_backup"})
"""Hyper-parameters in [0, 1]. These names have one meaning in all algorithms, user-defined ones included."""

Metrics = dict[str, Float[Array, "..."]]
Hyperparameters = dict[str, Float[Array, ""]]
"""Numeric hyper-parameters as arrays in the state, so that members of a population may differ."""


Update = Callable[[Any, Transition, PRNGKeyArray], tuple[Any, Metrics]]
"""(state, batches (batches_per_update, B, ...), key) -> (state, metrics)."""


class Algorithm(NamedTuple):
    """An offline RL algorithm as pure functions; the state is a NamedTuple of arrays."""

    name: str
    Config: Callable[..., Any]
    """NamedTuple type with defaults; floats are hyper-parameters, all other fields are static."""
    batches_per_update: int
    """Gradient steps of one `update`, each on its own batch."""
    init: Callable[[PRNGKeyArray, PlantSpec, Any], Any]
    """(key, spec, config) -> state."""
    update: Update
    act: Callable[[Any, Float[Array, "*n O"]], Float[Array, "*n A"]]
    """(state, normalised observation) -> unit action; for discrete actions outputs of which the greatest is chosen."""
    actor: Callable[[Any], Params]
    """state -> weights of the actor that ships: `actor_apply` (discrete: `mlp_apply`) of them equals `act`."""
    warm_up: Update | None = None
    """Update in the first `config.warm_up_updates` gradient steps, for example to train a model; returns metrics of the
    same names. None without a warm-up."""
    usual_updates: int = 0
    """Gradient steps that the defaults of `warm_up_updates` and of decaying schedules are made for; 0 if no default
    depends on the length of a run."""
    discrete: bool = False
    """Whether actions are named choices (one-hot) instead of continuous."""


def wrap_updates(algorithm: Algorithm, wrap: Callable[[Update], Update]) -> Algorithm:
    """Wrap the update of an algorithm, including its warm-up."""
    return algorithm._replace(update=wrap(algorithm.update), warm_up=algorithm.warm_up and wrap(algorithm.warm_up))


def warm_up_updates(algorithm: Algorithm, config: Any) -> int:
    """Return the gradient steps of the warm-up."""
    return int(config.warm_up_updates) if algorithm.warm_up else 0


def phase(algorithm: Algorithm, warming: bool) -> Algorithm:
    """Return the algorithm with `warm_up` as its update while warming up."""
    if not warming or algorithm.warm_up is None:
        return algorithm
    return algorithm._replace(update=algorithm.warm_up)


class TrainState(NamedTuple):
    """State sufficient to resume training; a population has a leading axis P on every array."""

    learner: Any
    key: UInt32[Array, "*p 2"]
    """Key data of the member; it never changes, each step folds in its number."""
    step: Int[Array, "*p"]
    """Gradient steps taken."""


def configure(
    algorithm: Algorithm, overrides: Mapping[str, Any], updates: int | None = None, warmed: bool = False
) -> Any:
    """Return the defaults of an algorithm with overrides.

    Args:
        algorithm: algorithm to configure.
        overrides: values by field name; integers are accepted for floats, NumPy numbers for Python's, lists for tuples,
            and the input of `optimisers.parse` for recipes.
        updates: gradient steps of the run, which a warm-up and decaying schedules are scaled to unless overridden; None
            for the length that the defaults are made for.
        warmed: whether the run continues another and needs no warm-up.

    Returns:
        A `Config`.

    Raises:
        ValueError: on an unknown field, or a value of the wrong type or range.
    """
    defaults = algorithm.Config()._asdict()
    for name, given in overrides.items():
        value = given.item() if isinstance(given, np.generic) else given
        if name not in defaults:
            raise ValueError(f"unknown hyper-parameter {name!r} of {algorithm.name}: use {', '.join(defaults)}")
        kind = type(defaults[name])
        if kind is float and type(value) in (int, float) and np.isfinite(value):
            defaults[name] = check_range(algorithm, name, float(value))
        elif kind is int and type(value) is int and (value > 0 or value == defaults[name]):
            defaults[name] = value
        elif kind is tuple and isinstance(value, list | tuple) and all(type(v) is int and v > 0 for v in value):
            defaults[name] = tuple(value)
        elif kind is optimisers.Recipe:
            try:
                defaults[name] = optimisers.parse(value)
            except ValueError as error:
                raise ValueError(f"in {name} of {algorithm.name}: {error}") from error
        else:
            raise ValueError(f"{name} of {algorithm.name} must be like {defaults[name]!r}, got {value!r}")
    if updates is not None and algorithm.usual_updates:
        defaults |= _fitted(algorithm, defaults, updates, set(overrides), warmed)
    return algorithm.Config(**defaults)


def check_range(algorithm: Algorithm, name: str, value: float) -> float:
    """Return the value of a float hyper-parameter after checking its range.

    Raises:
        ValueError: if it is out of range.

    Example:
        >>> check_range(ALGORITHMS["iql"], "discount", 1.5)  # doctest: +SKIP
        ValueError: discount of iql must be from 0 to 1, got 1.5
    """
    if name in SHARES and not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} of {algorithm.name} must be from 0 to 1, got {value:g}")
    if name in ABOVE_ZERO and value <= 0.0:
        raise ValueError(f"{name} of {algorithm.name} must be above 0, got {value:g}")
    if name in AT_LEAST_ZERO and value < 0.0:
        raise ValueError(f"{name} of {algorithm.name} must be at least 0, got {value:g}")
    return value


def _fitted(
    algorithm: Algorithm, config: Mapping[str, Any], updates: int, given: set[str], warmed: bool
) -> dict[str, Any]:
    """Scale the warm-up and the decaying schedules before and after it to the length of the run."""
    warm_up: int = config["warm_up_updates"]
    scaled: dict[str, Any] = {}
    if warmed:
        warm_up = scaled["warm_up_updates"] = 0
    elif "warm_up_updates" not in given:
        share = warm_up / algorithm.usual_updates
        warm_up = scaled["warm_up_updates"] = max(min(round(share * updates), updates - 1), 1)
    for name, recipe in config.items():
        if isinstance(recipe, optimisers.Recipe) and recipe.steps and name not in given:
            steps = warm_up if name == "model_recipe" else updates - warm_up
            scaled[name] = recipe._replace(steps=max(steps, recipe.warmup + 1))
    return scaled


def hyperparameters(config: Any) -> Hyperparameters:
    """Return the floats of a config as arrays."""
    return {k: jnp.asarray(v) for k, v in config._asdict().items() if isinstance(v, float | jax.Array)}


def polyak(target: Params, online: Params, tau: Float[Array, ""]) -> Params:
    """Update target networks: `target + tau (online - target)`."""
    return jax.tree.map(lambda t, o: t + tau * (o - t), target, online)


@dataclass(frozen=True)
class Member:
    """Definition of one member of a population."""

    index: int
    """Position in the population and row in the learning curves."""
    seed: int
    hyperparameters: dict[str, float]
    """Values of the hyper-parameters that vary."""


def members(seeds: Sequence[int], grid: Mapping[str, Sequence[float]]) -> list[Member]:
    """Return the population in order: every point of the grid with every seed."""
    points = [dict(zip(grid, map(float, values), strict=True)) for values in itertools.product(*grid.values())]
    pairs = itertools.product(points, seeds)
    return [Member(i, seed, point) for i, (point, seed) in enumerate(pairs)]


@lru_cache(maxsize=16)
def _make_init(
    algorithm: Algorithm, spec: PlantSpec, config: Any
) -> Callable[[PRNGKeyArray, Hyperparameters], TrainState]:
    def fresh(key: PRNGKeyArray, varied: Hyperparameters) -> TrainState:
        init_key, train_key = jax.random.split(key)
        learner = algorithm.init(init_key, spec, config._replace(**varied))
        return TrainState(learner, jax.random.key_data(train_key), jnp.int32(0))

    return jax.jit(jax.vmap(fresh))


def init_population(algorithm: Algorithm, spec: PlantSpec, config: Any, population: Sequence[Member]) -> TrainState:
    """Return fresh states of all members.

    Args:
        algorithm: algorithm to train.
        spec: spec of the plant.
        config: `Config` of the algorithm.
        population: P members that vary the same hyper-parameters.

    Returns:
        A state with the leading axis P on every array.

    Raises:
        ValueError: if there are no members, or they vary a field that is not a float or is out of range.
    """
    if not population:
        raise ValueError(
            "a population needs at least one member, got 0: give a seed, and values for every field of the grid"
        )
    floats = [name for name, value in config._asdict().items() if isinstance(value, float)]
    varied = list(population[0].hyperparameters)
    for name in varied:
        if name not in floats:
            raise ValueError(f"a grid of {algorithm.name} can vary {', '.join(floats)}, got {name!r}")
    values = {
        name: jnp.asarray([check_range(algorithm, name, member.hyperparameters[name]) for member in population])
        for name in varied
    }
    keys = jnp.stack([jax.random.key(m.seed, impl="threefry2x32") for m in population])
    return _make_init(algorithm, spec, config)(keys, values)


def sampled_update(
    algorithm: Algorithm, state: TrainState, data: Transition, rows: int | Int[Array, ""], batch_size: int
) -> tuple[TrainState, Metrics]:
    """Take one update on random batches that depend only on the member's key and step.

    Args:
        algorithm: algorithm to train.
        state: state of one member.
        data: prepared transitions (N, ...).
        rows: number of rows, from the first, to sample from uniformly with replacement.
        batch_size: transitions per gradient step.
    """
    batches = algorithm.batches_per_update
    key = jax.random.fold_in(jax.random.wrap_key_data(state.key, impl="threefry2x32"), state.step)
    batch_key, update_key = jax.random.split(key)
    indices = jax.random.randint(batch_key, (batches, batch_size), 0, rows)
    batch: Transition = jax.tree.map(lambda x: x[indices], data)
    learner, metrics = algorithm.update(state.learner, batch, update_key)
    return TrainState(learner, state.key, state.step + batches), metrics


@lru_cache(maxsize=16)
def make_train_chunk(
    algorithm: Algorithm, updates: int, log_every: int, batch_size: int
) -> Callable[[TrainState, Transition], tuple[TrainState, Metrics]]:
    """Compile `updates` gradient steps of a population.

    Random numbers depend only on the member's key and step, so the result does not depend on the division into chunks.

    Args:
        algorithm: algorithm to train.
        updates: gradient steps, a multiple of `log_every`.
        log_every: gradient steps averaged into one row, a multiple of the algorithm's `batches_per_update`.
        batch_size: transitions per gradient step, sampled uniformly with replacement.

    Returns:
        `(population, prepared transitions) -> (population, metrics (P, updates // log_every))`.

    Raises:
        ValueError: if the numbers do not divide or are not positive.
    """
    batches = algorithm.batches_per_update
    if min(updates, log_every, batch_size) < 1 or updates % log_every or log_every % batches:
        raise ValueError(
            f"updates must be a multiple of log_every, log_every a multiple of {batches} ({algorithm.name}) and "
            f"batch_size positive, got {updates}, {log_every} and {batch_size}"
        )

    def member(state: TrainState, data: Transition) -> tuple[TrainState, Metrics]:
        def one(state: TrainState, _: None) -> tuple[TrainState, Metrics]:
            return sampled_update(algorithm, state, data, data.reward.shape[0], batch_size)

        def logged(state: TrainState, _: None) -> tuple[TrainState, Metrics]:
            state, metrics = jax.lax.scan(one, state, length=log_every // batches)
            return state, jax.tree.map(jnp.mean, metrics)

        return jax.lax.scan(logged, state, length=updates // log_every)

    return jax.jit(jax.vmap(member, in_axes=(0, None)))


def diverged(metrics: Mapping[str, Any], limit: float = LARGEST) -> Bool[Array, " P"]:
    """Return which members (P,) have a metric that is not finite or exceeds the limit (`Scaling.limit`)."""
    bad = [~(jnp.abs(x) <= limit) for x in jax.tree.leaves(metrics)]
    return jnp.any(jnp.stack(bad), axis=(0, 2))


def member(population: TrainState, index: int) -> TrainState:
    """Return one member's state without the population axis."""
    one: TrainState = jax.tree.map(lambda x: x[index], population)
    return one


def policies(algorithm: Algorithm, population: TrainState, normaliser: Normaliser) -> list[Policy]:
    """Return the policy of each member."""
    # Slice only the actors: optimisers and critics are many times larger.
    actors = jax.vmap(algorithm.actor)(population.learner)
    return [Policy(jax.tree.map(itemgetter(i), actors), normaliser) for i in range(population.step.shape[0])]
