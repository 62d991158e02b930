"""The one training loop: every algorithm, every population, one compiled program."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, UInt32

from neorl_core import optimisers
from neorl_core.networks import Normaliser, Policy, normalise, to_unit
from neorl_core.types import Params, PlantSpec, Transition

Metrics = dict[str, Float[Array, "..."]]
Hyperparameters = dict[str, Float[Array, ""]]
"""The numeric hyper-parameters, as arrays: they live in the state, so that members of a population may differ."""


class Algorithm(NamedTuple):
    """An offline RL algorithm as pure functions. Its state is a NamedTuple of arrays."""

    name: str
    Config: Callable[..., Any]
    """A NamedTuple type with defaults; its floats are hyper-parameters, the rest is static."""
    batches_per_update: int
    """Gradient steps, each on a batch of its own, that one `update` makes."""
    init: Callable[[PRNGKeyArray, PlantSpec, Any], Any]
    """(key, spec, config) -> state."""
    update: Callable[[Any, Transition, PRNGKeyArray], tuple[Any, Metrics]]
    """(state, batches (batches_per_update, B, ...), key) -> (state, metrics)."""
    act: Callable[[Any, Float[Array, "*n O"]], Float[Array, "*n A"]]
    """(state, normalised observation) -> unit action."""
    actor: Callable[[Any], Params]
    """state -> weights of the deterministic actor that ships: `actor_apply` of them equals `act`."""
    warm_up: Callable[[Any, Transition, PRNGKeyArray], tuple[Any, Metrics]] | None = None
    """What `update` is in the first `config.warm_up_updates` gradient steps, where there is such a part: a model that
    must be learned first. It returns metrics of the same names."""


def phase(algorithm: Algorithm, config: Any, done: int) -> Algorithm:
    """The algorithm as it learns after `done` gradient steps: while it warms up, `warm_up` is its update."""
    if algorithm.warm_up is None or done >= config.warm_up_updates:
        return algorithm
    return algorithm._replace(update=algorithm.warm_up)


class TrainState(NamedTuple):
    """Everything that resuming needs; a population has a leading axis P on every array."""

    learner: Any
    key: UInt32[Array, "*p 2"]
    """Data of the member's key; it never changes, each step folds its number into it."""
    step: Int[Array, "*p"]
    """Gradient steps made."""


def configure(algorithm: Algorithm, overrides: Mapping[str, Any]) -> Any:
    """The algorithm's defaults with some values replaced.

    Args:
        algorithm: whose `Config` is meant.
        overrides: values by field name; integers pass for floats, lists for tuples, and what `optimisers.parse` reads
            for recipes.

    Returns:
        A `Config`.

    Raises:
        ValueError: on an unknown field or a value of another type.
    """
    defaults = algorithm.Config()._asdict()
    for name, value in overrides.items():
        if name not in defaults:
            raise ValueError(f"expected a hyper-parameter of {algorithm.name} ({', '.join(defaults)}), got {name!r}.")
        kind = type(defaults[name])
        if kind is float and type(value) in (int, float) and np.isfinite(value):
            defaults[name] = float(value)
        elif kind is int and type(value) is int and value > 0:
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
    return algorithm.Config(**defaults)


def hyperparameters(config: Any) -> Hyperparameters:
    """The floats of a config as arrays (a population's may be arrays already)."""
    return {k: jnp.asarray(v) for k, v in config._asdict().items() if isinstance(v, float | jax.Array)}


def polyak(target: Params, online: Params, tau: Float[Array, ""]) -> Params:
    """Target networks: `target + tau (online - target)`."""
    return jax.tree.map(lambda t, o: t + tau * (o - t), target, online)


def prepare(transitions: Transition, spec: PlantSpec) -> tuple[Normaliser, Transition]:
    """Turn physical transitions into what the learners see, once, before training.

    Observations become zero mean and unit deviation (a column that hardly moves keeps deviation 1), rewards unit
    deviation. Actions go to [-1, 1] by the range that the logs explored, widened by a tenth on both sides within the
    action space's bounds: a policy cannot command what the plant has never been near. Where no transition
    terminates, the rewards' mean is taken off as well, which shifts every value alike and moves no policy; with
    terminations it would change what ending an episode is worth, so there it stays.

    Args:
        transitions: (N, ...), physical units, each episode's in order of time; only `next_action` looks at the order.
        spec: the plant.

    Returns:
        The normaliser that must ship with the policy, and the transitions as arrays on the device.
    """
    observation = np.asarray(transitions.observation)
    dtype = observation.dtype
    deviation = observation.std(axis=0, dtype=np.float64)
    low, high = explored_range(np.asarray(transitions.action), spec)
    normaliser = Normaliser(
        mean=jnp.asarray(observation.mean(axis=0, dtype=np.float64), dtype),
        scale=jnp.asarray(np.where(deviation > 1e-6, deviation, 1.0), dtype),
        action_centre=jnp.asarray((high + low) / 2, dtype),
        action_half_range=jnp.asarray((high - low) / 2, dtype),
    )
    reward = np.asarray(transitions.reward, np.float64)
    spread = reward.std()
    shift = 0.0 if np.any(np.asarray(transitions.terminated)) else reward.mean()
    return normaliser, Transition(
        observation=normalise(normaliser, jnp.asarray(observation)),
        action=to_unit(normaliser, jnp.asarray(transitions.action)),
        reward=jnp.asarray((reward - shift) / (spread if spread > 1e-6 else 1.0), dtype),
        cost=jnp.asarray(transitions.cost),
        next_observation=normalise(normaliser, jnp.asarray(transitions.next_observation)),
        terminated=jnp.asarray(transitions.terminated, dtype),
        next_action=to_unit(normaliser, jnp.asarray(successors(transitions))),
    )


def successors(transitions: Transition) -> np.ndarray[Any, Any]:
    """The actions (N, A) that were logged at each next observation: the next row's, where it continues this one.

    A row continues another when it observes, bit for bit, what the other saw next; where none does, the answer is NaN.
    What the transitions say themselves counts first.
    """
    if transitions.next_action is not None:
        return np.asarray(transitions.next_action)
    action, after = np.asarray(transitions.action), np.asarray(transitions.next_observation)
    follows = np.all(after[:-1] == np.asarray(transitions.observation)[1:], axis=1)
    found = np.full_like(action, np.nan)
    found[:-1][follows] = action[1:][follows]
    return found


def explored_range(
    action: np.ndarray[Any, Any], spec: PlantSpec, widening: float = 0.1
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The range of logged actions (N, A), widened by a share of itself and kept within the action space's bounds.

    An action that was never moved has explored nothing: it keeps its whole range.

    Returns:
        Lowest and highest action (A,), float64.
    """
    low, high = np.asarray(spec.action.low, np.float64), np.asarray(spec.action.high, np.float64)
    least, most = action.min(axis=0).astype(np.float64), action.max(axis=0).astype(np.float64)
    reach = most - least
    moved = reach > 1e-6 * (high - low)
    return (
        np.where(moved, np.maximum(low, least - widening * reach), low),
        np.where(moved, np.minimum(high, most + widening * reach), high),
    )


def members(seeds: Sequence[int], grid: Mapping[str, Sequence[float]]) -> list[dict[str, Any]]:
    """The population in order: every point of the grid, with every seed.

    Returns:
        `{"index", "seed", "hyperparameters"}` of each member, fit for JSON.
    """
    points = [dict(zip(grid, map(float, values), strict=True)) for values in itertools.product(*grid.values())]
    pairs = itertools.product(points, seeds)
    return [{"index": i, "seed": s, "hyperparameters": p} for i, (p, s) in enumerate(pairs)]


@lru_cache(maxsize=16)
def _make_init(
    algorithm: Algorithm, spec: PlantSpec, config: Any
) -> Callable[[PRNGKeyArray, Hyperparameters], TrainState]:
    def fresh(key: PRNGKeyArray, varied: Hyperparameters) -> TrainState:
        init_key, train_key = jax.random.split(key)
        learner = algorithm.init(init_key, spec, config._replace(**varied))
        return TrainState(learner, jax.random.key_data(train_key), jnp.int32(0))

    return jax.jit(jax.vmap(fresh))


def init_population(
    algorithm: Algorithm, spec: PlantSpec, config: Any, seeds: Sequence[int], grid: Mapping[str, Sequence[float]]
) -> TrainState:
    """Fresh states of seeds x grid.

    Args:
        algorithm: what to train.
        spec: the plant.
        config: the algorithm's `Config`.
        seeds: one member per seed and grid point.
        grid: values by the name of a numeric hyper-parameter; `{}` for none.

    Returns:
        A state whose every array has the leading axis P, ordered as `members`.

    Raises:
        ValueError: when the grid names what is not a float of the config.
    """
    floats = [name for name, value in config._asdict().items() if isinstance(value, float)]
    for name in grid:
        if name not in floats:
            raise ValueError(f"expected a grid over floats of {algorithm.name} ({', '.join(floats)}), got {name!r}.")
    population = members(seeds, grid)
    values = {name: jnp.asarray([m["hyperparameters"][name] for m in population]) for name in grid}

    keys = jnp.stack([jax.random.key(m["seed"], impl="threefry2x32") for m in population])
    return _make_init(algorithm, spec, config)(keys, values)


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
        ValueError: when the numbers do not divide.
    """
    batches = algorithm.batches_per_update
    if min(updates, log_every, batch_size) < 1 or updates % log_every or log_every % batches:
        raise ValueError(
            f"expected updates a multiple of log_every and log_every a multiple of {batches} ({algorithm.name}), "
            f"got {updates} and {log_every}."
        )

    def member(state: TrainState, data: Transition) -> tuple[TrainState, Metrics]:
        rows = data.reward.shape[0]

        def one(state: TrainState, _: None) -> tuple[TrainState, Metrics]:
            key = jax.random.fold_in(jax.random.wrap_key_data(state.key, impl="threefry2x32"), state.step)
            batch_key, update_key = jax.random.split(key)
            drawn = jax.random.randint(batch_key, (batches, batch_size), 0, rows)
            batch: Transition = jax.tree.map(lambda x: x[drawn], data)
            learner, metrics = algorithm.update(state.learner, batch, update_key)
            return TrainState(learner, state.key, state.step + batches), metrics

        def logged(state: TrainState, _: None) -> tuple[TrainState, Metrics]:
            state, metrics = jax.lax.scan(one, state, length=log_every // batches)
            return state, jax.tree.map(jnp.mean, metrics)

        return jax.lax.scan(logged, state, length=updates // log_every)

    return jax.jit(jax.vmap(member, in_axes=(0, None)))


def diverged(metrics: Metrics, limit: float = 1e6) -> Bool[Array, " P"]:
    """Which members left the finite: any metric not finite, or beyond `limit` (prepared rewards have deviation 1)."""
    bad = [~(jnp.abs(x) <= limit) for x in jax.tree.leaves(metrics)]
    return jnp.any(jnp.stack(bad), axis=(0, 2))


def member(population: TrainState, index: int) -> TrainState:
    """One member's state, without the population axis."""
    one: TrainState = jax.tree.map(lambda x: x[index], population)
    return one


def policies(algorithm: Algorithm, population: TrainState, normaliser: Normaliser) -> list[Policy]:
    """What each member would ship."""
    size = population.step.shape[0]
    return [Policy(algorithm.actor(member(population, i).learner), normaliser) for i in range(size)]
