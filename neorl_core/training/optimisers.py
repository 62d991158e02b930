"""Optimisers from serialisable recipes; the learning rate is an array in the state, so members may differ in it."""

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
    """Static settings of the optimiser of one group of parameters (an actor, an ensemble of critics)."""

    method: str = "adam"
    """A key of METHODS."""
    clip: float = 0.0
    """Clip the gradient to this global norm; 0 disables. Each network of an ensemble is clipped on its own, so that a
    critic does not depend on the number of critics."""
    schedule: str = "constant"
    """A key of SCHEDULES, the factor of the learning rate."""
    warmup: int = 0
    """Steps of a linear rise of the learning rate at the start."""
    steps: int = 0
    """Steps, including the warm-up, after which a decaying schedule reaches zero; 0 with a constant one."""
    accumulate: int = 1
    """Number of gradients averaged into one step."""


class Optimiser(NamedTuple):
    """Recipe and optimiser state of one group; the recipe is static structure."""

    recipe: Recipe
    memory: optax.OptState


# As static structure a recipe passes through jit, scan and vmap, and each recipe compiles its own program.
jax.tree_util.register_static(Recipe)

TD3 = Recipe()
SAC = Recipe(clip=1.0)
PRESETS = {"td3": TD3, "sac": SAC}
"""Named recipes; algorithms of these families use a learning rate of 3e-4."""

METHODS: dict[str, Callable[[], optax.GradientTransformation]] = {"adam": optax.scale_by_adam, "sgd": optax.identity}
"""Adam (Kingma & Ba 2015, arXiv 1412.6980, algorithm 1, with its constants) and plain gradient descent."""

SCHEDULES: dict[str, Callable[[Float[Array, ""]], Float[Array, ""]]] = {
    "constant": jnp.ones_like,
    "linear": lambda part: 1.0 - part,
    "cosine": lambda part: 0.5 * (1.0 + jnp.cos(math.pi * part)),
}
"""Factor of the learning rate by the elapsed share of the decay; cosine as in Loshchilov & Hutter 2017 (arXiv
1608.03983), equation 5, without restarts."""


def init(recipe: Recipe, params: Params) -> Optimiser:
    """Return a fresh optimiser.

    Raises:
        ValueError: if the recipe is invalid.
    """
    return Optimiser(recipe, _transformation(recipe, _precision(params)).init(params))


def step(
    params: Params, gradient: Params, optimiser: Optimiser, learning_rate: Float[Array, ""]
) -> tuple[Params, Optimiser]:
    """Take one gradient step: `params - learning_rate direction`, with the direction from the recipe.

    Args:
        params: weights before the step.
        gradient: gradient of the loss, shaped like the weights.
        optimiser: recipe and state.
        learning_rate: learning rate before the schedule.
    """
    transformation = _transformation(optimiser.recipe, _precision(params))
    direction, memory = transformation.update(gradient, optimiser.memory)
    return jax.tree.map(lambda p, d: p - learning_rate * d, params, direction), Optimiser(optimiser.recipe, memory)


def parse(value: Any) -> Recipe:
    """Parse a recipe from YAML.

    Args:
        value: name of a preset, or fields of a `Recipe` that may extend a preset: `{preset: sac, warmup: 100}`.

    Raises:
        ValueError: with the invalid value and the allowed ones.
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
    """Return the recipe after checking it.

    Raises:
        ValueError: on unknown names or inconsistent numbers.
    """
    r = recipe
    if r.method not in METHODS:
        raise ValueError(f"method of a recipe must be one of {', '.join(METHODS)}, got {r.method!r}")
    if r.schedule not in SCHEDULES:
        raise ValueError(f"schedule of a recipe must be one of {', '.join(SCHEDULES)}, got {r.schedule!r}")
    if not 0.0 <= r.clip < math.inf or min(r.warmup, r.steps) < 0 or r.accumulate < 1:
        raise ValueError(f"clip, warmup and steps of a recipe must be at least 0 and accumulate at least 1, got {r}")
    if (r.steps <= r.warmup) if r.schedule != "constant" else (r.steps > 0):
        raise ValueError(
            "steps of a recipe must exceed warmup with a decaying schedule, and be 0 with a constant one, got steps "
            f"{r.steps}, schedule {r.schedule!r} and warmup {r.warmup}"
        )
    return recipe


def rate(recipe: Recipe, count: Int[Array, ""]) -> Float[Array, ""]:
    """Return the factor of the learning rate after `count` steps: `min(1, (count + 1) / warmup) schedule(part)`."""
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
    """Build clipping `g min(1, norm / |g|)`; an ensemble (a plain tuple) is clipped network by network."""
    whole = optax.clip_by_global_norm(norm)

    def update(
        gradient: optax.Updates, memory: optax.OptState, params: Params = None
    ) -> tuple[optax.Updates, optax.OptState]:
        each = gradient if type(gradient) is tuple else (gradient,)
        clipped: tuple[optax.Updates, ...] = tuple(whole.update(one, memory)[0] for one in each)
        return clipped if type(gradient) is tuple else clipped[0], memory

    return optax.GradientTransformation(whole.init, update)
