"""Guess a policy's action values with learned models. The guesses are features of fitted Q evaluation."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from neorl_core.networks import Normaliser, Policy, policy_act, to_unit
from neorl_core.ope.model_based import LearnedModel, Member, predict_next, predict_reward
from neorl_core.types import Params
from neorl_core.world_model import dynamics
from neorl_core.world_model.dynamics import Reach

ROWS_AT_ONCE = 1024
"""Rollouts per batch of `action_values`, so that activations stay in the processor cache."""


@partial(jax.jit, static_argnames=("members", "steps"))
def action_values(
    learned: LearnedModel,
    normaliser: Normaliser,
    policy: Policy,
    observation: Float[Array, "n S"],
    action: Float[Array, "n A"],
    members: int,
    steps: int,
    discount: float = 0.99,
) -> Float[Array, "M n 2"]:
    """Estimate a policy's action values by short rollouts in networks and in ridge regressions.

    `q(s, a) = r(s, a) + sum_{0 < t < steps} discount^t P(not terminated before t) r(s_t, pi(s_t))`, without noise.

    Args:
        learned: networks and regressions, the two model families.
        normaliser: scale of the models' observations and actions; the policy has its own.
        observation: (n, S) normalised.
        action: (n, A) unit actions of the first step.
        members: number M of members per family, at most `MEMBERS`.

    Returns:
        (M, n, 2) values by networks and by regressions.
    """
    reach: Reach = dynamics.reach(learned.model)
    networks: Params = jax.tree.map(lambda *x: jnp.stack(x), *learned.model.members[:members])

    def one(member: Member, regressed: bool, first: tuple[Array, Array]) -> Float[Array, ""]:
        def outcome(s: Array, a: Array) -> tuple[Array, Array, Array]:
            after = dynamics.clip(reach, predict_next(learned, member, regressed, s, a))
            reward, logit = predict_reward(learned, member, s, a, after)
            continues = jnp.where(learned.ends, jax.nn.sigmoid(-logit), 1.0)
            return dynamics.stack_outcome(reach, s, a, after), reward, continues

        def step(carry: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], Array]:
            x, weight = carry
            u = to_unit(normaliser, policy_act(policy, x * normaliser.scale + normaliser.mean))
            after, reward, continues = outcome(x, u)
            return (after, weight * discount * continues), weight * reward

        after, reward, continues = outcome(*first)
        later: Float[Array, ""] = jax.lax.scan(step, (after, discount * continues), length=steps - 1)[1].sum()
        return reward + later

    def both(member: Member) -> Float[Array, "n 2"]:
        families = [
            jax.lax.map(partial(one, member, regressed), (observation, action), batch_size=ROWS_AT_ONCE)
            for regressed in (False, True)
        ]
        return jnp.stack(families, axis=-1)

    values: Float[Array, "M n 2"] = jax.lax.map(both, Member(networks, learned.ridge.coefficients[:members]))
    return values
