"""Rollouts of any controller on any plant. An episode is a JAX `scan` over steps; a batch is a `vmap` over episodes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray

from neorl_core.panels import measured_limits
from neorl_core.types import Controller, Params, Plant, Space

Constants = TypeVar("Constants")
Scalar = float | Float[Array, ""]
"""A Python number or a scalar array."""
AnyArray = Array | np.ndarray
"""Logged rows arrive as NumPy arrays, simulated rows as JAX arrays."""

CHOICE = "choice of the shield"
"""Name of the value that a backward pass with `recompute` stores in each step, because predicting it again is slow."""


class Trajectory(NamedTuple):
    """One episode of H steps. After a termination, `alive` is false, the rewards are zero and the state is constant."""

    observations: Float[Array, "*e H O"]
    """Input of the controller before each step."""
    actions: Float[Array, "*e H A"]
    """Applied actions, clipped to the actuator's range."""
    rewards: Float[Array, "*e H"]
    margins: Float[Array, "*e H K"]
    """Smallest distance to each limit during the step, in the limit's unit; negative beyond the limit."""
    alive: Bool[Array, "*e H"]
    """True until the episode has ended."""
    handed_over: Bool[Array, "*e H"]
    """True if the fallback chose the action; always false for a controller without a fallback."""
    next_observations: Float[Array, "*e H O"]
    terminated: Bool[Array, "*e H"]
    """True if the step terminated the episode. A time limit is not a termination."""


class EpisodeResult(NamedTuple):
    """Statistics of E episodes."""

    ret: Float[Array, " E"]
    """Undiscounted sum of rewards."""
    length: Int[Array, " E"]
    violated: Bool[Array, " E"]
    """True by `summarise`: a limit was crossed, a value was not finite, or the episode ended early."""
    min_margins: Float[Array, "E K"]
    handovers: Int[Array, " E"]
    """Number of switches to the fallback."""
    trajectory: Trajectory | None = None
    """All steps, with leading axes (E, H); None unless `rollouts` was called with `trace=True`."""


class LoggedSignals(NamedTuple):
    """Functions that compute rewards and margins from logged rows. The rows may have any leading axes."""

    reward: Callable[[Float[AnyArray, "*n O"], Float[AnyArray, "*n A"], Float[AnyArray, "*n O"]], Float[Array, "*n"]]
    """(observation, action, next observation) -> reward, by the plant's formula."""
    margins: Callable[[Float[AnyArray, "*n O"]], Float[Array, "*n K"]]
    """(next observation) -> distance to each limit at the end of the step; negative beyond the limit."""


def trace_once(plant: Plant) -> Plant:
    """Return a plant whose Python code runs once per process, not once per use.

    Every use with arguments of the same shapes and dtypes then gets the same program. Otherwise the code could look at
    the call stack and give a certification another simulator than a training.
    """
    once = partial(jax.jit, inline=True)
    return plant._replace(
        sample_params=once(plant.sample_params),
        reset=once(plant.reset),
        step=once(plant.step),
        predict=once(plant.predict),
        applied=once(plant.applied),
        resume=None if plant.resume is None else once(plant.resume),
    )


def clip_to(space: Space, x: Float[Array, " n"]) -> Float[Array, " n"]:
    """Clip `x` (n,) to the range of `space`; NaN stays NaN."""
    return jnp.clip(x, jnp.asarray(space.low, x.dtype), jnp.asarray(space.high, x.dtype))


def with_domain(nominal: Constants, domain: Params, **drawn: Any) -> Constants:
    """Return `nominal`, with constants replaced by the `drawn` values and by the domain's fields of the same name."""
    plain: Any = nominal
    fixed = {name: value for name, value in domain._asdict().items() if name in plain._fields}
    replaced: Constants = plain._replace(**fixed | drawn)
    return replaced


def two_sided_margin(x: Float[AnyArray, "*n"], low: float, high: float) -> Float[Array, "*n"]:
    """Return the distance min(x − low, high − x) to the nearer limit; negative beyond a limit."""
    return jnp.minimum(x - low, high - x)


def rollout(
    plant: Plant,
    controller: Controller,
    controller_params: Params,
    key: PRNGKeyArray,
    plant_params: Params,
    recompute: bool = False,
) -> Trajectory:
    """Simulate one episode of `controller` on `plant` with fixed constants.

    Args:
        key: random key for the start, set points, disturbances and noise.
        recompute: whether a backward pass computes the inside of each step again, instead of storing it. This needs
            less memory, which makes it faster for plants with many operations a step.
    """
    key_reset, key_steps = jax.random.split(key)
    state, observation = plant.reset(key_reset, plant_params)
    memory = controller.init(controller_params, observation)
    carry = (state, observation, memory, plant.applied(observation), jnp.asarray(True))

    def step(carry: Any, t: Int[Array, ""]) -> tuple[Any, Trajectory]:
        state, observation, memory, applied, alive = carry
        next_memory, command = controller.act(controller_params, memory, observation, applied)
        action = clip_to(plant.spec.action, command)
        next_state, timestep = plant.step(jax.random.fold_in(key_steps, t), state, action, plant_params)
        record = Trajectory(
            observations=observation,
            actions=action,
            rewards=jnp.where(alive, timestep.reward, 0.0),
            margins=timestep.margins,
            alive=alive,
            # Only the state of a composite controller has this field.
            handed_over=jnp.asarray(getattr(next_memory, "handed_over", False)) & alive,
            next_observations=timestep.observation,
            terminated=timestep.terminated & alive,
        )
        proposed = (next_state, timestep.observation, next_memory, action, ~(timestep.terminated | timestep.truncated))
        # Keep the last state of an ended episode, so that results do not depend on states after a trip.
        frozen = (*carry[:4], jnp.asarray(False))
        return jax.tree.map(lambda new, old: jnp.where(alive, new, old), proposed, frozen), record

    kept = jax.checkpoint_policies.save_only_these_names(CHOICE)
    body = jax.checkpoint(step, prevent_cse=False, policy=kept) if recompute else step
    trace: Trajectory = jax.lax.scan(body, carry, jnp.arange(plant.spec.horizon))[1]
    return trace


def summarise(trajectory: Trajectory, plant: Plant) -> EpisodeResult:
    """Return the statistics of one trajectory. Use `vmap` for several trajectories.

    An episode is violated by a negative margin, by an observation beyond the limit that it shows
    (`panels.measured_limits`), by a non-finite observation, action, reward or margin, and by an end before the horizon.
    A plant can therefore pass neither by margins that its signals contradict, nor by short episodes.
    """
    alive = trajectory.alive[:, None]
    finite = [
        jnp.all(jnp.isfinite(x) | ~alive)
        for x in (
            trajectory.observations,
            trajectory.next_observations,
            trajectory.actions,
            trajectory.margins,
            trajectory.rewards[:, None],
        )
    ]
    shown = [
        jnp.all((two_sided_margin(trajectory.next_observations[:, column], low, high) >= 0) | ~trajectory.alive)
        for column, _, low, high in measured_limits(plant.spec, plant.drawn)
    ]
    least = jnp.min(jnp.where(alive, trajectory.margins, jnp.inf), axis=0)
    before = jnp.concatenate([jnp.zeros_like(trajectory.handed_over[:1]), trajectory.handed_over[:-1]])
    return EpisodeResult(
        ret=jnp.sum(trajectory.rewards),
        length=jnp.sum(trajectory.alive),
        violated=~(jnp.all(least >= 0) & jnp.all(jnp.stack([*finite, *shown])) & jnp.all(trajectory.alive)),
        min_margins=least,
        handovers=jnp.sum(trajectory.handed_over & ~before),
    )


@partial(jax.jit, static_argnames=("plant", "controller", "trace"))
def rollouts(
    plant: Plant,
    controller: Controller,
    controller_params: Params,
    keys: Key[Array, " E"],
    domain: Params,
    trace: bool = False,
) -> EpisodeResult:
    """Simulate E episodes. Each episode draws new constants of the plant from the operating domain.

    Args:
        controller: the controller; pass the same object in every call, because a new object is compiled again.
        keys: (E,), one random key per episode, so that an episode's result does not depend on other episodes.
    """

    def episode(key: PRNGKeyArray) -> EpisodeResult:
        key_constants, key_run = jax.random.split(key)
        constants = plant.sample_params(key_constants, domain)
        trajectory = rollout(plant, controller, controller_params, key_run, constants)
        return summarise(trajectory, plant)._replace(trajectory=trajectory if trace else None)

    return jax.vmap(episode)(keys)
