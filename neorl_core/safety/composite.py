"""Policy, shield and fallback as one controller: the only thing that is certified, registered, exported and run."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from neorl_core.control.fallbacks import FALLBACK
from neorl_core.history import History, begun, followed
from neorl_core.networks import Policy, policy_act, preferences
from neorl_core.plants.base import clip_to
from neorl_core.safety.shield import (
    ShieldParams,
    counted,
    default_shield,
    enough,
    inside_envelope,
    limit_action,
    predicted_margins,
)
from neorl_core.safety.support import SupportShield, inside_support
from neorl_core.types import Controller, Params, Plant, Process

Propose = Callable[[Any, Float[Array, " S"]], Float[Array, " A"]]
"""(policy, observation with its history) -> action, in physical units."""


class Composite(NamedTuple):
    """What ships. Arrays only, and the numbers of a history."""

    policy: Policy | None
    """None: the fallback alone."""
    shield: ShieldParams | SupportShield
    """That of a process has no physics to predict with, and looks at the support of its logs."""
    fallback: Params
    """Parameters of the plant's own controller; of a process a `neorl_core.control.fallbacks.Fallback`."""
    model: Params
    """The plant constants that the shield predicts with; of a process none."""
    history: History | None = None
    """Which earlier values the policy sees; shield, fallback and predictions see the plain observation."""


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
    seen: Params = ()
    """(S,) the last observation with its history, of a policy that has one."""
    since: Params = ()
    """Steps for which `action` is in force after the coming one, where actions are discrete; up to the dwell time."""


def make_composite(
    plant: Plant, policy: Policy | None = None, shield: ShieldParams | None = None, history: History | None = None
) -> Composite:
    """A composite of `policy` (or the fallback alone) with the plant's own fallback and nominal model, all arrays.

    Args:
        plant: whose fallback and nominal model it has.
        policy: what acts while it is trusted; none for the fallback alone.
        shield: shield of the policy; the plant's default where there is none.
        history: which earlier values the policy sees.
    """
    shield = default_shield(plant.spec) if shield is None else shield
    fallback, model = jax.tree.map(lambda x: jnp.asarray(x), (plant.fallback_params, plant.params))
    return Composite(policy, shield, fallback, model, history)


def _all_finite(tree: Params) -> Bool[Array, ""]:
    leaves = [jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(tree)]
    return jnp.all(jnp.stack(leaves)) if leaves else jnp.asarray(True)


def _choose(condition: Bool[Array, ""], yes: Params, no: Params) -> Params:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)


def _rest(shield: ShieldParams | SupportShield, action: Float[Array, " A"]) -> Float[Array, " A"]:
    """`action` within the bounds; where it is not finite the shield's `rest`, or mid-range for want of anything."""
    middle = shield.rest if isinstance(shield, SupportShield) else (shield.action_low + shield.action_high) / 2
    known = jnp.where(jnp.isfinite(action), action, middle)
    return jnp.clip(known if shield.dwell is None else jnp.round(known), shield.action_low, shield.action_high)


def first_applied(plant: Plant | Process, composite: Composite, observation: Float[Array, " O"]) -> Float[Array, " A"]:
    """What is taken for applied before the first step: as far as the observation tells, else a resting action."""
    if isinstance(plant, Plant):
        return plant.applied(observation)
    assert isinstance(composite.shield, SupportShield)
    return composite.shield.rest


def _trusted(
    plant: Plant | Process,
    composite: Composite,
    memory: Params,
    observation: Float[Array, " O"],
    action: Float[Array, " A"],
    since: Params,
) -> tuple[Bool[Array, ""], Bool[Array, ""]]:
    """Whether the policy may keep control with this action, and whether it may get control back.

    Args:
        plant: gives the prediction model; a process has none, and is judged by the support of its logs.
        composite: the shield and what it predicts with.
        memory: the fallback's state, after it saw `observation`.
        observation: (O,) now.
        action: (A,) for the coming step.
        since: steps for which a discrete action will have been in force after it.
    """
    shield = composite.shield
    if isinstance(shield, SupportShield):
        stays, returns = (
            inside_support(shield, observation, action, radius) for radius in (shield.radius, shield.return_radius)
        )
        return stays, returns
    assert isinstance(plant, Plant)
    enclosed = inside_envelope(shield, observation)
    margins = predicted_margins(plant, shield, composite.fallback, memory, composite.model, observation, action, since)
    stays = enclosed & enough(margins, shield.margin_buffer)
    return stays, enclosed & enough(margins, shield.margin_buffer + shield.return_buffer)


class _Now(NamedTuple):
    """What a step of the composite knows before the policy is asked."""

    observation: Float[Array, " O"]
    seen: Float[Array, " S"]
    """The observation as the policy sees it."""
    applied: Float[Array, " A"]
    since: Params
    memory: Params
    """The fallback's state, after it saw the observation."""
    returning: Bool[Array, ""]
    """Whether the fallback has control, so that the policy must leave more to get it back."""


def _limited(
    plant: Plant | Process, composite: Composite, propose: Propose, now: _Now
) -> tuple[Float[Array, " A"], Bool[Array, ""]]:
    """The policy's action within the limits, and whether it is trusted."""
    proposed = propose(composite.policy, now.seen)
    sound = jnp.all(jnp.isfinite(proposed))
    action = limit_action(composite.shield, jnp.where(sound, proposed, now.applied), now.applied)
    stays, returns = _trusted(plant, composite, now.memory, now.observation, action, ())
    return action, sound & jnp.where(now.returning, returns, stays)


def _masked(plant: Plant | Process, composite: Composite, now: _Now) -> tuple[Float[Array, " A"], Bool[Array, ""]]:
    """The choice that the policy likes best among those that can be had now and are trusted, and whether there is one.

    Huang & Ontañón 2022 (arXiv 2006.14171) mask invalid actions in the same place, by the outputs of the network.
    """
    policy, shield = composite.policy, composite.shield
    assert policy is not None
    assert policy.normaliser.choices is not None
    liked, choices = preferences(policy, now.seen), policy.normaliser.choices[:, None]

    def possible(choice: Float[Array, " A"]) -> Bool[Array, ""]:
        had = jnp.all(limit_action(shield, choice, now.applied, now.since) == choice)
        since = counted(shield, now.since, now.applied, choice)
        stays, returns = _trusted(plant, composite, now.memory, now.observation, choice, since)
        return had & jnp.where(now.returning, returns, stays)

    allowed = jax.vmap(possible)(choices)
    best = jnp.argmax(jnp.where(allowed, liked, -jnp.inf))
    return choices[best], jnp.all(jnp.isfinite(liked)) & jnp.any(allowed)


def _with_history(
    composite: Composite, state: PolicyState, observation: Float[Array, " O"], applied: Float[Array, " A"]
) -> Float[Array, " S"]:
    """The observation as the policy sees it."""
    if composite.history is None:
        return observation
    before = state.seen
    # A first observation that was not finite tells of no past: begin again with this one.
    before = jnp.where(jnp.all(jnp.isfinite(before)), before, begun(composite.history, observation, applied))
    return followed(composite.history, before, applied, observation)


@cache
def composite_controller(plant: Plant | Process, propose: Propose = policy_act) -> Controller:
    """The shielded controller of a plant; its parameters are a `Composite`.

    Each step, in order:
    1. An observation that is not finite tells nothing: the last applied action is held and nothing else moves.
    2. The policy's action is limited in rate and range. Its future is predicted with the fallback taking over after
       one step. The fallback takes over now if a predicted margin is less than its buffer, if the observation is out
       of the policy's envelope, or if the policy's action is not finite. Of a process nothing is predicted: the
       fallback takes over where nothing near this observation and action was logged. Of a discrete action every
       choice is judged so; the policy's next best takes the place of those that are not trusted, or that the dwell
       time does not let it have, and the fallback takes over where no choice is left.
    3. The policy gets control back after `hold` steps, when its prediction leaves `return_buffer` more than the
       buffer (of a process, when it is within `return_radius`), so that the two do not chatter.

    The fallback sees every observation and what was really applied, so that it takes over without a bump; and so does
    the policy's history, whoever acted.

    Args:
        plant: gives the prediction model and the fallback; those of a process are the composite's own.
        propose: the policy's function of `Composite.policy`; networks' `policy_act` unless another kind is shielded.
            Discrete policies are networks.

    Returns:
        The controller. The same arguments give the same object, so that what is compiled for it is found again.
    """

    fallback = plant.fallback if isinstance(plant, Plant) else FALLBACK

    def init(composite: Composite, observation: Float[Array, " O"]) -> PolicyState:
        action = _rest(composite.shield, first_applied(plant, composite, observation))
        return PolicyState(
            handed_over=jnp.asarray(False),
            held=jnp.asarray(0, jnp.int32),
            action=action,
            fallback=fallback.init(composite.fallback, observation),
            seen=() if composite.history is None else begun(composite.history, observation, action),
            # For how long it has been in force is not known: the first change is free.
            since=() if composite.shield.dwell is None else jnp.maximum(composite.shield.dwell, 1),
        )

    def act(
        composite: Composite, state: PolicyState, observation: Float[Array, " O"], applied: Float[Array, " A"]
    ) -> tuple[PolicyState, Float[Array, " A"]]:
        shield = composite.shield
        applied = _rest(shield, jnp.where(jnp.isfinite(applied), applied, state.action))
        # What somebody else put in force has been so for a step.
        since = jnp.where(jnp.all(applied == state.action), state.since, 1) if shield.dwell is not None else ()
        readable = jnp.all(jnp.isfinite(observation))

        # A first observation that was not finite left no usable memory: begin again with this one.
        memory = _choose(_all_finite(state.fallback), state.fallback, fallback.init(composite.fallback, observation))
        memory, command = fallback.act(composite.fallback, memory, observation, applied)
        safe = limit_action(shield, jnp.where(jnp.isfinite(command), command, applied), applied, since)

        if composite.policy is None:
            handed_over, held, action, seen = state.handed_over, state.held, safe, state.seen
        else:
            stacked = _with_history(composite, state, observation, applied)
            seen = () if composite.history is None else stacked
            now = _Now(observation, stacked, applied, since, memory, state.handed_over)
            discrete = shield.dwell is not None
            found, trusted = _masked(plant, composite, now) if discrete else _limited(plant, composite, propose, now)
            handed_over = ~(trusted & (~state.handed_over | (state.held >= shield.hold)))
            held = jnp.where(handed_over, state.held + 1, 0)
            action = jnp.where(handed_over, safe, found)

        following = PolicyState(handed_over, held, action, memory, seen, counted(shield, since, applied, action))
        unmoved = state._replace(action=applied, since=counted(shield, since, applied, applied))
        return _choose(readable, following, unmoved), jnp.where(readable, action, applied)

    return Controller(init, act)


@cache
def bare_controller(plant: Plant, propose: Propose = policy_act, history: History | None = None) -> Controller:
    """A policy without shield or fallback, its parameters the policy. It never ships: it shows what a shield is for."""

    def _bounded(action: Float[Array, " A"]) -> Float[Array, " A"]:
        return clip_to(plant.spec.action, action)

    def init(policy: Any, observation: Float[Array, " O"]) -> Params:
        return () if history is None else begun(history, observation, _bounded(plant.applied(observation)))

    def act(policy: Any, state: Params, observation: Float[Array, " O"], applied: Float[Array, " A"]) -> Any:
        seen = followed(history, state, _bounded(applied), observation)
        return () if history is None else seen, propose(policy, seen)

    return Controller(init, act)
