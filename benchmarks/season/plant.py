"""The reactor of a season: its fouling, the log of a day, and the episodes of a champion."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jaxtyping import Array, PRNGKeyArray

from neorl_core.control.behaviour import Behaviour, BehaviourParams, blended
from neorl_core.plants import chemical_reactor as reactor
from neorl_core.plants.base import EpisodeResult, rollout, summarise
from neorl_core.safety.composite import composite_controller
from neorl_core.types import Controller, Params
from tasks.data.formats.exports import Flat
from tasks.data.store.schema import ALWAYS
from tasks.data.synthetic.behaviours import policy_of
from tasks.data.synthetic.episodes import rows_of
from tasks.models.bundles.bundle import load_bundle

PLANT = reactor.PLANT
SEED = 2026
CALM, CLEANED = 30, 70
"""Days on which fouling begins, and on which the exchanger is cleaned."""
FOULING = 0.0015
"""Share of the heat transfer that is lost per day."""
EPISODES, SERVED = 20, 64
"""Number of episodes in the log of a day, and of episodes that a champion plays."""


class Service(NamedTuple):
    """Simulated episodes of a champion on one day."""

    returns: npt.NDArray[np.float64]
    """(E,) returns of the episodes."""
    violated: int
    """Episodes that violate a limit."""


def fouled(day: int) -> float:
    """Return the lost share of the heat transfer on a day."""
    return FOULING * max(day - CALM, 0) if day < CLEANED else 0.0


def write_day(day: int, path: Path) -> Path:
    """Write the episodes of a day with the controller as found, in D4RL's layout. Repeated calls write the same bytes.

    Args:
        day: day from 0; negative days are before the season.
        path: file to write.
    """
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    policy = policy_of(PLANT, "pid")
    behaviour = Behaviour(*(jnp.asarray(float(value)) for value in policy.parts["pid"]))
    controller = blended(policy.base, PLANT)
    keys = jax.random.split(_key(day, 0), 2 * EPISODES)
    params = BehaviourParams(policy.base_params, behaviour, keys[EPISODES:])
    played = jax.device_get(_logged(controller, params, keys[:EPISODES], jnp.asarray(fouled(day))))
    with Flat(path, (*ALWAYS, "costs")) as file:
        file.append(rows_of(played))
    return path


def serve(bundle: Path, day: int) -> Service:
    """Play episodes of a champion on the plant of a day. The episodes are the same for every champion."""
    composite = load_bundle(bundle)[1]
    keys = jax.random.split(_key(day, 1), SERVED)
    played = _played(composite_controller(PLANT), composite, keys, jnp.asarray(fouled(day)))
    return Service(np.asarray(played.ret, np.float64), int(np.asarray(played.violated).sum()))


def _key(day: int, use: int) -> PRNGKeyArray:
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(SEED), day + 1000), use)


def _episode(controller: Controller, params: Params, key: PRNGKeyArray, lost: Array, trace: bool) -> EpisodeResult:
    key_constants, key_run = jax.random.split(key)
    constants = reactor.sample_params(key_constants, PLANT.domain)
    constants = constants._replace(cooling_rate=constants.cooling_rate * (1 - lost))
    trajectory = rollout(PLANT, controller, params, key_run, constants)
    return summarise(trajectory, PLANT)._replace(trajectory=trajectory if trace else None)


@partial(jax.jit, static_argnums=0)
def _logged(controller: Controller, params: BehaviourParams, keys: PRNGKeyArray, lost: Array) -> EpisodeResult:
    def one(key: PRNGKeyArray, noise: PRNGKeyArray) -> EpisodeResult:
        return _episode(controller, params._replace(key=noise), key, lost, trace=True)

    return jax.vmap(one)(keys, params.key)


@partial(jax.jit, static_argnums=0)
def _played(controller: Controller, params: Params, keys: PRNGKeyArray, lost: Array) -> EpisodeResult:
    return jax.vmap(lambda key: _episode(controller, params, key, lost, trace=False))(keys)
