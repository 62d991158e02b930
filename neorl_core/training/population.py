"""What is trained: an algorithm as pure functions, and a population of its states in one compiled program."""

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
from neorl_core.training.preparation import prepare as prepare
from neorl_core.training.preparation import successors as successors
from neorl_core.types import Params, PlantSpec, Transition

ABOVE_ZERO = frozenset({"huber", "tau", "temperature"})
"""Floats that leave nothing to learn, or no number, at 0."""
AT_LEAST_ZERO = frozenset(
    {"alpha", "beta", "noise", "noise_clip", "diversity", "penalty", "actor_penalty", "critic_penalty", "support"}
    | {"actor_lr", "critic_lr", "clone_lr", "model_lr", "alpha_lr", "temperature_lr"}
)
"""Floats of which 0 switches something off; what learns at a rate of 0 stands still."""
SHARES = frozenset({"discount", "tau", "expectile", "real", "entropy_backup"})
"""Floats from 0 to 1. These names mean the same in all algorithms, and in one from outside that has them."""

Metrics = dict[str, Float[Array, "..."]]
Hyperparameters = dict[str, Float[Array, ""]]
"""The numeric hyper-parameters, as arrays: they live in the state, so that members of a population may differ."""


Update = Callable[[Any, Transition, PRNGKeyArray], tuple[Any, Metrics]]
"""(state, batches (batches_per_update, B, ...), key) -> (state, metrics)."""


class Algorithm(NamedTuple):
    """An offline RL algorithm as pure functions. Its state is a NamedTuple of arrays."""

    name: str
    Config: Callable[..., Any]
    """A NamedTuple type with defaults; its floats are hyper-parameters, the rest is static."""
    batches_per_update: int
    """Gradient steps, each on a batch of its own, that one `update` makes."""
    init: Callable[[PRNGKeyArray, PlantSpec, Any], Any]
    """(key, spec, config) -> state."""
    update: Update
    act: Callable[[Any, Float[Array, "*n O"]], Float[Array, "*n A"]]
    """(state, normalised observation) -> unit action; of a discrete one numbers of which the greatest is chosen."""
    actor: Callable[[Any], Params]
    """state -> weights of the deterministic actor that ships: `actor_apply` of them equals `act`, or `mlp_apply` where
    actions are discrete."""
    warm_up: Update | None = None
    """What `update` is in the first `config.warm_up_updates` gradient steps, where there is such a part: a model that
    must be learned first. It returns metrics of the same names."""
    usual_updates: int = 0
    """Gradient steps of a whole run of which the defaults of `warm_up_updates` and of falling schedules are; 0 where
    no default depends on a run's length."""
    discrete: bool = False
    """Whether it learns to choose among named choices, seen as one-hot, instead of continuous actions."""


def wrapped(algorithm: Algorithm, wrap: Callable[[Update], Update]) -> Algorithm:
    """The algorithm with something done around each of its updates, the warm-up's included."""
    return algorithm._replace(update=wrap(algorithm.update), warm_up=algorithm.warm_up and wrap(algorithm.warm_up))


def warm_up_updates(algorithm: Algorithm, config: Any) -> int:
    """Gradient steps that the algorithm's `warm_up` makes."""
    return int(config.warm_up_updates) if algorithm.warm_up else 0


def phase(algorithm: Algorithm, warming: bool) -> Algorithm:
    """The algorithm as it learns now: while it warms up, `warm_up` is its update."""
    if not warming or algorithm.warm_up is None:
        return algorithm
    return algorithm._replace(update=algorithm.warm_up)


class TrainState(NamedTuple):
    """Everything that resuming needs; a population has a leading axis P on every array."""

    learner: Any
    key: UInt32[Array, "*p 2"]
    """Data of the member's key; it never changes, each step folds its number into it."""
    step: Int[Array, "*p"]
    """Gradient steps made."""


def configure(
    algorithm: Algorithm, overrides: Mapping[str, Any], updates: int | None = None, warmed: bool = False
) -> Any:
    """The algorithm's defaults with some values replaced.

    Args:
        algorithm: whose `Config` is meant.
        overrides: values by field name; integers pass for floats, NumPy's numbers for Python's, lists for tuples, and
            what `optimisers.parse` reads for recipes.
        updates: gradient steps of the whole run, to which a warm-up and the schedules that fall over it and over what
            follows are fitted where they are not given; None for the run that the defaults are of.
        warmed: whether the run goes on from another, and has no warm-up of its own.

    Returns:
        A `Config`.

    Raises:
        ValueError: on an unknown field, and a value of another type or out of range.
    """
    defaults = algorithm.Config()._asdict()
    for name, given in overrides.items():
        value = given.item() if isinstance(given, np.generic) else given
        if name not in defaults:
            raise ValueError(f"expected a hyper-parameter of {algorithm.name} ({', '.join(defaults)}), got {name!r}.")
        kind = type(defaults[name])
        if kind is float and type(value) in (int, float) and np.isfinite(value):
            defaults[name] = in_range(algorithm, name, float(value))
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
            raise ValueError(f"expected {name} of {algorithm.name} to be like {defaults[name]!r}, got {value!r}.")
    if updates is not None and algorithm.usual_updates:
        defaults |= _fitted(algorithm, defaults, updates, set(overrides), warmed)
    return algorithm.Config(**defaults)


def in_range(algorithm: Algorithm, name: str, value: float) -> float:
    """A value of a float hyper-parameter, where it is one that can be learned with.

    Args:
        algorithm: whose it is.
        name: of the field.
        value: that was asked for.

    Raises:
        ValueError: when it cannot.

    Example:
        >>> in_range(ALGORITHMS["iql"], "discount", 1.5)  # doctest: +SKIP
        ValueError: expected discount of iql from 0 to 1, got 1.5.
    """
    if name in SHARES and not 0.0 <= value <= 1.0:
        raise ValueError(f"expected {name} of {algorithm.name} from 0 to 1, got {value:g}.")
    if name in ABOVE_ZERO and value <= 0.0:
        raise ValueError(f"expected {name} of {algorithm.name} above 0, got {value:g}.")
    if name in AT_LEAST_ZERO and value < 0.0:
        raise ValueError(f"expected {name} of {algorithm.name} to be at least 0, got {value:g}.")
    return value


def _fitted(
    algorithm: Algorithm, config: Mapping[str, Any], updates: int, given: set[str], warmed: bool
) -> dict[str, Any]:
    """The warm-up of a run of this length, and the schedules of what learns in it (the model) and after it."""
    warm_up: int = config["warm_up_updates"]
    found: dict[str, Any] = {}
    if warmed:
        warm_up = found["warm_up_updates"] = 0
    elif "warm_up_updates" not in given:
        share = warm_up / algorithm.usual_updates
        warm_up = found["warm_up_updates"] = max(min(round(share * updates), updates - 1), 1)
    for name, recipe in config.items():
        if isinstance(recipe, optimisers.Recipe) and recipe.steps and name not in given:
            steps = warm_up if name == "model_recipe" else updates - warm_up
            found[name] = recipe._replace(steps=max(steps, recipe.warmup + 1))
    return found


def hyperparameters(config: Any) -> Hyperparameters:
    """The floats of a config as arrays (a population's may be arrays already)."""
    return {k: jnp.asarray(v) for k, v in config._asdict().items() if isinstance(v, float | jax.Array)}


def polyak(target: Params, online: Params, tau: Float[Array, ""]) -> Params:
    """Target networks: `target + tau (online - target)`.

    Args:
        target: weights of the target network.
        online: weights that it follows.
        tau: how far it follows in one step, 0 to 1.
    """
    return jax.tree.map(lambda t, o: t + tau * (o - t), target, online)


@dataclass(frozen=True)
class Member:
    """One member of a population, before any training."""

    index: int
    """The member's position in the population, and its row in the learning curves."""
    seed: int
    hyperparameters: dict[str, float]
    """Values of the hyper-parameters in which members differ."""


def members(seeds: Sequence[int], grid: Mapping[str, Sequence[float]]) -> list[Member]:
    """The population in order: every point of the grid, with every seed."""
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
    """Fresh states of all members.

    Args:
        algorithm: what to train.
        spec: the plant.
        config: the algorithm's `Config`.
        population: P members that differ in the same hyper-parameters.

    Returns:
        A state whose every array has the leading axis P.

    Raises:
        ValueError: when there are none, or members differ in what is not a float of the config, or is out of range.
    """
    if not population:
        raise ValueError("expected at least one member, got none: give a seed, and values of what a grid names.")
    floats = [name for name, value in config._asdict().items() if isinstance(value, float)]
    varied = list(population[0].hyperparameters)
    for name in varied:
        if name not in floats:
            raise ValueError(f"expected a grid over floats of {algorithm.name} ({', '.join(floats)}), got {name!r}.")
    values = {
        name: jnp.asarray([in_range(algorithm, name, member.hyperparameters[name]) for member in population])
        for name in varied
    }
    keys = jnp.stack([jax.random.key(m.seed, impl="threefry2x32") for m in population])
    return _make_init(algorithm, spec, config)(keys, values)


def drawn_update(
    algorithm: Algorithm, state: TrainState, data: Transition, rows: int | Int[Array, ""], batch_size: int
) -> tuple[TrainState, Metrics]:
    """One update on batches that are drawn by the member's key and its step.

    Args:
        algorithm: what to train.
        state: of one member.
        data: prepared transitions (N, ...).
        rows: how many of them, from the first on, are drawn from, uniformly with replacement.
        batch_size: transitions per gradient step.
    """
    batches = algorithm.batches_per_update
    key = jax.random.fold_in(jax.random.wrap_key_data(state.key, impl="threefry2x32"), state.step)
    batch_key, update_key = jax.random.split(key)
    drawn = jax.random.randint(batch_key, (batches, batch_size), 0, rows)
    batch: Transition = jax.tree.map(lambda x: x[drawn], data)
    learner, metrics = algorithm.update(state.learner, batch, update_key)
    return TrainState(learner, state.key, state.step + batches), metrics


@lru_cache(maxsize=16)
def make_train_chunk(
    algorithm: Algorithm, updates: int, log_every: int, batch_size: int
) -> Callable[[TrainState, Transition], tuple[TrainState, Metrics]]:
    """Compile `updates` gradient steps of a whole population.

    Keys come from the member's key and its step, so the result does not depend on how training is cut into chunks.

    Args:
        algorithm: what to train.
        updates: gradient steps, a multiple of `log_every`.
        log_every: gradient steps whose metrics are averaged into one row, a multiple of the algorithm's
            `batches_per_update`.
        batch_size: transitions per gradient step, drawn uniformly with replacement.

    Returns:
        `(population, data) -> (population, metrics (P, updates // log_every))`; data are prepared transitions.

    Raises:
        ValueError: when the numbers do not divide, or a batch has no row.
    """
    batches = algorithm.batches_per_update
    if min(updates, log_every, batch_size) < 1 or updates % log_every or log_every % batches:
        raise ValueError(
            f"expected updates a multiple of log_every, log_every a multiple of {batches} ({algorithm.name}) and "
            f"batches of at least one row, got {updates}, {log_every} and {batch_size}."
        )

    def member(state: TrainState, data: Transition) -> tuple[TrainState, Metrics]:
        def one(state: TrainState, _: None) -> tuple[TrainState, Metrics]:
            return drawn_update(algorithm, state, data, data.reward.shape[0], batch_size)

        def logged(state: TrainState, _: None) -> tuple[TrainState, Metrics]:
            state, metrics = jax.lax.scan(one, state, length=log_every // batches)
            return state, jax.tree.map(jnp.mean, metrics)

        return jax.lax.scan(logged, state, length=updates // log_every)

    return jax.jit(jax.vmap(member, in_axes=(0, None)))


def diverged(metrics: Mapping[str, Any], limit: float = LARGEST) -> Bool[Array, " P"]:
    """Which members diverged: a metric is not finite, or beyond the limit, which a `Scaling` has for its rewards."""
    bad = [~(jnp.abs(x) <= limit) for x in jax.tree.leaves(metrics)]
    return jnp.any(jnp.stack(bad), axis=(0, 2))


def member(population: TrainState, index: int) -> TrainState:
    """One member's state, without the population axis."""
    one: TrainState = jax.tree.map(lambda x: x[index], population)
    return one


def policies(algorithm: Algorithm, population: TrainState, normaliser: Normaliser) -> list[Policy]:
    """What each member would ship.

    Args:
        algorithm: what was trained.
        population: states of P members.
        normaliser: scale of the training data.
    """
    # Actors alone are sliced: optimisers and critics are many times as large.
    actors = jax.vmap(algorithm.actor)(population.learner)
    return [Policy(jax.tree.map(itemgetter(i), actors), normaliser) for i in range(population.step.shape[0])]
