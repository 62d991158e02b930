"""Optimisers of the learners. A recipe describes an optimiser; each member may have its own learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from neorl_core.types import Params


class Recipe(NamedTuple):
    """Settings of one optimiser. An actor has one optimiser, and so has an ensemble of critics."""

    method: str = "adam"
    """A key of METHODS."""
    clip: float = 0.0
    """Largest norm of the gradient; larger gradients are scaled down. 0: no limit. In an ensemble, each network's
    gradient has its own norm."""
    schedule: str = "constant"
    """A key of SCHEDULES: how the learning rate changes during training."""
    warmup: int = 0
    """Number of steps at the start in which the learning rate rises linearly to its full value."""
    steps: int = 0
    """Steps, including `warmup`, after which a linear or cosine schedule reaches zero. 0 for a constant schedule."""
    accumulate: int = 1
    """Number of gradients that are averaged into one step."""


class Optimiser(NamedTuple):
    """A recipe, and the state of its optimiser, such as Adam's running means."""

    recipe: Recipe
    memory: optax.OptState


# A static recipe may pass through jit, scan and vmap. JAX compiles a separate program for each recipe.
jax.tree_util.register_static(Recipe)

TD3 = Recipe()
SAC = Recipe(clip=1.0)
PRESETS = {"td3": TD3, "sac": SAC}
"""Recipes by name, after the algorithms that use them."""

METHODS: dict[str, Callable[[], optax.GradientTransformation]] = {"adam": optax.scale_by_adam, "sgd": optax.identity}
"""Adam (Kingma & Ba 2015, arXiv 1412.6980, algorithm 1, with the paper's constants) and plain gradient descent."""

SCHEDULES: dict[str, Callable[[Float[Array, ""]], Float[Array, ""]]] = {
    "constant": jnp.ones_like,
    "linear": lambda part: 1.0 - part,
    "cosine": lambda part: 0.5 * (1.0 + jnp.cos(math.pi * part)),
}
"""Functions that map the elapsed share of the decay, from 0 to 1, to the factor of the learning rate. The cosine is
equation 5 of Loshchilov & Hutter 2017 (arXiv 1608.03983), without restarts."""


def init(recipe: Recipe, params: Params) -> Optimiser:
    """Return a new optimiser for the given weights.

    Raises:
        ValueError: if the recipe is invalid.
    """
    return Optimiser(recipe, _transformation(recipe, _precision(params)).init(params))


def step(
    params: Params, gradient: Params, optimiser: Optimiser, learning_rate: Float[Array, ""]
) -> tuple[Params, Optimiser]:
    """Take one gradient step. Return the new weights, `params - learning_rate * direction`, and the new optimiser.

    Args:
        optimiser: recipe and state, which give the direction.
        learning_rate: learning rate; the recipe's schedule multiplies it by a factor.
    """
    transformation = _transformation(optimiser.recipe, _precision(params))
    direction, memory = transformation.update(gradient, optimiser.memory)
    return jax.tree.map(lambda p, d: p - learning_rate * d, params, direction), Optimiser(optimiser.recipe, memory)


def parse(value: Any) -> Recipe:
    """Return the recipe for a value from a YAML file.

    Args:
        value: name of a preset, or fields of a `Recipe`, which may change a preset: `{preset: sac, warmup: 100}`.

    Raises:
        ValueError: if a field is unknown or has a wrong value; the message shows the value and the allowed values.
    """
    if isinstance(value, Recipe):
        return check(value)
    fields: dict[str, Any] = dict(value) if isinstance(value, Mapping) else {"preset": value}
    preset = fields.pop("preset", "td3")
    if not isinstance(preset, str) or preset not in PRESETS:
        raise ValueError(f"preset of a recipe must be one of {', '.join(PRESETS)}, got {preset!r}")
    values = PRESETS[preset]._asdict()
    for name, item in fields.items():
        if name not in values:
            raise ValueError(f"unknown field {name!r} of a recipe: use preset, {', '.join(values)}")
        kind = type(values[name])
        if type(item) is not kind and not (kind is float and type(item) is int):
            raise ValueError(f"{name} of a recipe must be of type {kind.__name__}, got {item!r}")
        values[name] = kind(item)
    return check(Recipe(**values))


def check(recipe: Recipe) -> Recipe:
    """Return the recipe if it is valid.

    Raises:
        ValueError: if the method or schedule is unknown, or the numbers do not fit together.
    """
    r = recipe
    if r.method not in METHODS:
        raise ValueError(f"method of a recipe must be one of {', '.join(METHODS)}, got {r.method!r}")
    if r.schedule not in SCHEDULES:
        raise ValueError(f"schedule of a recipe must be one of {', '.join(SCHEDULES)}, got {r.schedule!r}")
    if not 0.0 <= r.clip < math.inf or min(r.warmup, r.steps) < 0 or r.accumulate < 1:
        raise ValueError(f"in {r}, clip, warmup and steps must be at least 0, and accumulate at least 1")
    if (r.steps <= r.warmup) if r.schedule != "constant" else (r.steps > 0):
        raise ValueError(
            f"got steps {r.steps}, schedule {r.schedule!r} and warmup {r.warmup} in a recipe: with a constant schedule "
            "steps must be 0, with any other schedule steps must exceed warmup"
        )
    return recipe


def rate(recipe: Recipe, count: Int[Array, ""]) -> Float[Array, ""]:
    """Return the factor of the learning rate after `count` steps: linear rise times schedule."""
    part = jnp.clip((count - recipe.warmup) / max(recipe.steps - recipe.warmup, 1), 0.0, 1.0)
    rise = jnp.minimum(1.0, (count + 1) / max(recipe.warmup, 1))
    return rise * SCHEDULES[recipe.schedule](part)


@lru_cache(maxsize=64)
def _transformation(recipe: Recipe, precision: Any) -> optax.GradientTransformation:
    check(recipe)
    parts = [METHODS[recipe.method]()]
    if recipe.clip > 0.0:
        parts.insert(0, _clipped(recipe.clip))
    if recipe.warmup or recipe.steps:
        parts.append(optax.scale_by_schedule(lambda count: rate(recipe, count)))
    whole = optax.chain(*parts) if len(parts) > 1 else parts[0]
    if recipe.accumulate > 1:
        whole = optax.MultiSteps(whole, recipe.accumulate, accumulator_dtype=precision).gradient_transformation()
    return whole


def _precision(params: Params) -> Any:
    return jax.tree.leaves(params)[0].dtype


def _clipped(norm: float) -> optax.GradientTransformation:
    """Return a transformation that limits the gradient's norm. A plain tuple is an ensemble: one norm per network."""
    whole = optax.clip_by_global_norm(norm)

    def update(
        gradient: optax.Updates, memory: optax.OptState, params: Params = None
    ) -> tuple[optax.Updates, optax.OptState]:
        each = gradient if type(gradient) is tuple else (gradient,)
        clipped: tuple[optax.Updates, ...] = tuple(whole.update(one, memory)[0] for one in each)
        return clipped if type(gradient) is tuple else clipped[0], memory

    return optax.GradientTransformation(whole.init, update)
