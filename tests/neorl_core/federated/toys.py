"""Small federations: a quadratic learned by gradient steps, and sites of a linear plant."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from neorl_core.federated.methods import Rows
from neorl_core.training.population import Algorithm, TrainState
from neorl_core.types import PlantSpec, Space, Transition

SPEC = PlantSpec(
    name="toy",
    observation=Space(("x", "y", "z"), ("m", "m", "m"), (-9.0,) * 3, (9.0,) * 3),
    action=Space(("u",), ("N",), (-2.0,), (2.0,)),
    constraints=(),
    dt=1.0,
    time_unit="s",
    horizon=10,
    score_range=(0.0, 1.0),
)
DISCRETE = SPEC._replace(choices=("low", "middle", "high"))


class Quadratic(NamedTuple):
    weight: jax.Array
    hyper: dict[str, jax.Array]


class QuadraticConfig(NamedTuple):
    lr: float = 0.1


def quadratic_update(state: Quadratic, batches: Transition, key: jax.Array) -> tuple[Quadratic, dict[str, jax.Array]]:
    """A gradient step of `mean a (w - b)^2 / 2`, with a the observations and b the next observations."""
    a, b = batches.observation[0], batches.next_observation[0]
    gradient = jnp.mean(a * (state.weight - b), axis=0)
    loss = jnp.mean(a * (state.weight - b) ** 2) / 2
    return Quadratic(state.weight - state.hyper["lr"] * gradient, state.hyper), {"loss": loss}


QUADRATIC = Algorithm(
    name="quadratic",
    Config=QuadraticConfig,
    batches_per_update=1,
    init=lambda key, spec, config: Quadratic(jnp.zeros(2), {"lr": jnp.asarray(config.lr)}),
    update=quadratic_update,
    act=lambda state, observation: observation[..., :1],
    actor=lambda state: state.weight,
)


def quadratic_rows(a: Any, b: Any) -> Rows:
    """Sites (S, 2) with identical rows, so that sampling does not matter."""
    a, b = (np.repeat(np.asarray(x, np.float32)[:, None], 3, axis=1) for x in (a, b))
    zeros = np.zeros(a.shape[:2], np.float32)
    rows = Transition(a, zeros[..., None], zeros, zeros, b, zeros)
    return Rows(jax.tree.map(jnp.asarray, rows), jnp.full(len(a), 3, jnp.int32))


def fresh(learner: Any, seed: int = 0) -> TrainState:
    return TrainState(learner, jax.random.key_data(jax.random.key(seed)), jnp.int32(0))


def linear_sites(count: int, rows: int, seed: int = 0, discrete: bool = False) -> list[Transition]:
    """Sites with slightly different linear operators and numbers of rows."""
    rng = np.random.default_rng(seed)
    found = []
    for i in range(count):
        n = rows + 7 * i
        x = rng.normal(size=(n, 3)).astype(np.float32)
        gain = np.asarray([0.6, -0.4, 0.2]) + 0.02 * rng.normal(size=3)
        u = np.clip(x @ gain[:, None] + 0.05 * rng.normal(size=(n, 1)), -2, 2).astype(np.float32)
        if discrete:
            u = np.digitize(u, [-0.3, 0.3]).astype(np.float32)
        after = (0.9 * x + 0.1 * u).astype(np.float32)
        reward = -np.sum(after**2, axis=1).astype(np.float32)
        found.append(Transition(x, u, reward, np.zeros(n, np.float32), after, np.zeros(n, np.float32)))
    return found


def together(sites: list[Transition]) -> Transition:
    """All rows of all sites together."""
    pooled: Any = [None if x[0] is None else np.concatenate(x) for x in zip(*sites, strict=True)]
    return Transition(*pooled)
