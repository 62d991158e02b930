"""Policy, shield and fallback as one controller: the unit that is certified, registered, exported and run."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float, Int

from neorl_core.control.fallbacks import FALLBACK
from neorl_core.history import stack_first, stack_next
from neorl_core.networks import Policy, policy_act, preferences, to_physical, to_unit
from neorl_core.plants.base import CHOICE, clip_to
from neorl_core.safety.shield import (
    Shield,
    ShieldParams,
    default_shield,
    dwell_count,
    inside_envelope,
    limit_action,
    margins_suffice,
    predicted_margins,
)
from neorl_core.safety.support import SupportShield, inside_support
from neorl_core.types import Controller, History, Params, Plant, Process

Propose = Callable[[Any, Float[Array, " S"]], Float[Array, " A"]]
"""(policy, observation with history) -> action, in physical units."""


class Composite(NamedTuple):
    """Policy, shield and fallback, shipped together; all leaves are arrays, except the counts of a history."""

    policy: Policy | None
    """None for the fallback alone."""
    shield: Shield
    """`SupportShield` for log-only plants, which have no model for predictions."""
    fallback: Params
    """Parameters of the plant's own controller; for log-only plants a `neorl_core.control.fallbacks.Fallback`."""
    model: Params
    """Plant constants for the shield's predictions; empty for log-only plants."""
    history: History | None = None
    """Earlier values that the policy observes; shield, fallback and predictions use the plain observation."""
    correction: Float[Array, " A"] | None = None
    """Largest correction of the fallback's action, in the action's unit; None if the policy gives the whole action.
    The network of a policy that corrects observes `correction_inputs`, and gives a share of this number. For a discrete
    action, this number is added to the network's output for the fallback's choice."""
    shift: Float[Array, " K"] | None = None
    """Largest shift of each of the plant's `set_points`, in its unit; None if the policy moves no set points. The
    network observes `correction_inputs`, and gives a share of this number."""

    @property
    def moves_fallback(self) -> bool:
        """Whether the policy moves the fallback's action or set points, and so has no action without the fallback."""
        return self.correction is not None or self.shift is not None


class PolicyState(NamedTuple):
    """State of the composite controller."""

    handed_over: Bool[Array, ""]
    """Whether the fallback chose the last action; always false without a policy."""
    held: Int[Array, ""]
    """Steps since the hand-over."""
    action: Float[Array, " A"]
    """The last action returned."""
    fallback: Params
    """State of the fallback, updated in every step so that it can take over at any step."""
    seen: Params = ()
    """(S,), last observation with history, if the policy uses one."""
    since: Params = ()
    """Steps for which a discrete `action` will have been in force after the coming step, at most the dwell time."""


def make_composite(
    plant: Plant,
    policy: Policy | None = None,
    shield: ShieldParams | None = None,
    history: History | None = None,
    correction: Float[Array, " A"] | None = None,
    shift: Float[Array, " K"] | None = None,
) -> Composite:
    """Combine a policy with the plant's fallback and nominal model; all leaves are arrays.

    Args:
        policy: the policy; None for the fallback alone.
        shield: the shield; `default_shield` if None.
        history: earlier values that the policy observes.
        correction: largest correction (A,) of the fallback's action, or preference of the fallback's choice; None if
            the policy gives the whole action.
        shift: largest shift (K,) of the plant's set points; None if the policy moves no set points.
    """
    shield = default_shield(plant.spec) if shield is None else shield
    fallback, model = jax.tree.map(lambda x: jnp.asarray(x), (plant.fallback_params, plant.params))
    return Composite(policy, shield, fallback, model, history, correction, shift)


def correction_inputs(seen: Float[Array, " S"], memory: Params, command: Float[Array, " A"]) -> Float[Array, " I"]:
    """Return the inputs of a correcting policy: observation with history, state and action of the fallback.

    Args:
        memory: state of the fallback after it received the observation.
        command: action of the fallback.
    """
    parts = [seen, *(jnp.ravel(leaf).astype(seen.dtype) for leaf in jax.tree.leaves(memory)), command]
    return jnp.concatenate(parts)


class _Answer(NamedTuple):
    """Answer of the fallback to an observation."""

    before: Params
    """State of the fallback before the observation."""
    observation: Float[Array, " O"]
    applied: Float[Array, " A"]
    memory: Params
    """State of the fallback after the observation."""
    command: Float[Array, " A"]
    """Action of the fallback, finite and within the bounds."""


def _moved(
    plant: Plant | Process, composite: Composite, seen: Float[Array, " S"], answer: _Answer
) -> tuple[Params, Float[Array, " A"]]:
    """Return the state and the action of the fallback, with the action or the set points moved by the policy.

    Shifted set points change the state, because an integral follows the error from the shifted set point.
    """
    assert composite.policy is not None
    share = preferences(composite.policy, correction_inputs(seen, answer.memory, answer.command))
    if composite.correction is not None:
        low, high = composite.shield.action_low, composite.shield.action_high
        return answer.memory, jnp.clip(answer.command + composite.correction * share, low, high)
    assert isinstance(plant, Plant)
    assert plant.set_points is not None
    assert composite.shift is not None
    params = plant.set_points.shifted(composite.fallback, composite.shift * share)
    return plant.fallback.act(params, answer.before, answer.observation, answer.applied)


def _ratings(
    composite: Composite, seen: Float[Array, " S"], memory: Params, command: Float[Array, " A"]
) -> Float[Array, " C"]:
    """Return the policy's preference of each choice."""
    assert composite.policy is not None
    if composite.correction is None:
        return preferences(composite.policy, seen)
    ratings = preferences(composite.policy, correction_inputs(seen, memory, command))
    return ratings + composite.correction * to_unit(composite.policy.normaliser, command)


def _all_finite(tree: Params) -> Bool[Array, ""]:
    leaves = [jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(tree)]
    return jnp.all(jnp.stack(leaves)) if leaves else jnp.asarray(True)


def _choose(condition: Bool[Array, ""], yes: Params, no: Params) -> Params:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)


def _finite_action(shield: Shield, action: Float[Array, " A"]) -> Float[Array, " A"]:
    """Clip `action` to the bounds; replace non-finite values by the shield's `rest`, or by the middle of the range."""
    middle = shield.rest if isinstance(shield, SupportShield) else (shield.action_low + shield.action_high) / 2
    known = jnp.where(jnp.isfinite(action), action, middle)
    return jnp.clip(known if shield.dwell is None else jnp.round(known), shield.action_low, shield.action_high)


def first_applied(plant: Plant | Process, composite: Composite, observation: Float[Array, " O"]) -> Float[Array, " A"]:
    """Return the action assumed to be in force before the first step; `rest` of the shield for a log-only plant."""
    if isinstance(plant, Plant):
        return plant.applied(observation)
    assert isinstance(composite.shield, SupportShield)
    return composite.shield.rest


def _trusted(
    plant: Plant | Process,
    composite: Composite,
    memory: Params,
    observation: Float[Array, " O"],
    returning: Bool[Array, ""],
    action: Float[Array, " A"],
    since: Params,
) -> Bool[Array, ""]:
    """Return whether the policy may keep control with this action, or regain it if `returning`."""
    shield = composite.shield
    if isinstance(shield, SupportShield):
        stays, returns = (
            inside_support(shield, observation, action, radius) for radius in (shield.radius, shield.return_radius)
        )
    else:
        assert isinstance(plant, Plant)
        enclosed, model = inside_envelope(shield, observation), composite.model
        margins = predicted_margins(plant, shield, composite.fallback, memory, model, observation, action, since)
        buffers = (shield.margin_buffer, shield.margin_buffer + shield.return_buffer)
        stays, returns = (enclosed & margins_suffice(margins, buffer) for buffer in buffers)
    return jnp.where(returning, returns, stays)


def _best_choice(
    composite: Composite,
    ratings: Float[Array, " C"],
    applied: Float[Array, " A"],
    since: Params,
    trusted: Callable[[Float[Array, " A"], Params], Bool[Array, ""]],
) -> tuple[Float[Array, " A"], Bool[Array, ""]]:
    """Return the policy's most preferred choice of all allowed and trusted choices, and whether such a choice exists.

    Choices that are not allowed are masked, as in Huang & Ontañón 2022 (arXiv 2006.14171).
    """
    policy, shield = composite.policy, composite.shield
    assert policy is not None
    assert policy.normaliser.choices is not None
    choices = policy.normaliser.choices[:, None]

    def possible(choice: Float[Array, " A"]) -> Bool[Array, ""]:
        had = jnp.all(limit_action(shield, choice, applied, since) == choice)
        return had & trusted(choice, dwell_count(shield, since, applied, choice))

    allowed = jax.vmap(possible)(choices)
    best = jnp.argmax(jnp.where(allowed, ratings, -jnp.inf))
    return choices[best], jnp.all(jnp.isfinite(ratings)) & jnp.any(allowed)


def _with_history(
    composite: Composite, state: PolicyState, observation: Float[Array, " O"], applied: Float[Array, " A"]
) -> Float[Array, " S"]:
    """Return the observation with history, for the policy."""
    if composite.history is None:
        return observation
    before = state.seen
    # After a non-finite first observation the history is invalid: restart it.
    before = jnp.where(jnp.all(jnp.isfinite(before)), before, stack_first(composite.history, observation, applied))
    return stack_next(composite.history, before, applied, observation)


@cache
def composite_controller(plant: Plant | Process, propose: Propose = policy_act) -> Controller:
    """Return the shielded controller of a plant; the controller's parameters are a `Composite`.

    Each step, in order:
    1. If the observation is not finite, keep the applied action and the state.
    2. Limit the policy's action in rate and range. Predict the margins if the fallback takes over one step later. The
       fallback takes over now if a predicted margin is below the buffer, the observation is outside the envelope, or
       the policy's action is not finite. For a log-only plant, the fallback takes over outside the support of the logs.
    3. For a discrete action, check all choices in this way. The policy takes its most preferred choice that is trusted
       and allowed by the dwell time; the fallback takes over if there is no such choice.
    4. After `hold` steps, the policy regains control if the predicted margins exceed the buffer by `return_buffer` (for
       a log-only plant: within `return_radius`).

    Fallback and history receive every observation and the applied action, so a hand-over causes no jump. After a policy
    that moved set points, the fallback returns to its own set points.

    Args:
        plant: supplies the prediction model and the fallback; log-only plants use the composite's fallback.
        propose: function (`Composite.policy`, observation) -> action; must be `policy_act` for discrete actions. Not
            used by a composite with a `correction` or a `shift`, which moves the fallback's action or set points.

    Returns:
        The controller. Equal arguments return the same object, so that compiled programs are reused.
    """

    fallback = plant.fallback if isinstance(plant, Plant) else FALLBACK

    def init(composite: Composite, observation: Float[Array, " O"]) -> PolicyState:
        action = _finite_action(composite.shield, first_applied(plant, composite, observation))
        return PolicyState(
            handed_over=jnp.asarray(False),
            held=jnp.asarray(0, jnp.int32),
            action=action,
            fallback=fallback.init(composite.fallback, observation),
            seen=() if composite.history is None else stack_first(composite.history, observation, action),
            # The dwell time is unknown at the start, so the first switch is always allowed.
            since=() if composite.shield.dwell is None else jnp.maximum(composite.shield.dwell, 1),
        )

    def act(
        composite: Composite, state: PolicyState, observation: Float[Array, " O"], applied: Float[Array, " A"]
    ) -> tuple[PolicyState, Float[Array, " A"]]:
        shield = composite.shield
        applied = _finite_action(shield, jnp.where(jnp.isfinite(applied), applied, state.action))
        # An action applied by another controller counts as in force for one step.
        since = jnp.where(jnp.all(applied == state.action), state.since, 1) if shield.dwell is not None else ()
        readable = jnp.all(jnp.isfinite(observation))

        # After a non-finite first observation the memory is invalid: restart it.
        before = _choose(_all_finite(state.fallback), state.fallback, fallback.init(composite.fallback, observation))
        memory, command = fallback.act(composite.fallback, before, observation, applied)
        safe = limit_action(shield, jnp.where(jnp.isfinite(command), command, applied), applied, since)

        if composite.policy is None:
            handed_over, held, action, seen = state.handed_over, state.held, safe, state.seen
        else:
            stacked = _with_history(composite, state, observation, applied)
            seen = () if composite.history is None else stacked
            kept = memory
            trusted = partial(_trusted, plant, composite)
            if shield.dwell is not None:
                ratings = _ratings(composite, stacked, memory, _finite_action(shield, command))
                choose = partial(trusted, memory, observation, state.handed_over)
                chosen, sound = _best_choice(composite, ratings, applied, since, choose)
            else:
                if composite.moves_fallback:
                    answer = _Answer(before, observation, applied, memory, _finite_action(shield, command))
                    kept, proposed = _moved(plant, composite, stacked, answer)
                else:
                    proposed = propose(composite.policy, stacked)
                finite = jnp.all(jnp.isfinite(proposed))
                chosen = limit_action(shield, jnp.where(finite, proposed, applied), applied)
                sound = finite & trusted(kept, observation, state.handed_over, chosen, ())
            handed_over = ~(sound & (~state.handed_over | (state.held >= shield.hold)))
            handed_over = checkpoint_name(handed_over, CHOICE)  # type: ignore[no-untyped-call]
            held = jnp.where(handed_over, state.held + 1, 0)
            action = jnp.where(handed_over, safe, chosen)
            if composite.shift is not None:
                memory = _choose(handed_over, memory, kept)

        following = PolicyState(handed_over, held, action, memory, seen, dwell_count(shield, since, applied, action))
        unmoved = state._replace(action=applied, since=dwell_count(shield, since, applied, applied))
        return _choose(readable, following, unmoved), jnp.where(readable, action, applied)

    return Controller(init, act)


@cache
def unshielded_controller(plant: Plant) -> Controller:
    """Return the policy of a composite without the shield, for training and comparison only.

    The controller's parameters are a `Composite`, as for `composite_controller`. The fallback runs beside a policy that
    moves its action or set points.
    """

    def init(composite: Composite, observation: Float[Array, " O"]) -> Params:
        memory: Params = ()
        seen: Params = ()
        if composite.moves_fallback:
            memory = plant.fallback.init(composite.fallback, observation)
        if composite.history is not None:
            applied = clip_to(plant.spec.action, plant.applied(observation))
            seen = stack_first(composite.history, observation, applied)
        return memory, seen

    def act(
        composite: Composite, state: Params, observation: Float[Array, " O"], applied: Float[Array, " A"]
    ) -> tuple[Params, Float[Array, " A"]]:
        assert composite.policy is not None
        memory, before = state
        seen = stack_next(composite.history, before, clip_to(plant.spec.action, applied), observation)
        if composite.moves_fallback:
            following, command = plant.fallback.act(composite.fallback, memory, observation, applied)
            command = clip_to(plant.spec.action, command)
            if plant.spec.choices is None:
                answer = _Answer(memory, observation, applied, following, command)
                memory, action = _moved(plant, composite, seen, answer)
            else:
                ratings = _ratings(composite, seen, following, jnp.round(command))
                memory, action = following, to_physical(composite.policy.normaliser, ratings)
        else:
            action = policy_act(composite.policy, seen)
        return (memory, () if composite.history is None else seen), action

    return Controller(init, act)


@cache
def bare_controller(plant: Plant, propose: Propose = policy_act) -> Controller:
    """Return a policy that gives whole actions as a controller, for comparison only; its parameters are the policy."""

    def act(policy: Any, state: Params, observation: Float[Array, " O"], applied: Float[Array, " A"]) -> Any:
        return (), propose(policy, observation)

    return Controller(lambda policy, observation: (), act)
