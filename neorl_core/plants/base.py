"""Rollouts of any controller on any plant: one episode as a scan, many as a vmap of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray

from neorl_core.types import Controller, Params, Plant, Space

AnyArray = Array | np.ndarray
"""Logged rows come from files as NumPy's arrays, simulated ones as JAX's."""


class Trajectory(NamedTuple):
    """One episode of H steps; steps after the end are frozen: `alive` is false, the reward zero."""

    observations: Float[Array, "*e H O"]
    """What the controller saw before each step."""
    actions: Float[Array, "*e H A"]
    """What was applied, within the actuator's bounds."""
    rewards: Float[Array, "*e H"]
    margins: Float[Array, "*e H K"]
    """Least signed distance to each limit during the step."""
    alive: Bool[Array, "*e H"]
    """Whether the episode had not ended before the step."""
    handed_over: Bool[Array, "*e H"]
    """Whether the fallback decided the step (false for controllers without one)."""
    next_observations: Float[Array, "*e H O"]
    terminated: Bool[Array, "*e H"]
    """Whether the step ended the episode by itself, which a time limit does not."""


class EpisodeResult(NamedTuple):
    """What is counted of E episodes."""

    ret: Float[Array, " E"]
    """Undiscounted sum of rewards."""
    length: Int[Array, " E"]
    violated: Bool[Array, " E"]
    """Whether a limit was crossed, or a number ceased to be finite."""
    min_margins: Float[Array, "E K"]
    handovers: Int[Array, " E"]
    """How many times control passed to the fallback."""
    trajectory: Trajectory | None = None
    """All steps, with leading axes (E, H), when traced."""


class LoggedSignals(NamedTuple):
    """What a historian does not record but its signals determine, for rows with any leading axes."""

    reward: Callable[[Float[AnyArray, "*n O"], Float[AnyArray, "*n A"], Float[AnyArray, "*n O"]], Float[Array, "*n"]]
    """(observation, action, next observation) -> reward, by the plant's own formula."""
    margins: Callable[[Float[AnyArray, "*n O"]], Float[Array, "*n K"]]
    """(next observation) -> signed distance to each limit, from what was measured at the end of the step."""


def clip_to(space: Space, x: Float[Array, " n"]) -> Float[Array, " n"]:
    """What an actuator makes of a command: `x` (n,) clipped to the bounds of `space`; NaN stays NaN."""
    return jnp.clip(x, jnp.asarray(space.low, x.dtype), jnp.asarray(space.high, x.dtype))


def two_sided_margin(x: Float[AnyArray, "*n"], low: float, high: float) -> Float[Array, "*n"]:
    """min(x − low, high − x): positive inside the limits, in the unit of `x`.

    Args:
        x: (...), the limited quantity.
        low: lower limit, in its unit.
        high: upper limit.
    """
    return jnp.minimum(x - low, high - x)


def rollout(
    plant: Plant, controller: Controller, controller_params: Params, key: PRNGKeyArray, plant_params: Params
) -> Trajectory:
    """One episode of `controller` on `plant` with given constants.

    Args:
        plant: the plant.
        controller: the controller, in physical units.
        controller_params: its parameters.
        key: the episode's randomness: start, set points, disturbances, noise.
        plant_params: the plant's constants.

    Returns:
        The trajectory, H = the plant's horizon steps long.
    """
    key_reset, key_steps = jax.random.split(key)
    state, observation = plant.reset(key_reset, plant_params)
    memory = controller.init(controller_params, observation)
    carry = (state, observation, memory, plant.applied(observation), jnp.asarray(True))

    def step(carry: Any, t: Int[Array, ""]) -> tuple[Any, Trajectory]:
        state, observation, memory, applied, alive = carry
        next_memory, command = controller.act(controller_params, memory, observation, applied)
        action = clip_to(plant.spec.action, command)
        next_state, now = plant.step(jax.random.fold_in(key_steps, t), state, action, plant_params)
        record = Trajectory(
            observations=observation,
            actions=action,
            rewards=jnp.where(alive, now.reward, 0.0),
            margins=now.margins,
            alive=alive,
            # Only a composite controller's state knows of a fallback.
            handed_over=jnp.asarray(getattr(next_memory, "handed_over", False)) & alive,
            next_observations=now.observation,
            terminated=now.terminated & alive,
        )
        proposed = (next_state, now.observation, next_memory, action, ~(now.terminated | now.truncated))
        # An ended episode stands still: what would follow a trip (a runaway) must not count.
        frozen = (*carry[:4], jnp.asarray(False))
        return jax.tree.map(lambda new, old: jnp.where(alive, new, old), proposed, frozen), record

    return jax.lax.scan(step, carry, jnp.arange(plant.spec.horizon))[1]


def summarise(trajectory: Trajectory) -> EpisodeResult:
    """Return, length, violation, least margins and hand-overs of one trajectory (as scalars; vmap for more).

    A non-finite observation, action, reward or margin counts as a violation: `not (margin >= 0)` is true of NaN.
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
    least = jnp.min(jnp.where(alive, trajectory.margins, jnp.inf), axis=0)
    before = jnp.concatenate([jnp.zeros_like(trajectory.handed_over[:1]), trajectory.handed_over[:-1]])
    return EpisodeResult(
        ret=jnp.sum(trajectory.rewards),
        length=jnp.sum(trajectory.alive),
        violated=~(jnp.all(least >= 0) & jnp.all(jnp.stack(finite))),
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
    """E episodes, each with plant constants drawn from the operating domain by its own key.

    Args:
        plant: the plant (static: one compilation per plant).
        controller: the controller (static: pass the same object again, or it is compiled again).
        controller_params: its parameters.
        keys: (E,), one per episode, so that an episode does not depend on the batch it runs in.
        domain: the operating domain, a NamedTuple of scalars as `plant.domain`.
        trace: keep all steps in `.trajectory`.

    Returns:
        Per-episode results with leading axis E.
    """

    def episode(key: PRNGKeyArray) -> EpisodeResult:
        key_constants, key_run = jax.random.split(key)
        constants = plant.sample_params(key_constants, domain)
        trajectory = rollout(plant, controller, controller_params, key_run, constants)
        return summarise(trajectory)._replace(trajectory=trajectory if trace else None)

    return jax.vmap(episode)(keys)
