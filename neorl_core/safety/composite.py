"""Policy, shield and fallback as one controller: the only thing that is certified, registered, exported and run."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from neorl_core.networks import Policy, policy_act
from neorl_core.safety.shield import (
    ShieldParams,
    default_shield,
    enough,
    inside_envelope,
    limit_action,
    predicted_margins,
)
from neorl_core.types import Controller, Params, Plant

Propose = Callable[[Any, Float[Array, " O"]], Float[Array, " A"]]
"""(policy, observation) -> action, in physical units."""


class Composite(NamedTuple):
    """What ships. Arrays only."""

    policy: Policy | None
    """None: the fallback alone."""
    shield: ShieldParams
    fallback: Params
    """Parameters of the plant's own controller."""
    model: Params
    """The plant constants that the shield predicts with."""


class PolicyState(NamedTuple):
    """What the composite remembers from step to step."""

    handed_over: Bool[Array, ""]
    """Whether the fallback overruled the policy in the last step; never true without a policy."""
    held: Int[Array, ""]
    """Steps since the fallback took over."""
    action: Float[Array, " A"]
    """The last action given out."""
    fallback: Params
    """The state of the fallback, which watches all the time so that it can take over at any step."""


def make_composite(plant: Plant, policy: Policy | None = None, shield: ShieldParams | None = None) -> Composite:
    """A composite of `policy` (or the fallback alone) with the plant's own fallback and nominal model, all arrays.

    Args:
        plant: whose fallback and nominal model it has.
        policy: what acts while it is trusted; none for the fallback alone.
        shield: shield of the policy; the plant's default where there is none.
    """
    shield = default_shield(plant.spec) if shield is None else shield
    fallback, model = jax.tree.map(lambda x: jnp.asarray(x), (plant.fallback_params, plant.params))
    return Composite(policy, shield, fallback, model)


def _all_finite(tree: Params) -> Bool[Array, ""]:
    leaves = [jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(tree)]
    return jnp.all(jnp.stack(leaves)) if leaves else jnp.asarray(True)


def _choose(condition: Bool[Array, ""], yes: Params, no: Params) -> Params:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)


@cache
def composite_controller(plant: Plant, propose: Propose = policy_act) -> Controller:
    """The shielded controller of a plant; its parameters are a `Composite`.

    Each step, in order:
    1. An observation that is not finite tells nothing: the last applied action is held and nothing else moves.
    2. The policy's action is limited in rate and range. Its future is predicted with the fallback taking over after
       one step. The fallback takes over now if a predicted margin is less than its buffer, if the observation is out
       of the policy's envelope, or if the policy's action is not finite.
    3. The policy gets control back after `hold` steps, when its prediction leaves `return_buffer` more than the
       buffer, so that the two do not chatter.

    The fallback sees every observation and what was really applied, so that it takes over without a bump.

    Args:
        plant: gives the prediction model and the fallback.
        propose: the policy's function of `Composite.policy`; networks' `policy_act` unless another kind is shielded.

    Returns:
        The controller. The same arguments give the same object, so that what is compiled for it is found again.
    """

    def rest(shield: ShieldParams, action: Float[Array, " A"]) -> Float[Array, " A"]:
        """`action` within the bounds; mid-range where it is not finite, for want of anything better."""
        middle = (shield.action_low + shield.action_high) / 2
        return jnp.clip(jnp.where(jnp.isfinite(action), action, middle), shield.action_low, shield.action_high)

    def init(composite: Composite, observation: Float[Array, " O"]) -> PolicyState:
        return PolicyState(
            handed_over=jnp.asarray(False),
            held=jnp.asarray(0, jnp.int32),
            action=rest(composite.shield, plant.applied(observation)),
            fallback=plant.fallback.init(composite.fallback, observation),
        )

    def act(
        composite: Composite, state: PolicyState, observation: Float[Array, " O"], applied: Float[Array, " A"]
    ) -> tuple[PolicyState, Float[Array, " A"]]:
        shield = composite.shield
        applied = rest(shield, jnp.where(jnp.isfinite(applied), applied, state.action))
        readable = jnp.all(jnp.isfinite(observation))

        # A first observation that was not finite left no usable memory: begin again with this one.
        memory = _choose(
            _all_finite(state.fallback), state.fallback, plant.fallback.init(composite.fallback, observation)
        )
        memory, command = plant.fallback.act(composite.fallback, memory, observation, applied)
        safe = limit_action(shield, jnp.where(jnp.isfinite(command), command, applied), applied)

        if composite.policy is None:
            handed_over, held, action = state.handed_over, state.held, safe
        else:
            proposed = propose(composite.policy, observation)
            sound = jnp.all(jnp.isfinite(proposed)) & inside_envelope(shield, observation)
            candidate = limit_action(shield, jnp.where(jnp.isfinite(proposed), proposed, applied), applied)
            margins = predicted_margins(
                plant, shield, composite.fallback, memory, composite.model, observation, candidate
            )
            stays = sound & enough(margins, shield.margin_buffer)
            returns = sound & enough(margins, shield.margin_buffer + shield.return_buffer)
            returns &= state.held >= shield.hold
            handed_over = ~jnp.where(state.handed_over, returns, stays)
            held = jnp.where(handed_over, state.held + 1, 0)
            action = jnp.where(handed_over, safe, candidate)

        following = PolicyState(handed_over, held, action, memory)
        unmoved = state._replace(action=applied)
        return _choose(readable, following, unmoved), jnp.where(readable, action, applied)

    return Controller(init, act)


@cache
def bare_controller(plant: Plant, propose: Propose = policy_act) -> Controller:
    """A policy without shield or fallback, its parameters the policy. It never ships: it shows what a shield is for."""

    def act(policy: Any, state: tuple[()], observation: Float[Array, " O"], applied: Float[Array, " A"]) -> Any:
        return state, propose(policy, observation)

    return Controller(lambda policy, observation: (), act)
