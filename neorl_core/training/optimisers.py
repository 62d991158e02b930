"""How parameters follow their gradients: a recipe is configuration, its learning rate an array in the state."""

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
    """What makes steps of gradients, but for the learning rate, in which the members of a population may differ.

    A group of parameters (an actor, an ensemble of critics) has a recipe of its own.
    """

    method: str = "adam"
    """A key of METHODS."""
    clip: float = 0.0
    """The gradient is shrunk to this global norm before the method sees it; 0 leaves it as it is. Each network of an
    ensemble has a norm of its own: what one critic has to learn must not depend on how many others there are."""
    schedule: str = "constant"
    """A key of SCHEDULES: what the learning rate is multiplied by."""
    warmup: int = 0
    """Steps in which the rate first rises to its full height."""
    steps: int = 0
    """Steps, with those of the warm-up, after which a falling schedule is at zero; a constant one has none."""
    accumulate: int = 1
    """Gradients whose mean makes one step."""


class Optimiser(NamedTuple):
    """One group's recipe and what it remembers. The recipe is no array: it is part of the state's structure."""

    recipe: Recipe
    memory: optax.OptState


# Without this a recipe's fields would be leaves. As structure, it reaches `step` through any jit, scan or vmap, and
# another recipe is another compiled program.
jax.tree_util.register_static(Recipe)

TD3 = Recipe()
SAC = Recipe(clip=1.0)
PRESETS = {"td3": TD3, "sac": SAC}
"""Named recipes, to which algorithms of these families add a learning rate of 3e-4."""

METHODS: dict[str, Callable[[], optax.GradientTransformation]] = {"adam": optax.scale_by_adam, "sgd": optax.identity}
"""Kingma & Ba 2015 (arXiv 1412.6980), algorithm 1, with its constants; and the gradient itself."""

SCHEDULES: dict[str, Callable[[Float[Array, ""]], Float[Array, ""]]] = {
    "constant": jnp.ones_like,
    "linear": lambda part: 1.0 - part,
    "cosine": lambda part: 0.5 * (1.0 + jnp.cos(math.pi * part)),
}
"""Factor of the learning rate by the part of its fall that is over; the cosine is Loshchilov & Hutter 2017 (arXiv
1608.03983), equation 5, without restarts."""


def init(recipe: Recipe, params: Params) -> Optimiser:
    """A fresh optimiser.

    Raises:
        ValueError: when the recipe makes no sense.
    """
    return Optimiser(recipe, _transformation(recipe, _precision(params)).init(params))


def step(
    params: Params, gradient: Params, optimiser: Optimiser, learning_rate: Float[Array, ""]
) -> tuple[Params, Optimiser]:
    """One gradient step: `params - learning_rate direction`, where the recipe makes the direction of the gradient.

    Args:
        params: weights before the step.
        gradient: gradient of the loss, shaped like the weights.
        optimiser: recipe and state of the optimiser.
        learning_rate: step length.
    """
    transformation = _transformation(optimiser.recipe, _precision(params))
    direction, memory = transformation.update(gradient, optimiser.memory)
    return jax.tree.map(lambda p, d: p - learning_rate * d, params, direction), Optimiser(optimiser.recipe, memory)


def parse(value: Any) -> Recipe:
    """A recipe as a run's YAML writes it.

    Args:
        value: a preset's name; or fields of a `Recipe`, which may start from another one: `{preset: sac, warmup: 100}`.

    Raises:
        ValueError: saying what was expected and what came.
    """
    if isinstance(value, Recipe):
        return check(value)
    fields: dict[str, Any] = dict(value) if isinstance(value, Mapping) else {"preset": value}
    preset = fields.pop("preset", "td3")
    if not isinstance(preset, str) or preset not in PRESETS:
        raise ValueError(f"expected a preset ({', '.join(PRESETS)}) or fields of a recipe, got {preset!r}.")
    known = PRESETS[preset]._asdict()
    for name, item in fields.items():
        if name not in known:
            raise ValueError(f"expected fields of a recipe (preset, {', '.join(known)}), got {name!r}.")
        kind = type(known[name])
        if type(item) is not kind and not (kind is float and type(item) is int):
            raise ValueError(f"expected {name} of a recipe to be like {known[name]!r}, got {item!r}.")
        known[name] = kind(item)
    return check(Recipe(**known))


def check(recipe: Recipe) -> Recipe:
    """The recipe itself.

    Raises:
        ValueError: on names that do not exist, or on numbers that do not go together.
    """
    r = recipe
    if r.method not in METHODS:
        raise ValueError(f"expected a recipe's method among {', '.join(METHODS)}, got {r.method!r}.")
    if r.schedule not in SCHEDULES:
        raise ValueError(f"expected a recipe's schedule among {', '.join(SCHEDULES)}, got {r.schedule!r}.")
    if not 0.0 <= r.clip < math.inf or min(r.warmup, r.steps) < 0 or r.accumulate < 1:
        raise ValueError(f"expected a recipe's numbers from 0, and accumulate from 1, got {r}.")
    if (r.steps <= r.warmup) if r.schedule != "constant" else (r.steps > 0):
        raise ValueError(
            f"expected steps beyond the warm-up with a falling schedule and none with a constant one, got {r.steps} "
            f"with {r.schedule!r} and a warm-up of {r.warmup}."
        )
    return recipe


def rate(recipe: Recipe, count: Int[Array, ""]) -> Float[Array, ""]:
    """What multiplies the learning rate after `count` steps: `min(1, (count + 1) / warmup) schedule(part)`."""
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
    """`g min(1, norm / |g|)`, of an ensemble, which is a plain tuple, for each of its networks."""
    whole = optax.clip_by_global_norm(norm)

    def update(
        gradient: optax.Updates, memory: optax.OptState, params: Params = None
    ) -> tuple[optax.Updates, optax.OptState]:
        each = gradient if type(gradient) is tuple else (gradient,)
        clipped: tuple[optax.Updates, ...] = tuple(whole.update(one, memory)[0] for one in each)
        return clipped if type(gradient) is tuple else clipped[0], memory

    return optax.GradientTransformation(whole.init, update)
