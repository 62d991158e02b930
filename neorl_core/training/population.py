"""The interface of algorithms, and functions that train all members of a population in one compiled program."""

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

ABOVE_ZERO = frozenset({"huber", "tau", "temperature", "margin", "deviation", "clip"})
"""Hyper-parameters that must be positive."""
AT_LEAST_ZERO = frozenset(
    {"alpha", "beta", "noise", "noise_clip", "diversity", "penalty", "actor_penalty", "critic_penalty", "support"}
    | {"margin_weight", "actor_lr", "critic_lr", "clone_lr", "model_lr", "alpha_lr", "temperature_lr", "lr"}
)
"""Hyper-parameters that must not be negative."""
SHARES = frozenset({"discount", "tau", "expectile", "real", "entropy_backup", "decay"})
"""Hyper-parameters that must be from 0 to 1. NeoRL checks these three sets for user-defined algorithms, too."""

Metrics = dict[str, Float[Array, "..."]]
Hyperparameters = dict[str, Float[Array, ""]]
"""Numeric hyper-parameters by name. They are arrays in the state, so that each member can have its own values."""


Update = Callable[[Any, Transition, PRNGKeyArray], tuple[Any, Metrics]]
"""Function (state, batches, key) -> (new state, metrics); batches have the axes (batches_per_update, B, ...)."""


class Algorithm(NamedTuple):
    """An offline RL algorithm, given by pure functions. Its state is a NamedTuple of arrays."""

    name: str
    Config: Callable[..., Any]
    """NamedTuple class of the settings, with defaults. Floats may differ between members; other fields may not."""
    batches_per_update: int
    """Gradient steps in one call of `update`. Each gradient step uses its own batch."""
    init: Callable[[PRNGKeyArray, PlantSpec, Any], Any]
    """(key, spec, config) -> state."""
    update: Update
    act: Callable[[Any, Float[Array, "*n O"]], Float[Array, "*n A"]]
    """(state, normalised observation) -> action in [-1, 1], or one number per choice; the largest number wins."""
    actor: Callable[[Any], Params]
    """state -> weights of the policy to ship. `actor_apply` (for discrete actions: `mlp_apply`) computes `act` from
    these weights."""
    warm_up: Update | None = None
    """Replaces `update` in the first `config.warm_up_updates` gradient steps, for example to train a model. Returns
    metrics with the same names as `update`. None without a warm-up."""
    usual_updates: int = 0
    """Gradient steps of a run for which the defaults of `warm_up_updates` and of decaying schedules are correct. Other
    runs scale these defaults. 0 if no default depends on the length of a run."""
    discrete: bool | None = False
    """Whether an action is one of several choices, given as a one-hot vector, instead of continuous numbers.
    None if the algorithm learns both."""


def wrap_updates(algorithm: Algorithm, wrap: Callable[[Update], Update]) -> Algorithm:
    """Return the algorithm with `wrap(update)` instead of `update`, and `wrap(warm_up)` instead of `warm_up`."""
    return algorithm._replace(update=wrap(algorithm.update), warm_up=algorithm.warm_up and wrap(algorithm.warm_up))


def warm_up_updates(algorithm: Algorithm, config: Any) -> int:
    """Return the number of gradient steps of the warm-up; 0 if the algorithm has no warm-up."""
    return int(config.warm_up_updates) if algorithm.warm_up else 0


def phase(algorithm: Algorithm, warming: bool) -> Algorithm:
    """Return the algorithm with `warm_up` instead of `update` if `warming` is true and the algorithm has a warm-up."""
    if not warming or algorithm.warm_up is None:
        return algorithm
    return algorithm._replace(update=algorithm.warm_up)


class TrainState(NamedTuple):
    """Everything that is needed to continue training. For P members, every array has a leading axis P."""

    learner: Any
    key: UInt32[Array, "*p 2"]
    """Random key of the member. The key never changes; each update derives its own key from this key and `step`."""
    step: Int[Array, "*p"]
    """Gradient steps taken."""


def configure(
    algorithm: Algorithm, overrides: Mapping[str, Any], updates: int | None = None, warmed: bool = False
) -> Any:
    """Return the settings of an algorithm: the given values, and defaults for all other fields.

    Args:
        overrides: values by field name. Integers and NumPy numbers are accepted for floats, lists for tuples, and the
            input of `optimisers.parse` for recipes.
        updates: gradient steps of the run. Default warm-up and schedules are scaled to this number; None: no scaling.
        warmed: whether the run continues an earlier run, so that no warm-up is needed.

    Returns:
        A `Config` of the algorithm.

    Raises:
        ValueError: if a field is unknown, or a value has the wrong type or range.
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
            raise ValueError(f"{name} of {algorithm.name} must be a value such as {defaults[name]!r}, got {value!r}")
    if updates is not None and algorithm.usual_updates:
        defaults |= _fitted(algorithm, defaults, updates, set(overrides), warmed)
    return algorithm.Config(**defaults)


def check_range(algorithm: Algorithm, name: str, value: float) -> float:
    """Return the value of a float hyper-parameter if the value is in the allowed range.

    Raises:
        ValueError: if the value is out of range.

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
    """Return the fields to change so that warm-up and decaying schedules fit a run of `updates` gradient steps.

    `model_recipe` is the optimiser of the warm-up, `recipe` that of all updates, any other name that of later updates.
    """
    warm_up: int = config["warm_up_updates"]
    scaled: dict[str, Any] = {}
    if warmed:
        warm_up = scaled["warm_up_updates"] = 0
    elif "warm_up_updates" not in given:
        share = warm_up / algorithm.usual_updates
        warm_up = scaled["warm_up_updates"] = max(min(round(share * updates), updates - 1), 1)
    for name, recipe in config.items():
        if isinstance(recipe, optimisers.Recipe) and recipe.steps and name not in given:
            steps = {"model_recipe": warm_up, "recipe": updates}.get(name, updates - warm_up)
            scaled[name] = recipe._replace(steps=max(steps, recipe.warmup + 1))
    return scaled


def hyperparameters(config: Any) -> Hyperparameters:
    """Return the float fields of a config by name, as arrays."""
    return {k: jnp.asarray(v) for k, v in config._asdict().items() if isinstance(v, float | jax.Array)}


def polyak(target: Params, online: Params, tau: Float[Array, ""]) -> Params:
    """Return the weights of a target network after one step of Polyak averaging: `target + tau (online - target)`."""
    return jax.tree.map(lambda t, o: t + tau * (o - t), target, online)


@dataclass(frozen=True)
class Member:
    """Seed and hyper-parameters of one member of a population."""

    index: int
    """Position in the population, from 0; also the row in the learning curves."""
    seed: int
    hyperparameters: dict[str, float]
    """Values of the hyper-parameters that differ between members."""


def members(seeds: Sequence[int], grid: Mapping[str, Sequence[float]]) -> list[Member]:
    """Return one member for each combination of grid values and seed."""
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
    """Return the initial training state of all members.

    Args:
        population: P members. All members must give values for the same hyper-parameters.

    Returns:
        A state with the leading axis P on every array.

    Raises:
        ValueError: if there are no members, or a member's hyper-parameter is not a float field or is out of range.
    """
    if not population:
        raise ValueError(
            "a population needs at least one member, got 0: give at least one seed, and one value for every grid field"
        )
    floats = [name for name, value in config._asdict().items() if isinstance(value, float)]
    varied = list(population[0].hyperparameters)
    for name in varied:
        if name not in floats:
            raise ValueError(f"the grid of {algorithm.name} has the field {name!r}: use only {', '.join(floats)}")
    values = {
        name: jnp.asarray([check_range(algorithm, name, member.hyperparameters[name]) for member in population])
        for name in varied
    }
    keys = jnp.stack([jax.random.key(m.seed, impl="threefry2x32") for m in population])
    return _make_init(algorithm, spec, config)(keys, values)


def sampled_update(
    algorithm: Algorithm, state: TrainState, data: Transition, rows: int | Int[Array, ""], batch_size: int
) -> tuple[TrainState, Metrics]:
    """Call the algorithm's `update` once, on random batches. The batches depend only on the member's key and step.

    Args:
        data: prepared transitions (N, ...).
        rows: batches are drawn uniformly, with replacement, from the first `rows` rows of the data.
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
    """Return a compiled function that takes `updates` gradient steps with all members of a population.

    Random numbers depend only on the member's key and step, so the chunk length does not change the result.

    Args:
        updates: gradient steps, a multiple of `log_every`.
        log_every: gradient steps averaged into one row, a multiple of the algorithm's `batches_per_update`.
        batch_size: transitions per gradient step, drawn uniformly with replacement.

    Returns:
        `(population, prepared transitions) -> (population, metrics)`; metrics have shape (P, updates // log_every).

    Raises:
        ValueError: if a number is not positive, or not a multiple as required above.
    """
    batches = algorithm.batches_per_update
    if min(updates, log_every, batch_size) < 1 or updates % log_every or log_every % batches:
        raise ValueError(
            f"got updates {updates}, log_every {log_every} and batch_size {batch_size}: updates must be a multiple of "
            f"log_every, log_every a multiple of {batches} for {algorithm.name}, and batch_size positive"
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
    """Return for each member (P,) whether a metric is NaN or infinite, or larger than `limit` (`Scaling.limit`)."""
    bad = [~(jnp.abs(x) <= limit) for x in jax.tree.leaves(metrics)]
    return jnp.any(jnp.stack(bad), axis=(0, 2))


def member(population: TrainState, index: int) -> TrainState:
    """Return the state of one member, without the leading axis P."""
    one: TrainState = jax.tree.map(lambda x: x[index], population)
    return one


def policies(algorithm: Algorithm, population: TrainState, normaliser: Normaliser) -> list[Policy]:
    """Return the policy of each member."""
    # Copy only the actors, because optimisers and critics are many times larger.
    actors = jax.vmap(algorithm.actor)(population.learner)
    return [Policy(jax.tree.map(itemgetter(i), actors), normaliser) for i in range(population.step.shape[0])]
