"""Controllers of the pumps: two-point control by level and tariff, and a dynamic programme over the day."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jaxtyping import Array, Float

from neorl_core.plants.pumping_station.hydraulics import (
    BEYOND_COST,
    DT,
    LIMITS,
    MEAN_PRICE,
    NOMINAL,
    PUMPS,
    RIM,
    SLOTS,
    START_COST,
    Params,
    Scalar,
    advance,
    cost,
    flow,
    margins_of,
    pattern,
    power,
    price,
    slot_of,
)
from neorl_core.types import Controller


class Hysteresis(NamedTuple):
    """Switching levels [m], as is usual in waterworks."""

    dear: Scalar
    """A pump runs below this level while energy is dear."""
    cheap: Scalar
    """A pump runs below this level while energy is cheap."""
    stage: Scalar
    """Each further pump starts this much lower."""
    gap: Scalar
    """A pump stops this much above its start level."""


def _switched(
    params: Hysteresis, state: tuple[()], observation: Float[Array, " 6"], applied: Float[Array, " 1"]
) -> tuple[tuple[()], Float[Array, " 1"]]:
    start = jnp.where(observation[5] < MEAN_PRICE, params.cheap, params.dear)
    least, most = (jnp.ceil((start + gap - observation[0]) / params.stage) for gap in (0.0, params.gap))
    return (), jnp.clip(jnp.clip(applied, least, most), 0.0, PUMPS)


switched = Controller(lambda params, observation: (), _switched)
"""`clip(n, ⌈(start − level)/stage⌉, ⌈(start + gap − level)/stage⌉)`: staged two-point control of the level."""
BY_HAND = Hysteresis(dear=3.0, cheap=3.0, stage=0.5, gap=0.5)
"""Equal levels at all times, regardless of the tariff."""
TUNED = Hysteresis(dear=2.8, cheap=4.4, stage=1.45, gap=0.3)
"""By benchmarks.tuning, for the operating domain."""

LEVELS = 81
"""Grid points of the level in the value function."""
KEPT = 0.35
"""Reserve [m] to the limits for unforeseen demand."""


@cache
def plan(params: Params, days: int = 12) -> npt.NDArray[np.float64]:
    """Return the value function under the mean demand, up to a constant, by backward induction.

    `J(slot, level, before) = min_n cost(…) + J(slot + 1, level', n)` (Bellman 1957, Dynamic Programming, chapter III).

    Args:
        params: constants of the plant.
        days: days until the differences repeat daily.

    Returns:
        (48, L, 4), by step of the day, level and pumps that ran before.
    """
    levels, pumps = np.linspace(0.0, RIM, LEVELS), np.arange(PUMPS + 1)

    def lifted(level: Float[Array, ""], running: Float[Array, ""]) -> tuple[Float[Array, ""], Float[Array, ""]]:
        return flow(running, level, params), power(running, level, params)

    every = jax.vmap(jax.vmap(lifted, (None, 0)), (0, None))
    # The caller may be tracing another program.
    with jax.ensure_compile_time_eval():
        found = every(jnp.asarray(levels, float), jnp.asarray(pumps, float))
        slots = jnp.arange(SLOTS)
        flows, powers, shares, prices = (np.asarray(x, np.float64) for x in (*found, pattern(slots), price(slots)))
    lifting = params.density * params.gravity * params.lift / params.efficiency / 3.6e6
    starts = START_COST * np.maximum(pumps[None, :] - pumps[:, None], 0.0)  # (before, now)
    costs: npt.NDArray[np.float64] = np.zeros((SLOTS, LEVELS, len(pumps)))
    after = np.zeros((LEVELS, len(pumps)))
    for slot in reversed(range(days * SLOTS)):
        slot = slot % SLOTS
        reached = levels[:, None] + DT * (flows - params.demand * shares[slot]) / np.asarray(params.area)
        beyond = np.maximum(np.maximum(LIMITS[0] + KEPT - reached, reached - LIMITS[1] + KEPT), 0.0)
        here = prices[slot] * DT * powers + BEYOND_COST * beyond
        here -= MEAN_PRICE * np.asarray(lifting * params.area) * (reached - levels[:, None])
        here += np.stack([np.interp(reached[:, n], levels, after[:, n]) for n in range(len(pumps))], axis=1)
        after = (here[:, None, :] + starts).min(axis=2)
        after -= after.mean()
        costs[slot] = after
    return costs


def _foreseen(
    params: Params, state: tuple[()], observation: Float[Array, " 6"], applied: Float[Array, " 1"]
) -> tuple[tuple[()], Float[Array, " 1"]]:
    slot, level = slot_of(observation), observation[0]
    grid = jnp.linspace(0.0, RIM, LEVELS, dtype=level.dtype)
    costs = jnp.asarray(plan(NOMINAL), level.dtype)[(slot + 1) % SLOTS]

    def total(pumps: Float[Array, ""]) -> Float[Array, ""]:
        after, _ = advance(level, pumps, observation[2], params)
        beyond = jnp.maximum(KEPT - margins_of(after)[0], 0.0)
        own = cost(level, applied[0], pumps, after, observation[5], params)
        return own + BEYOND_COST * beyond + jnp.interp(after, grid, costs[:, pumps.astype(jnp.int32)])

    return (), jnp.argmin(jax.vmap(total)(jnp.arange(PUMPS + 1, dtype=level.dtype)))[None].astype(level.dtype)


foreseen = Controller(lambda params, observation: (), _foreseen)
"""The action with the least cost now, by the given constants, plus future cost, by `plan`."""
