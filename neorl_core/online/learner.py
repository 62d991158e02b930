"""The interface of learners that learn in a simulator. Their policies move the plant's controller.

The policy moves the set points of the controller if the plant declares set points, and its action otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from neorl_core.networks import Normaliser, Policy, actor_apply, actor_init, mlp_apply
from neorl_core.plants.base import clip_to, rollouts
from neorl_core.safety.composite import Composite, correction_inputs, make_composite
from neorl_core.safety.shield import ShieldParams
from neorl_core.training.loop import TrainingRows, resident
from neorl_core.training.population import Algorithm, Metrics
from neorl_core.types import Params, Plant, PlantSpec, Transition, varies

CHUNK = 50
"""Updates between two checkpoints, at most: an update simulates whole episodes."""
NO_BUFFER = 0.125
"""Buffer of a limit for which the shield keeps none, in the limit's unit: penalties need a width."""
OBSERVED = 64
"""Episodes of the plant's controller that determine the normaliser."""
FIRST = 0.01
"""Factor of the last layer's first weights."""


class Setting(NamedTuple):
    """Inputs of a training, apart from its key."""

    plant: Plant
    shield: ShieldParams
    normaliser: Normaliser
    config: Any


class Learner(NamedTuple):
    """A learner that learns in a simulator."""

    unbound: Algorithm
    """Name, settings and `actor`. The other functions need a plant: only those of `bind` can be called."""
    init: Callable[[PRNGKeyArray, Setting], Any]
    """Return the initial training state, which holds `shield`, `normaliser` and `hyper`."""
    update: Callable[[Any, Setting, PRNGKeyArray, bool], tuple[Any, Metrics]]
    """(state, setting, key, protected) -> (state, metrics); `protected` if the composite runs."""
    check: Callable[[Any], None] = lambda config: None
    """Raise ValueError if settings contradict one another."""

    def bind(self, setting: Setting) -> Algorithm:
        """Return the learner for a plant, in the interface of offline algorithms. It ignores the batches.

        Raises:
            ValueError: if settings contradict one another.
        """
        plant, shield, normaliser, settings = setting
        self.check(settings)
        discrete = normaliser.choices is not None

        def fresh(key: PRNGKeyArray, spec: PlantSpec, config: Any) -> Any:
            return self.init(key, Setting(plant, shield, normaliser, config))

        def taken(protected: bool, state: Any, batches: Transition, key: PRNGKeyArray) -> tuple[Any, Metrics]:
            config = settings._replace(**state.hyper)
            return self.update(state, Setting(plant, state.shield, state.normaliser, config), key, protected)

        return self.unbound._replace(
            init=fresh,
            update=partial(taken, True),
            warm_up=partial(taken, False),
            act=lambda state, inputs: (mlp_apply if discrete else actor_apply)(self.unbound.actor(state), inputs),
            discrete=discrete,
        )


def without_plant(*_: Any) -> Any:
    """Stand for the functions of a learner without a plant."""
    raise TypeError("this learner needs a plant: call Learner.bind first")


def observe(plant: Plant, key: PRNGKeyArray) -> Normaliser:
    """Run the plant's controller over the operating domain, and return the normaliser of a policy that moves it.

    The action of the normaliser is the shift of the set points, if the plant declares set points.
    """
    keys = jax.random.split(key, OBSERVED)
    seen = rollouts(plant, plant.fallback, plant.fallback_params, keys, plant.domain, trace=True).trajectory
    assert seen is not None
    rows = _inputs(plant, seen.observations, seen.actions)
    rows = np.asarray(rows)[np.asarray(seen.alive)].astype(np.float64)
    mean, deviation = rows.mean(0), rows.std(0)
    low, high = (np.asarray(bound) for bound in plant.spec.action[2:])
    if plant.set_points is not None:
        high = np.asarray(plant.set_points.reach)
        low = -high
    scale = np.where(varies(mean, deviation), deviation, 1.0)
    choices = None if plant.spec.choices is None else jnp.arange(plant.spec.acting, dtype=jnp.float32)
    numbers = mean, scale, (low + high) / 2, (high - low) / 2
    return Normaliser(*(jnp.asarray(x, jnp.float32) for x in numbers))._replace(choices=choices)


@partial(jax.jit, static_argnames="plant")
def _inputs(plant: Plant, observations: Float[Array, "N T O"], actions: Float[Array, "N T A"]) -> Float[Array, "N T I"]:
    """Return `correction_inputs` of every step of the plant's controller."""

    def episode(observations: Float[Array, "T O"], actions: Float[Array, "T A"]) -> Float[Array, "T I"]:
        def step(memory: Any, now: Any) -> Any:
            memory, command = plant.fallback.act(plant.fallback_params, memory, *now)
            return memory, correction_inputs(now[0], memory, clip_to(plant.spec.action, command))

        applied = jnp.concatenate([plant.applied(observations[0])[None], actions[:-1]])
        start = plant.fallback.init(plant.fallback_params, observations[0])
        rows: Float[Array, "T I"] = jax.lax.scan(step, start, (observations, applied))[1]
        return rows

    return jax.vmap(episode)(observations, actions)


def composite_of(actor: Params, setting: Setting) -> Composite:
    """Return the composite of an actor.

    The actor moves the set points of the controller by at most their `reach`. If the plant declares no set points, the
    actor moves the controller's action by at most half of the action's range. For a discrete action, `config.bonus` is
    the preference of the controller's choice.
    """
    policy, reach = Policy(actor, setting.normaliser), setting.normaliser.action_half_range
    if setting.plant.set_points is not None:
        return make_composite(setting.plant, policy, setting.shield, shift=reach)
    if setting.plant.spec.choices is not None:
        reach = jnp.full_like(reach, setting.config.bonus)
    return make_composite(setting.plant, policy, setting.shield, correction=reach)


def without_rows(spec: PlantSpec) -> TrainingRows:
    """Return a source with one row of zeros, for the training loop of a learner that ignores its batches."""
    observation, action = (jnp.zeros((1, space.size)) for space in (spec.observation, spec.action))
    number = jnp.zeros(1)
    return resident(Transition(observation, action, number, number, observation, number))


def shortfalls(margins: Float[Array, "*n K"], shield: ShieldParams, factor: float | Array) -> Float[Array, "*n K"]:
    """Return relu(1 − margin / (factor · buffer)) of each limit.

    Args:
        margins: (..., K), in the limit's unit.
        shield: supplies the buffer (K,) of each limit, in the limit's unit; `NO_BUFFER` replaces a buffer of 0.
        factor: margin below which a step is penalised, as a multiple of the buffer.
    """
    buffer = shield.margin_buffer[0]
    return jax.nn.relu(1.0 - margins / (factor * jnp.where(buffer > 0, buffer, NO_BUFFER)))


def first_actor(key: PRNGKeyArray, normaliser: Normaliser, hidden: tuple[int, ...]) -> Params:
    """Return an actor that hardly moves the plant's controller."""
    outputs = len(normaliser.action_half_range) if normaliser.choices is None else len(normaliser.choices)
    actor = actor_init(key, len(normaliser.mean), outputs, hidden)
    last = f"Dense_{len(hidden)}"
    return actor | {last: jax.tree.map(lambda x: FIRST * x, actor[last])}
