"""Simulators with a known probability of violation, equal to the claimed p0."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from neorl_core.plants.base import EpisodeResult, rollouts
from neorl_core.safety.bounds import betting_episodes
from neorl_core.safety.certify import CertificationCounts, Run, certify_batches
from neorl_core.types import Constraint, Controller, Params, Plant, PlantSpec, Space, Timestep

ROOM = 10
"""Number of violations that a claim of NeoRL allows."""


class Walk(NamedTuple):
    """Random walk x' = 0.9 x + 0.1 w with w ~ N(0, 1) from x = 0."""

    bound: float | Array = 0.8


class _State(NamedTuple):
    x: Array
    t: Array


def _step(key: Array, state: _State, action: Array, params: Walk) -> tuple[_State, Timestep]:
    x = 0.9 * state.x + 0.1 * jax.random.normal(key, (1,))
    margins = params.bound - jnp.abs(x)
    return _State(x, state.t + 1), Timestep(x, jnp.asarray(0.0), margins, margins[0] < 0, state.t + 1 >= 200)


REST: Controller = Controller(lambda params, observation: (), lambda params, state, o, a: (state, jnp.zeros(1)))
WALK = Plant(
    spec=PlantSpec(
        name="walk",
        observation=Space(("x",), ("m",), (-5.0,), (5.0,)),
        action=Space(("push",), ("m",), (-1.0,), (1.0,)),
        constraints=(Constraint("x", "m", -0.8, 0.8),),
        dt=1.0,
        time_unit="s",
        horizon=200,
        score_range=(0.0, 1.0),
    ),
    params=Walk(),
    domain=Walk(),
    sample_params=lambda key, domain: domain,
    reset=lambda key, params: (_State(jnp.zeros(1), jnp.asarray(0)), jnp.zeros(1)),
    step=_step,
    predict=lambda observation, action, params: (observation, params.bound - jnp.abs(observation)),
    applied=jnp.zeros_like,
    fallback=REST,
    fallback_params=(),
)


class World(NamedTuple):
    """A simulator and the probability of a violated episode."""

    name: str
    p: float
    bound: float
    run: Run
    batch: int

    def test(self, seed: bytes, alpha: float) -> CertificationCounts:
        """Test the claim p < p0 with NeoRL's test at p0 = p, so that every certificate is false."""
        most = betting_episodes(self.p, ROOM, alpha)
        *_, last = certify_batches(
            WALK,
            REST,
            (),
            Walk(self.bound),
            seed,
            p0=self.p,
            alpha=alpha,
            max_episodes=most,
            batch=self.batch,
            run=self.run,
        )
        return last


@cache
def _flips(p: float) -> Run:
    """Return a function that plays an episode, which is violated with probability p."""

    @jax.jit
    def drawn(keys: Array) -> Array:
        return jax.vmap(jax.random.uniform)(keys) < p

    def run(plant: Plant, controller: Controller, params: Params, keys: Array, domain: Params) -> EpisodeResult:
        none = jnp.zeros(keys.shape[0])
        count = none.astype(jnp.int32)
        return EpisodeResult(none, count, drawn(keys), none[:, None], count)

    return run


def coin(p: float, batch: int) -> World:
    """Return a simulator without dynamics: each episode is violated with probability p."""
    return World(f"draws with p = {p:g}", p, 0.0, _flips(p), batch)


WALKS = (
    World("walk within 0.8", 0.04726868, 0.8, rollouts, 320),
    World("walk within 0.9", 0.00967962, 0.9, rollouts, 1536),
)
"""Two walks with their violation probabilities, computed by quadrature."""
