"""Properties of every algorithm in ALGORITHMS; `test_population.py` tests interruptions and recompilation."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neorl_core.algorithms import ALGORITHMS, CONTINUOUS
from neorl_core.networks import Policy, actor_apply, mlp_apply, normalise, policy_act, to_physical
from neorl_core.training.optimisers import Optimiser, Recipe
from neorl_core.training.population import Algorithm, configure
from neorl_core.training.preparation import prepare
from neorl_core.types import PlantSpec, Space, Transition
from tests.by_hand import batch_of, start
from tests.sampled import FEW_ALGORITHMS, sampled

PLANT = PlantSpec(
    name="toy",
    observation=Space(("x", "y", "z"), ("m",) * 3, (-9.0,) * 3, (9.0,) * 3),
    action=Space(("u", "v"), ("N",) * 2, (-2.0,) * 2, (6.0,) * 2),
    constraints=(),
    dt=1.0,
    time_unit="s",
    horizon=10,
    score_range=(0.0, 1.0),
)
members = pytest.mark.parametrize("name", sampled(sorted(ALGORITHMS), FEW_ALGORITHMS))


WITH_A_MODEL = sorted(name for name, algorithm in ALGORITHMS.items() if algorithm.warm_up)
"""Algorithms that learn a model of the plant before all else."""


WITHOUT_DRAWS = {"bc", "bptt", "iql", "discrete_bc", "discrete_cql", "discrete_iql", "double_dqn"}
"""Algorithms with deterministic updates; only the sampled rows are random."""


def small(algorithm: Algorithm, **overrides: Any) -> Any:
    few = {"model_hidden": [8], "members": 2, "elites": 2, "horizon": 3, "starts": 8, "warm_up_updates": 8}
    fields = algorithm.Config._fields
    few = {name: value for name, value in few.items() if algorithm.warm_up and name in fields}
    return configure(algorithm, {"hidden": [8], **few, **overrides})


@lru_cache(maxsize=32)
def updater(name: str) -> Callable[..., Any]:
    return jax.jit(ALGORITHMS[name].update)


def batches_for(algorithm: Algorithm, seed: int = 6) -> Transition:
    return jax.tree.map(jnp.float32, batch_of(np.random.default_rng(seed), algorithm.batches_per_update, 8))


def logged(written: Callable[[np.ndarray], np.ndarray] = lambda u: u, reward: float = 1.0) -> Transition:
    """Twenty episodes of ten steps without termination; `written` scales the actions."""
    rng = np.random.default_rng(0)
    observation = rng.normal(size=(20, 11, 3)).astype(np.float32)
    action = rng.uniform(-2, 6, size=(200, 2)).astype(np.float32)
    return Transition(
        observation=observation[:, :-1].reshape(-1, 3),
        action=written(action),
        reward=reward * rng.normal(size=200).astype(np.float32),
        cost=np.zeros(200, np.float32),
        next_observation=observation[:, 1:].reshape(-1, 3),
        terminated=np.zeros(200, np.float32),
    )


def trained(algorithm: Algorithm, update: Callable[..., Any], state: Any, keys: jax.Array, data: Transition) -> Any:
    """The state after ten updates with keys folded by number."""
    rng = np.random.default_rng(1)
    for i in range(10):
        drawn = rng.integers(0, 200, size=(algorithm.batches_per_update, 8))
        fold = jax.random.fold_in if keys.ndim == 0 else jax.vmap(jax.random.fold_in, in_axes=(0, None))
        state, _ = update(state, jax.tree.map(lambda x, drawn=drawn: x[drawn], data), fold(keys, i))
    return state


def bits(tree: Any) -> list[bytes]:
    return [np.asarray(x).tobytes() for x in jax.tree.leaves(tree)]


def kinds(tree: Any) -> Any:
    return jax.tree.structure(tree), [(x.shape, x.dtype, x.weak_type) for x in jax.tree.leaves(tree)]


def gap(one: Any, other: Any) -> float:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return max(float(np.abs(np.asarray(a, float) - np.asarray(b, float)).max()) for a, b in pairs)


@members
def test_update_keeps_structure_and_dtypes(name: str) -> None:
    algorithm = ALGORITHMS[name]
    state, batches = start(algorithm, small(algorithm)), batches_for(algorithm)
    # With 64-bit numbers enabled, any 64-bit array would widen the result. optax's Adam raises a float to an
    # integer power, so promotion cannot be made an error.
    with jax.numpy_rank_promotion("raise"), jax.enable_x64(True):
        after, metrics = jax.eval_shape(algorithm.update, state, batches, jax.random.key(1))
    described = jax.tree.map(lambda x: (x.shape, x.dtype), after)
    assert described == jax.tree.map(lambda x: (x.shape, x.dtype), state)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    assert {(x.shape, x.dtype) for x in metrics.values()} == {((), jnp.dtype("float32"))}
    assert {x.dtype.name for x in jax.tree.leaves(state)} <= {"float32", "int32", "uint32"}, "what checkpoints can hold"


@members
def test_actions_are_bounded_and_equal_the_shipped_actor(name: str) -> None:
    algorithm = ALGORITHMS[name]
    batches = batches_for(algorithm)
    state, metrics = updater(name)(start(algorithm, small(algorithm)), batches, jax.random.key(1))
    assert all(np.isfinite(value) for value in metrics.values())
    for observation in (batches.observation, 1e4 * batches.observation, batches.observation[0, 0]):
        action = algorithm.act(state, observation)
        assert action.shape == (*observation.shape[:-1], 2)
        assert algorithm.discrete or np.all(np.abs(action) <= 1.0)
        apply = mlp_apply if algorithm.discrete else actor_apply
        np.testing.assert_allclose(apply(algorithm.actor(state), observation), action, rtol=1e-6, atol=1e-7)
    assert np.ptp(algorithm.act(state, batches.observation), axis=1).min() > 1e-3, "the policy must look at the plant"


@members
def test_results_depend_only_on_the_key(name: str) -> None:
    algorithm = ALGORITHMS[name]
    state, batches = start(algorithm, small(algorithm)), batches_for(algorithm)
    update = updater(name)
    first = update(state, batches, jax.random.key(1))
    compiled = update._cache_size()
    assert bits(update(state, batches, jax.random.key(1))) == bits(first)
    copied = jax.tree.map(jnp.array, state)
    assert bits(update(copied, batches, jax.random.key(1))) == bits(first)
    other = update(state, batches, jax.random.key(2))
    assert (bits(other[0]) == bits(first[0])) == (name in WITHOUT_DRAWS)
    assert update._cache_size() == compiled, "the second call must not compile"
    assert bits(start(algorithm, small(algorithm))) == bits(state)
    assert bits(algorithm.actor(start(algorithm, small(algorithm), seed=1))) != bits(algorithm.actor(state))


@pytest.mark.slow
@members
def test_member_alone_equals_member_among_eight(name: str) -> None:
    """To 1e-5 after 10 updates: XLA sums batched products in another order, and Adam amplifies the last bits."""
    algorithm = ALGORITHMS[name]
    _, data = prepare(logged(), PLANT)
    states = [start(algorithm, small(algorithm), seed=i) for i in range(8)]
    keys = jnp.stack([jax.random.key(i) for i in range(8)])
    population = jax.tree.map(lambda *x: jnp.stack(x), *states)
    together = jax.jit(jax.vmap(updater(name), in_axes=(0, None, 0)))
    several = trained(algorithm, together, population, keys, data)
    alone = trained(algorithm, updater(name), states[5], keys[5], data)
    members = [jax.tree.map(lambda x, i=i: x[i], several) for i in range(8)]
    assert gap(members[5], alone) < 1e-5
    actors = [algorithm.actor(one) for one in members]
    assert min(gap(a, b) for i, a in enumerate(actors) for b in actors[:i]) > 1e-2, "members must differ by more"


def of_warm_up(path: str) -> bool:
    """Whether an array of the state changes only during the warm-up."""
    return any(part in path for part in (".model.", ".support.", ".clone_optimiser."))


@members
def test_one_step_per_batch(name: str) -> None:
    algorithm = ALGORITHMS[name]
    state, batches = start(algorithm, small(algorithm)), batches_for(algorithm)
    after, _ = updater(name)(state, batches, jax.random.key(1))
    counts = {
        jax.tree_util.keystr(path): int(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(after)
        if jax.tree_util.keystr(path).endswith(".count") and not of_warm_up(jax.tree_util.keystr(path))
    }
    assert max(counts.values()) == algorithm.batches_per_update, counts
    assert min(counts.values()) >= 1
    for i in range(algorithm.batches_per_update):
        other = batches._replace(action=batches.action.at[i].multiply(-0.5), reward=batches.reward.at[i].add(1.0))
        if name in WITHOUT_LOGGED_STEPS:
            other = batches._replace(observation=batches.observation.at[i].multiply(-0.5))
        assert gap(updater(name)(state, other, jax.random.key(1))[0], after) > 1e-5, f"batch {i} is not used"


WITHOUT_LOGGED_STEPS = ("bptt",)
"""The policy is trained on logged states only; actions and rewards train the model."""


def without_bootstrapping(algorithm: Algorithm) -> bool:
    return "discount" not in algorithm.Config._fields


@members
def test_only_a_termination_stops_bootstrapping(name: str) -> None:
    """If every transition terminates, the discount must not matter.

    A time limit is not part of a transition: to a learner it is any other step.
    """
    algorithm = ALGORITHMS[name]
    if without_bootstrapping(algorithm):
        pytest.skip("learns no value")
    batches = batches_for(algorithm)
    key, start_here = jax.random.key(1), start(algorithm, small(algorithm))

    def discounted(state: Any, share: float) -> Any:
        """The same state with another discount, also in nested states."""
        if hasattr(state, "hyper"):
            # Keep the weak type, otherwise the update is compiled again.
            return state._replace(hyper=state.hyper | {"discount": jnp.asarray(share)})
        return state._replace(sac=discounted(state.sac, share))

    def ending(state: Any, terminated: float) -> Any:
        """The same state with a model (if any) that predicts termination always or never."""
        if not algorithm.warm_up:
            return state

        def certain(path: Any, leaf: jax.Array) -> jax.Array:
            of_logit = jax.tree_util.keystr(path).endswith("['outcome']['Dense_1']['bias']")
            return leaf.at[1].set(1e3 * (2 * terminated - 1)) if of_logit else leaf

        members = tuple(jax.tree_util.tree_map_with_path(certain, member) for member in state.model.members)
        return state._replace(model=state.model._replace(members=members))

    def after(terminated: float, share: float) -> Any:
        given = batches._replace(terminated=jnp.full_like(batches.terminated, terminated))
        updated, _ = updater(name)(discounted(ending(start_here, terminated), share), given, key)
        return discounted(updated, 1.0)

    assert bits(after(1.0, 1.0)) == bits(after(1.0, 0.1))
    assert gap(after(0.0, 1.0), after(0.0, 0.1)) > 1e-5


@pytest.mark.parametrize("name", sampled(sorted(CONTINUOUS), FEW_ALGORITHMS))
def test_policies_do_not_depend_on_units(name: str) -> None:
    """The same plant in other units gives the same policy in those units.

    With powers of two and a round shift the normalised numbers agree to a few last bits; learning amplifies them.
    """
    algorithm = ALGORITHMS[name]
    shifted = Space(("u", "v"), ("kN", "kN"), (300.0 - 2.0 / 4,) * 2, (300.0 + 6.0 / 4,) * 2)
    other = logged(lambda u: (300.0 + u / 4).astype(np.float32), reward=8.0)
    seen = np.random.default_rng(3).normal(size=(50, 3)).astype(np.float32)
    found = []
    for plant, data in ((PLANT, logged()), (PLANT._replace(action=shifted), other)):
        normaliser, prepared = prepare(data, plant)
        begun = start(algorithm, small(algorithm))
        state = trained(algorithm, updater(name), begun, jax.random.key(0), prepared)
        action = policy_act(Policy(algorithm.actor(state), normaliser), seen)
        assert np.all((action >= np.asarray(plant.action.low)) & (action <= np.asarray(plant.action.high)))
        unit = algorithm.act(state, normalise(normaliser, seen))
        np.testing.assert_allclose(action, to_physical(normaliser, unit), rtol=1e-6)
        found.append(np.asarray(action))
    np.testing.assert_allclose(found[1], 300.0 + found[0] / 4, atol=1e-3)
    assert np.ptp(found[0]) > 0.1


@members
def test_recipes_reach_every_group_of_parameters(name: str) -> None:
    algorithm = ALGORITHMS[name]
    fields = [field for field, value in algorithm.Config()._asdict().items() if isinstance(value, Recipe)]
    assert {"actor_recipe", "critic_recipe"} & set(fields)
    recipes = {field: Recipe(clip=1.0 + i, schedule="cosine", steps=9, accumulate=2) for i, field in enumerate(fields)}
    config = small(algorithm, **recipes)
    state = jax.eval_shape(lambda key: algorithm.init(key, PLANT, config), jax.random.key(0))
    leaves = jax.tree.leaves(state, is_leaf=lambda value: isinstance(value, Optimiser))
    # A temperature or a multiplier has its own plain recipe.
    assert {value.recipe for value in leaves if isinstance(value, Optimiser)} - {Recipe()} == set(recipes.values())
    after, _ = jax.eval_shape(algorithm.update, state, batches_for(algorithm), jax.random.key(1))
    assert jax.tree.structure(after) == jax.tree.structure(state)


@pytest.mark.slow
@pytest.mark.parametrize("name", sampled(WITH_A_MODEL, FEW_ALGORITHMS))
def test_warm_up_trains_model_and_may_clone(name: str) -> None:
    algorithm = ALGORITHMS[name]
    state, batches = start(algorithm, small(algorithm)), batches_for(algorithm)
    warm = algorithm.warm_up
    assert warm is not None
    with jax.numpy_rank_promotion("raise"), jax.enable_x64(True):
        described, metrics = jax.eval_shape(warm, state, batches, jax.random.key(1))
    _, later = jax.eval_shape(updater(name), state, batches, jax.random.key(1))
    assert metrics == later, "curves go on where the warm-up ends"
    assert kinds(described) == kinds(state)
    after, _ = jax.jit(warm)(state, batches, jax.random.key(1))
    before = dict(jax.tree_util.tree_leaves_with_path(state))
    changed = {p for p, leaf in jax.tree_util.tree_leaves_with_path(after) if not np.array_equal(leaf, before[p])}
    others = {path for path in map(jax.tree_util.keystr, changed) if not of_warm_up(path)}
    assert all(path.startswith(".actor[") for path in others) if name == "bptt" else not others
    assert gap(after.model.members, state.model.members) > 1e-5
    found = [int(leaf) for leaf in jax.tree.leaves(after.model.optimiser) if leaf.dtype == jnp.int32]
    assert set(found) == {algorithm.batches_per_update}
