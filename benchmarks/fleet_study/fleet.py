"""Sites of a fleet: reactors, logs, and scores of policies."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from neorl_core.control.behaviour import Behaviour, BehaviourParams, blended
from neorl_core.networks import Policy
from neorl_core.plants import chemical_reactor as reactor
from neorl_core.plants.base import Trajectory, rollout, summarise
from neorl_core.safety.composite import bare_controller
from neorl_core.types import Transition
from tasks.data.synthetic.behaviours import policy_of, score

PLANT = reactor.PLANT
SPREAD = 0.03
"""Half range of k0 and UA over the fleet, relative to the nominal values."""
BEHAVIOUR = "medium"
LEARNING, UNSEEN = 0, 1
"""Seeds of the training sites and of the new sites."""
NOT_FINITE = -1_000.0
"""Score of an episode with a non-finite return."""


class Scores(NamedTuple):
    """Scores of policies on a fleet."""

    sites: list[float]
    """Mean score of each site."""
    violated: float
    """Share of episodes that violate a limit."""


def reactors(count: int, fleet: int) -> reactor.Params:
    """Return the constants of the sites, each field (S,)."""
    domain = reactor.Domain(reaction_spread=SPREAD, cooling_spread=SPREAD)
    keys = jax.random.split(jax.random.fold_in(jax.random.key(16), fleet), count)
    found: reactor.Params = jax.vmap(lambda key: reactor.sample_params(key, domain))(keys)
    return jax.tree.map(lambda x: jnp.broadcast_to(jnp.asarray(x, jnp.float32), (count,)), found)


def logs(constants: reactor.Params, episodes: int, seed: int) -> list[Transition]:
    """Return each site's logged transitions in physical units.

    Args:
        constants: constants of the sites, (S,) each.
        episodes: episodes per site. The first episodes of a seed do not depend on this number.
        seed: seed of starts, disturbances, noise and exploration.
    """
    made = policy_of(PLANT, BEHAVIOUR)
    controller, (behaviour,) = blended(made.base, PLANT), made.parts.values()
    return [
        _rows(_logged(controller, made.base_params, behaviour, own, episodes, jax.random.key(1_000 * (seed + 1) + i)))
        for i, own in enumerate(_each(constants))
    ]


def scores(policies: Sequence[Policy], constants: reactor.Params, episodes: int) -> Scores:
    """Score policy i on site i; the episodes do not depend on the policies.

    Args:
        policies: one for each site.
        constants: constants of the sites, (S,) each.
        episodes: episodes per site.
    """
    returns, violated = [], []
    for i, (policy, own) in enumerate(zip(policies, _each(constants), strict=True)):
        ret, beyond = _played(policy, own, jax.random.split(jax.random.key(77_000 + i), episodes))
        of_episodes = score(PLANT, np.asarray(ret, np.float64))
        returns.append(float(np.where(np.isfinite(of_episodes), of_episodes, NOT_FINITE).mean()))
        violated.append(float(np.mean(beyond)))
    return Scores(returns, float(np.mean(violated)))


@jax.jit
def _played(policy: Policy, constants: reactor.Params, keys: Any) -> tuple[Any, Any]:
    def episode(key: Any) -> tuple[Any, Any]:
        found = summarise(rollout(PLANT, bare_controller(PLANT), policy, key, constants), PLANT)
        return found.ret, found.violated

    return jax.vmap(episode)(keys)


@partial(jax.jit, static_argnames=("controller", "episodes"))
def _logged(
    controller: Any, params: Any, behaviour: Behaviour, constants: reactor.Params, episodes: int, key: Any
) -> Trajectory:
    def episode(i: Any) -> Trajectory:
        run, act = jax.random.split(jax.random.fold_in(key, i))
        return rollout(PLANT, controller, BehaviourParams(params, behaviour, act), run, constants)

    return jax.vmap(episode)(jnp.arange(episodes))


def _rows(played: Trajectory) -> Transition:
    alive = np.asarray(played.alive)

    def kept(x: Any) -> np.ndarray[Any, Any]:
        return np.asarray(x, np.float32)[alive]

    return Transition(
        kept(played.observations),
        kept(played.actions),
        kept(played.rewards),
        kept(jnp.any(played.margins < 0, axis=-1)),
        kept(played.next_observations),
        kept(played.terminated),
    )


def _each(constants: reactor.Params) -> list[reactor.Params]:
    return [jax.tree.map(lambda x, i=i: x[i], constants) for i in range(len(constants.reaction_rate))]
