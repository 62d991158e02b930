"""The cascaded tanks of the nonlinear benchmark: two tanks, of which only the lower one is measured.

Schoukens and Noël 2017 (IFAC PapersOnLine 50-1, 446-451). A pump fills the upper tank, which empties into the lower
one; part of the overflow of the upper tank runs into the lower one. Levels are in volts of the sensor; sensor and tanks
end at 10.

dh1/dt = inflow u − out1 h1^e1 − over,   over = max(dh1/dt, 0) where h1 = 10
dh2/dt = in2 h1^e1 − out2 h2^e2 + spilled · over

Torricelli's exponent is one half; pipe losses and the tanks' shape change it, so it is an unknown with a prior.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from neorl_core.identify import Episodes, Unknown
from neorl_core.identify.estimate import Posterior, estimate
from neorl_core.identify.estimate import Start as EpisodeStart
from neorl_core.identify.forecast import forecast
from neorl_core.identify.unknowns import with_constants
from neorl_core.plants.integrators import RK4, integrate

DT, SUBSTEPS, TOP, LEAST = 4.0, 4, 10.0, 1e-3


class Params(NamedTuple):
    """Prior rates, in V/s per V to a power."""

    inflow: float | jax.Array = 0.055
    upper_out: float | jax.Array = 0.06
    lower_in: float | jax.Array = 0.06
    lower_out: float | jax.Array = 0.06
    upper_exponent: float | jax.Array = 0.5
    lower_exponent: float | jax.Array = 0.5
    spilled: float | jax.Array = 0.5


UNKNOWNS = (
    *(Unknown(name, 0.5) for name in ("inflow", "upper_out", "lower_in", "lower_out")),
    *(Unknown(name, 0.2) for name in ("upper_exponent", "lower_exponent")),
    Unknown("spilled", 0.3, "normal"),
)
STARTS = (EpisodeStart(0, 2.0, 5.0), EpisodeStart(1, 0.1))
"""The upper tank's initial level is unknown; the lower one's is measured with noise."""


def predict(levels: jax.Array, pump: jax.Array, p: Params) -> tuple[jax.Array, jax.Array]:
    """Levels [V] after 4 s at a pump voltage."""

    def slope(h: jax.Array) -> jax.Array:
        flow = jnp.maximum(h[0], LEAST) ** p.upper_exponent
        net = p.inflow * pump[0] - p.upper_out * flow
        over = jnp.where(h[0] >= TOP, jnp.maximum(net, 0.0), 0.0)
        lower = p.lower_in * flow - p.lower_out * jnp.maximum(h[1], LEAST) ** p.lower_exponent
        return jnp.stack([net - over, lower + p.spilled * over])

    levels = jnp.clip(integrate(RK4, slope, levels, DT, SUBSTEPS)[-1], 0.0, TOP)
    return levels, TOP - levels


class Record(NamedTuple):
    """Pump voltage and level of the lower tank [V], (1024,) each."""

    pump: np.ndarray
    level: np.ndarray


def read(path: Path) -> tuple[Record, Record]:
    """The record to estimate from and the record to test on."""
    u, u_test, y, y_test = np.genfromtxt(path, np.float32, delimiter=",", skip_header=1)[:, :4].T
    return Record(u, y), Record(u_test, y_test)


def identified(record: Record) -> Posterior:
    """Constants and initial levels from the whole record in free run: one segment as long as the record."""
    levels = np.stack([np.full_like(record.level, np.nan), record.level], axis=-1)
    episodes = Episodes(levels[None], record.pump[None, :-1, None])
    posterior: Posterior = estimate(predict, Params(), UNKNOWNS, episodes, len(record.level), STARTS)
    return posterior


def free_run(posterior: Posterior, record: Record) -> np.ndarray:
    """The lower tank's level [V] over a record, from the pump voltage and the first level only.

    According to the benchmark, both records start in the same unknown state, so the upper tank starts at the level that
    was estimated from the other record.
    """
    params = with_constants(Params(), UNKNOWNS, posterior.estimate)
    start = jnp.stack([posterior.starts[0, 0], jnp.asarray(record.level[0])])
    nothing = jnp.full((len(record.level), 2), jnp.nan)
    actions = jnp.asarray(record.pump[:-1, None])
    levels = forecast(predict, params, start, nothing, actions, len(actions), jnp.zeros(2, bool))
    return np.concatenate([record.level[:1], np.asarray(levels[:, 1])])
