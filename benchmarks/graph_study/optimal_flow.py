"""The optimal flow of the feeder's days in hindsight: an upper bound, and logs for learning.

The optimal flow of a day is the schedule of all units that earns the most within the voltage limits, if load, sky and
noise are known in advance. It is a multi-period optimal power flow, solved with gradients through the plant's steps. A
real controller knows less and earns less. Agents learn from solved past days, as in Dobbe et al. 2020 (arXiv
1806.06790) and Karagiannopoulos et al. 2019 (IEEE Trans. Smart Grid 10(6)). The plant's own controller sets the lines.

Optimal days alone do not show how to recover from errors. So the logged days contain disturbances (noise injection:
Laskey et al. 2017, arXiv 1703.09327). Batteries start with any charge and sometimes get other orders for one or two
hours. In some steps all powers, and sometimes lines, are disturbed for a quarter of an hour. Rows with disturbed
actions are left out, and later rows show the recovery. Without disturbances, a battery learns to copy its own past
action, which its voltage shows, and never starts (de Haan et al. 2019, arXiv 1905.11979).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from neorl_core.plants.base import clip_to, rollouts
from neorl_core.plants.power_grid import units
from neorl_core.types import Params, Plant, Transition

START_SPREAD = 0.5
"""On logged days, the charge of a battery at midnight is uniform in 0.5 ± this number (share of the capacity)."""
ORDERS, SHORTEST, LONGEST = 1, 4, 8
"""Orders to each battery in a logged day, and shortest and longest duration of an order in quarters of an hour."""
UPSET, LINES = 0.2, 0.3
"""Share of steps with disturbed powers; share of these steps in which lines are disturbed as well."""
SCHEDULED = 2 * len(units.UNITS)
"""Scheduled components of the action: all except the switches."""
RESERVE = 0.004
"""Distance [pu] that a schedule keeps from the limits."""
PENALTY = 2_000.0
"""Penalty [$ per pu and quarter of an hour] below that distance."""
RATE = 0.05
"""Initial step length of Adam as a share of each range; it falls along a cosine."""


def day_of(plant: Plant, key: jax.Array, domain: Params) -> tuple[Params, Any, jax.Array, jax.Array]:
    """Return constants, first state and observation, and step key of the day that `rollouts` plays for a key."""
    key_constants, key_run = jax.random.split(key)
    params = plant.sample_params(key_constants, domain)
    key_reset, key_steps = jax.random.split(key_run)
    return params, *plant.reset(key_reset, params), key_steps


def played(plant: Plant, key: jax.Array, domain: Params, schedule: jax.Array) -> Transition:
    """Play a schedule (96, 17); `cost` is the negative least margin [pu]."""
    params, state, observation, steps = day_of(plant, key, domain)

    def step(carry: Any, now: tuple[jax.Array, jax.Array]) -> Any:
        state, observation = carry
        action = clip_to(plant.spec.action, now[1])
        state, after = plant.step(jax.random.fold_in(steps, now[0]), state, action, params)
        row = Transition(
            observation, action, after.reward, -after.margins[0], after.observation, after.terminated.astype(float)
        )
        return (state, after.observation), row

    return jax.lax.scan(step, (state, observation), (jnp.arange(plant.spec.horizon), schedule))[1]


@partial(jax.jit, static_argnames=("plant", "steps"))
def solved(plant: Plant, keys: jax.Array, domain: Params, first: Any, ordered: Any, steps: int) -> jax.Array:
    """Return the best schedule (D, 96, 17) of each day by projected steps of Adam.

    Args:
        plant: the feeder.
        keys: (D,) keys of the days, as for `rollouts`.
        domain: operating domain of the days.
        first: (1 or D, 96, 17) initial schedules [MW, Mvar].
        ordered: (D, 96, 17) fixed actions; NaN where the schedule is free.
        steps: steps of Adam.
    """
    low, high = (np.asarray(x[:SCHEDULED], np.float32) for x in (plant.spec.action.low, plant.spec.action.high))
    lines = np.asarray(units.TOPOLOGIES[units.SUNNY], np.float32)
    adam = optax.adam(optax.cosine_decay_schedule(RATE, steps))

    def day(key: jax.Array, begun: jax.Array, orders: jax.Array) -> Any:
        def schedule(parts: jax.Array) -> jax.Array:
            own = jnp.concatenate([low + (high - low) * parts, jnp.broadcast_to(lines, (len(parts), len(lines)))], -1)
            return jnp.where(jnp.isnan(orders), own, orders)

        def cost(parts: jax.Array) -> jax.Array:
            rows = played(plant, key, domain, schedule(parts))
            return PENALTY * jnp.sum(jnp.maximum(rows.cost + RESERVE, 0.0)) - jnp.sum(rows.reward)

        def improve(carry: Any, _: None) -> tuple[Any, None]:
            at, memory = carry
            move, memory = adam.update(jax.grad(cost)(at), memory)
            return (jnp.clip(at + move, 0.0, 1.0), memory), None

        return schedule(jax.lax.scan(improve, (begun, adam.init(begun)), None, length=steps)[0][0])

    begun = (jnp.asarray(first)[..., :SCHEDULED] - low) / (high - low)
    return jax.vmap(day)(keys, jnp.broadcast_to(begun, (len(keys), *begun.shape[1:])), ordered)


def free(days: int) -> np.ndarray:
    """Return (D, 96, 17) orders in which everything is free, which means NaN."""
    return np.full((days, units.HORIZON, SCHEDULED + units.SWITCHES), np.nan, np.float32)


def orders(days: int, seed: int) -> np.ndarray:
    """Return random orders; NaN where the schedule is free."""
    rng, found, most = (
        np.random.default_rng(seed),
        free(days),
        np.asarray((units.BATTERY_MW,) * units.BATTERIES + units.REACTIVE),
    )
    for day in found:
        for battery in range(units.SOLAR, len(units.UNITS)):
            for _ in range(ORDERS):
                begin, steps = rng.integers(0, units.HORIZON), rng.integers(SHORTEST, LONGEST + 1)
                day[begin : begin + steps, battery] = rng.uniform(-units.BATTERY_MW, units.BATTERY_MW)
        for step in np.flatnonzero(rng.random(units.HORIZON) < UPSET):
            day[step, units.SOLAR : SCHEDULED] = rng.uniform(-most, most)
            if rng.random() < LINES:
                day[step, SCHEDULED:] = units.TOPOLOGIES[rng.integers(0, units.SUNNY)]
    return found


def usual(plant: Plant, seed: int, days: int, steps: int) -> jax.Array:
    """Return the mean of the best schedules of some days; the search starts from the plant's own controller."""
    keys = jax.random.split(jax.random.key(seed), days)
    params = jax.tree.map(np.float32, plant.fallback_params)
    trajectory = rollouts(plant, plant.fallback, params, keys, plant.domain, trace=True).trajectory
    assert trajectory is not None
    first = jnp.mean(trajectory.actions, 0, keepdims=True)
    return jnp.mean(solved(plant, keys, plant.domain, first, free(days), steps), 0, keepdims=True)


def logs(plant: Plant, talking: Plant, first: jax.Array, days: int, seed: int, steps: int) -> Transition:
    """Return rows of optimal days. On each day links are down with another probability between 0 and 1.

    Args:
        plant: the feeder.
        talking: the feeder with links.
        first: initial schedule.
        days: number of days.
        seed: seed of days, orders and links.
        steps: steps of Adam.
    """
    keys, ordered = jax.random.split(jax.random.key(seed), days), orders(days, seed)
    domain = plant.domain._replace(start_energy_spread=START_SPREAD)
    schedules = solved(plant, keys, domain, first, ordered, steps)
    lost = jax.random.uniform(jax.random.fold_in(jax.random.key(seed), days), (days,))

    def day(key: jax.Array, schedule: jax.Array, loss: jax.Array) -> Transition:
        own = talking.domain._replace(start_energy_spread=START_SPREAD, link_loss=loss, link_redraw=1.0)
        return played(talking, key, own, schedule)

    rows = jax.jit(jax.vmap(day))(keys, schedules, lost)
    # Discard steps after a blackout.
    dark = np.asarray(rows.terminated)
    lit = np.cumsum(dark, axis=1) - dark == 0
    kept = np.isnan(ordered).all(-1) & lit
    found = Transition(*(np.asarray(x)[kept] for x in rows[:6]))
    return found._replace(cost=np.zeros_like(found.reward))
