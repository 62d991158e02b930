"""Optimiser recipes against NumPy and optax schedules, and recipes in YAML."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from neorl_core.algorithms import BC, TD3_BC
from neorl_core.training import optimisers
from neorl_core.training.optimisers import SAC, TD3, Recipe, parse, rate
from neorl_core.training.population import configure, init_population, make_train_chunk, member, members
from neorl_core.types import Params
from tests.by_hand import batch_of, spec, start

RNG = np.random.default_rng(0)
START = {"w": RNG.normal(size=(3, 2)), "b": RNG.normal(size=2)}


def descend(recipe: Recipe, gradients: list[Params], learning_rate: float = 0.1) -> list[Params]:
    """Parameters after each gradient step, in double precision."""
    with jax.enable_x64(True):
        params, found = jax.tree.map(jnp.asarray, START), []
        optimiser = optimisers.init(recipe, params)
        step = jax.jit(optimisers.step)
        for gradient in gradients:
            params, optimiser = step(params, gradient, optimiser, jnp.asarray(learning_rate))
            found.append(jax.tree.map(np.asarray, params))
    return found


def gradients(n: int, size: float = 1.0) -> list[Params]:
    return [jax.tree.map(lambda x: size * RNG.normal(size=x.shape), START) for _ in range(n)]


def norm(gradient: Params) -> float:
    return float(np.sqrt(sum(np.sum(g**2) for g in jax.tree.leaves(gradient))))


def assert_close(one: Params, other: Params, rtol: float = 1e-12) -> None:
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-14)


def adam(gradients: list[Params], rates: list[float]) -> list[Params]:
    """Kingma & Ba 2015, algorithm 1, with its default constants, in NumPy."""
    found, params = [], START
    m, v = (jax.tree.map(np.zeros_like, START) for _ in range(2))
    for t, (gradient, alpha) in enumerate(zip(gradients, rates, strict=True), start=1):
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, gradient)
        v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g**2, v, gradient)

        def move(p: Any, m: Any, v: Any, t: int = t, alpha: float = alpha) -> Any:
            return p - alpha * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)

        params = jax.tree.map(move, params, m, v)
        found.append(params)
    return found


def moves(params: list[Params]) -> list[Params]:
    return [jax.tree.map(np.subtract, a, b) for a, b in itertools.pairwise([START, *params])]


def test_presets_are_adam_and_clipped_adam() -> None:
    large = gradients(3, size=5.0)
    assert_close(descend(TD3, large), adam(large, [0.1] * 3), rtol=1e-7)
    clipped = [jax.tree.map(lambda x, g=g: x / max(norm(g), 1.0), g) for g in large]
    assert min(norm(g) for g in large) > 1.0
    assert_close(descend(SAC, large), adam(clipped, [0.1] * 3), rtol=1e-7)
    small = gradients(3, size=0.05)
    assert max(norm(g) for g in small) < 1.0
    assert_close(descend(SAC, small), adam(small, [0.1] * 3), rtol=1e-7)


def test_each_network_of_an_ensemble_is_clipped_by_itself() -> None:
    # By hand: norms 5 and 0.5, clipped to 1; clipped together, both would shrink to a fifth.
    ensemble = ({"kernel": jnp.array([3.0, 4.0])}, {"kernel": jnp.array([0.3, 0.4])})
    nothing = jax.tree.map(jnp.zeros_like, ensemble)
    recipe = Recipe(method="sgd", clip=1.0)
    moved, _ = optimisers.step(nothing, ensemble, optimisers.init(recipe, nothing), jnp.float32(1.0))
    np.testing.assert_allclose(moved[0]["kernel"], [-0.6, -0.8], rtol=1e-6)
    np.testing.assert_allclose(moved[1]["kernel"], [-0.3, -0.4], rtol=1e-6)


def test_sgd_subtracts_the_gradient_and_clipping_bounds_its_length() -> None:
    (gradient,) = gradients(1, size=3.0)
    assert_close(descend(Recipe(method="sgd"), [gradient])[0], jax.tree.map(lambda p, g: p - 0.1 * g, START, gradient))
    moved = jax.tree.map(np.subtract, START, descend(Recipe(method="sgd", clip=0.5), [gradient])[0])
    assert norm(moved) == pytest.approx(0.1 * 0.5, rel=1e-9)


@pytest.mark.parametrize(
    ("recipe", "truth"),
    [
        (Recipe(schedule="cosine", steps=8), optax.cosine_decay_schedule(1.0, 8)),
        (Recipe(schedule="linear", steps=8), optax.linear_schedule(1.0, 0.0, 8)),
        # optax's warm-up starts at zero; ours starts above zero.
        (
            Recipe(schedule="cosine", warmup=3, steps=8),
            optax.join_schedules([optax.linear_schedule(1 / 3, 4 / 3, 3), optax.cosine_decay_schedule(1.0, 5)], [3]),
        ),
        (Recipe(warmup=4), optax.linear_schedule(1 / 4, 1.0, 3)),
        (Recipe(), optax.constant_schedule(1.0)),
    ],
)
def test_schedules_are_learning_rates_step_by_step(recipe: Recipe, truth: optax.Schedule) -> None:
    rates = [float(truth(t)) for t in range(10)]
    np.testing.assert_allclose([float(rate(recipe, jnp.int32(t))) for t in range(10)], rates, atol=1e-6)
    given = gradients(10)
    steps, plain = moves(descend(recipe, given)), moves(adam(given, [0.1] * 10))
    # Adam's moments do not see the rate, so each step is the plain one times its factor.
    for step, whole, factor in zip(steps, plain, rates, strict=True):
        for a, b in zip(jax.tree.leaves(step), jax.tree.leaves(whole), strict=True):
            np.testing.assert_allclose(a, factor * b, rtol=1e-5, atol=1e-7)


def test_accumulated_gradients_make_one_step_of_their_mean() -> None:
    given = gradients(6)
    found = descend(Recipe(accumulate=3, clip=1.0, schedule="linear", steps=4), given)
    means = [jax.tree.map(lambda *g: np.mean(g, axis=0), *given[i : i + 3]) for i in (0, 3)]
    assert_close(found[2:6:3], descend(Recipe(clip=1.0, schedule="linear", steps=4), means), rtol=1e-9)
    for still in (found[0], found[1]):
        assert_close(still, START)
    assert_close(found[3], found[2])


def test_a_learning_rate_may_change_at_run_time_and_between_members() -> None:
    config = BC.Config(hidden=(4,), actor_recipe=Recipe(method="sgd", schedule="cosine", steps=100))
    data = jax.tree.map(jnp.float32, batch_of(np.random.default_rng(1), 32))
    fresh = init_population(BC, spec(3, 2), config, members([5], {"actor_lr": [0.0, 0.01, 0.02]}))
    chunk = make_train_chunk(BC, 1, 1, 16)

    def moved(population: Any, index: int) -> np.ndarray:
        one, other = (member(p, index).learner.actor["Dense_1"]["kernel"] for p in (population, fresh))
        return np.asarray(one) - np.asarray(other)

    after, _ = chunk(fresh, data)
    assert np.all(moved(after, 0) == 0.0)
    np.testing.assert_allclose(moved(after, 2), 2 * moved(after, 1), rtol=1e-3, atol=1e-7)
    rates = jnp.array([0.03, 0.0, 0.0], jnp.float32)
    learner = fresh.learner._replace(hyper=fresh.learner.hyper | {"actor_lr": rates})
    other, _ = chunk(fresh._replace(learner=learner), data)
    np.testing.assert_allclose(moved(other, 0), 3 * moved(after, 1), rtol=1e-3, atol=1e-7)
    assert np.all(moved(other, 1) == 0.0)
    assert chunk._cache_size() == 1  # type: ignore[attr-defined]


def test_actor_and_critics_have_separate_recipes() -> None:
    recipes = {"actor_recipe": Recipe(accumulate=2), "critic_recipe": Recipe(method="sgd", clip=1e-3)}
    state = start(TD3_BC, TD3_BC.Config(hidden=(4,), critic_lr=3.0, **recipes))
    batches = jax.tree.map(jnp.float32, batch_of(np.random.default_rng(2), 2, 8))
    after, _ = jax.jit(TD3_BC.update)(state, batches, jax.random.key(1))
    assert_close(after.actor, state.actor)
    # Two steps of 3 for each critic, along gradients of length 1e-3.
    for critic, before in zip(after.critics, state.critics, strict=True):
        moved = norm(jax.tree.map(lambda a, b: np.float64(a) - np.float64(b), critic, before))
        assert 3e-3 < moved <= 2 * 3e-3 * 1.001
    again, _ = jax.jit(TD3_BC.update)(after, batches, jax.random.key(2))
    assert norm(jax.tree.map(lambda a, b: np.asarray(a - b), again.actor, state.actor)) > 1e-4


def test_recipes_are_presets_or_changes_of_one() -> None:
    assert parse("sac") == Recipe("adam", 1.0)
    assert parse("td3") == parse({}) == Recipe()
    assert parse({"preset": "sac", "schedule": "cosine", "steps": 100, "warmup": 10}) == Recipe(
        clip=1.0, schedule="cosine", warmup=10, steps=100
    )
    assert parse({"clip": 2, "accumulate": 4}) == Recipe(clip=2.0, accumulate=4)
    assert isinstance(parse({"clip": 2}).clip, float)
    config = configure(TD3_BC, {"actor_recipe": {"schedule": "linear", "steps": 50}, "critic_recipe": "sac"})
    assert config == TD3_BC.Config(actor_recipe=Recipe(schedule="linear", steps=50), critic_recipe=SAC)
    assert configure(TD3_BC, {"actor_recipe": SAC}).actor_recipe == SAC


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("sca", ["td3, sac", "'sca'"]),
        (3, ["td3, sac", "3"]),
        ({"preset": ["sac"]}, ["preset", "['sac']"]),
        ({"clipp": 1.0}, ["clip", "'clipp'"]),
        ({"clip": "1"}, ["clip", "float", "'1'"]),
        ({"clip": [1]}, ["clip", "[1]"]),
        ({"clip": float("nan")}, ["at least 0", "nan"]),
        ({"clip": float("inf")}, ["at least 0", "inf"]),
        ({"warmup": 1.5}, ["warmup", "1.5"]),
        ({"accumulate": True}, ["accumulate", "True"]),
        ({"accumulate": 0}, ["accumulate at least 1"]),
        ({"method": "lion"}, ["adam, sgd", "'lion'"]),
        ({"schedule": "step", "steps": 10}, ["constant, linear, cosine", "'step'"]),
        ({"schedule": "cosine"}, ["must exceed warmup", "got steps 0"]),
        ({"schedule": "linear", "warmup": 10, "steps": 10}, ["warmup 10"]),
        ({"steps": 10}, ["with a constant schedule steps must be 0"]),
    ],
)
def test_invalid_recipes_are_rejected(value: Any, named: list[str]) -> None:
    with pytest.raises(ValueError, match="actor_recipe of bc") as error:
        configure(BC, {"actor_recipe": value})
    text = str(error.value)
    assert all(word in text for word in named), text


def test_recipes_from_python_are_checked() -> None:
    with pytest.raises(ValueError, match="method of a recipe must be one of adam, sgd, got 'adm'"):
        start(BC, BC.Config(hidden=(4,), actor_recipe=Recipe(method="adm")))
