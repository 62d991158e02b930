"""Simulate weeks of the reactor under its own controller and its operators, for the generated historian export."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from neorl_core.plants import chemical_reactor as reactor
from neorl_core.plants.base import clip_to

Floats = npt.NDArray[np.float64]

AUTO, MANUAL, MAINTENANCE = 2, 1, 0
HOUR = 138
"""Control steps in an hour, approximately."""
DAY = 24 * HOUR
DITHER = 0.5
"""K, amplitude of the binary test signal on the coolant."""
PULSE = (-4.0, 3.0)
"""K, range of the pulses on the coolant for a step or two. Engineers make such tests before model-based control,
because a log without them contains only the controller's own moves. Heating can cause a runaway, so the range is
asymmetric."""
BY_HAND = (295.5, 301.8)
"""K, range of the operators' coolant commands."""
FOUND = reactor.PLANT.found_params
"""The controller that ran the plant during the record."""
CHUNK = 4096


class Schedule(NamedTuple):
    """Events at the plant, per control step (N,)."""

    setpoint: Floats
    """mol/L"""
    mode: npt.NDArray[np.int64]
    dither: Floats
    """K, added to the controller's output within its range."""
    pulse: Floats
    """K, added to the output also beyond that range."""
    bump: Floats
    """K, an operator's change of the coolant."""
    reaction: Floats
    cooling: Floats


class Run(NamedTuple):
    """True values at each control instant, before the step; NumPy arrays with leading axis N."""

    observations: Any
    """(N, 4), with the measurement noise."""
    actions: Any
    """(N, 1)"""
    temperature: Any
    """K, without measurement noise (N,)."""
    feed_deviation: Any
    """K (N,)"""


def _stretches(rng: np.random.Generator, steps: int, shortest: int, longest: int) -> Iterator[tuple[int, int]]:
    at = 0
    while at < steps:
        end = min(at + int(rng.integers(shortest, longest + 1)), steps)
        yield at, end
        at = end


def draw_schedule(rng: np.random.Generator, steps: int) -> Schedule:
    """Draw the events at the plant.

    Set points change every 10 to 60 min over the certified range, entered to three decimals. Every day or two an
    operator steps the coolant by hand for an hour. On every other day the controller's output has dither, on the others
    pulses, one in 3 to 9 min. The reaction and cooling constants drift from day to day within ±1 %. In the middle the
    plant stops for eight hours (less in short records) and starts by hand.
    """
    domain = reactor.PLANT.domain
    extremes = jnp.asarray([domain.setpoint_temperature_high, domain.setpoint_temperature_low])
    low, high = np.asarray(reactor.steady_concentration(extremes, reactor.NOMINAL), np.float64)
    setpoint, dither, pulse, bump = (np.zeros(steps) for _ in range(4))
    mode = np.full(steps, AUTO)
    for begin, end in _stretches(rng, steps, HOUR // 6, HOUR):
        setpoint[begin:end] = np.round(rng.uniform(low, high), 3)
    for day in range(0, steps, 2 * DAY):
        for begin, end in _stretches(rng, min(DAY, steps - day), 2, 6):
            dither[day + begin : day + end] = rng.choice([-DITHER, DITHER])
    for begin, end in _stretches(rng, steps, DAY, 2 * DAY):
        test = int(rng.integers(begin, max(end - HOUR, begin + 1)))
        hour = min(HOUR, steps - test)
        mode[test : test + hour] = MANUAL
        level = 0.0
        for step, _ in _stretches(rng, hour, HOUR // 8, HOUR // 4):
            following = float(rng.uniform(-1.0, 1.0))
            bump[test + step], level = following - level, following
    stop, still = steps // 2, min(DAY // 3, steps // 20)
    mode[stop : stop + still] = MAINTENANCE
    mode[stop + still : stop + still + HOUR // 2] = MANUAL
    dither[mode != AUTO] = 0.0
    bump[mode != MANUAL] = 0.0
    knots = np.arange(0, steps + DAY, DAY)
    spread = np.array([domain.reaction_spread, domain.cooling_spread])[:, None]
    drift = 1 + spread * rng.uniform(-1, 1, (2, len(knots)))
    for day in range(DAY, steps, 2 * DAY):
        for begin, end in _stretches(rng, min(DAY, steps - day), 6, 20):
            pulse[day + begin : day + min(begin + int(rng.integers(1, 3)), end)] = rng.uniform(*PULSE)
    pulse[mode != AUTO] = 0.0
    when = np.arange(steps)
    return Schedule(
        setpoint, mode, dither, pulse, bump, np.interp(when, knots, drift[0]), np.interp(when, knots, drift[1])
    )


def _control_step(constants: reactor.Params, carry: Any, inputs: tuple[Any, Any]) -> tuple[Any, Run]:
    """Simulate one step: controller or operator sets the coolant; the reactor changes unless it is stopped."""
    state, observation, memory, base = carry
    key, now = inputs
    plant = reactor.PLANT
    observation = observation.at[3].set(now.setpoint)
    state = state._replace(setpoints=jnp.full_like(state.setpoints, now.setpoint), step=jnp.zeros_like(state.step))
    # The controller tracks the output without dither and pulse, which it would otherwise integrate.
    memory, automatic = plant.fallback.act(FOUND, memory, observation, base)
    by_hand = jnp.where(now.bump == 0, base, jnp.clip(base + now.bump, *BY_HAND))
    base = jnp.where(now.mode == AUTO, automatic, by_hand)
    low, high = FOUND.low, FOUND.high
    action = clip_to(plant.spec.action, jnp.clip(base + now.dither, low, high) + now.pulse)
    constants = constants._replace(
        reaction_rate=constants.reaction_rate * now.reaction, cooling_rate=constants.cooling_rate * now.cooling
    )
    following, timestep = plant.step(key, state, action, constants)
    running = now.mode != MAINTENANCE
    next_state, next_observation = jax.tree.map(
        lambda new, old: jnp.where(running, new, old), (following, timestep.observation), (state, observation)
    )
    record = Run(observation, action, state.temperature, state.feed_deviation)
    return (next_state, next_observation, memory, base), record


@jax.jit
def _chunk(constants: reactor.Params, carry: Any, inputs: tuple[Any, Schedule]) -> tuple[Any, Run]:
    return jax.lax.scan(partial(_control_step, constants), carry, inputs)


def simulate(
    seed: int,
    plan: Schedule,
    progress: Callable[[int, int, str], None] | None = None,
    nominal: reactor.Params = reactor.NOMINAL,
) -> Run:
    """Simulate the reactor under a schedule (N,), with disturbances and noise of the operating domain.

    Returned are the true values at each control instant (N,). `nominal` are the reactor's constants, which differ
    between sites of a fleet. `progress` is called with (done, total, unit); the unit is steps.
    """
    domain, plant = reactor.PLANT.domain, reactor.PLANT
    key_start, key_steps = jax.random.split(jax.random.key(seed))
    constants = nominal._replace(
        feed_sd=domain.feed_sd,
        feed_time_constant=domain.feed_time_constant,
        feed_clip=domain.feed_clip,
        noise_sd=domain.noise_sd,
    )
    state, observation = plant.reset(key_start, constants)
    carry = (state, observation, plant.fallback.init(FOUND, observation), plant.applied(observation))
    steps = len(plan.setpoint)
    records = []
    for begin in range(0, steps, CHUNK):
        # All chunks have one length, so that one compilation suffices; the surplus of the last is cut off.
        rows = np.minimum(np.arange(begin, begin + CHUNK), steps - 1)
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key_steps, jnp.arange(begin, begin + CHUNK))
        inputs = jax.tree.map(lambda x, at=rows: jnp.asarray(x[at], jnp.int32 if x.dtype == np.int64 else float), plan)
        carry, record = _chunk(constants, carry, (keys, inputs))
        records.append(jax.device_get(record))
        if progress:
            progress(min(begin + CHUNK, steps), steps, "steps")
    return Run(*(np.concatenate(parts)[:steps].astype(np.float64) for parts in zip(*records, strict=True)))
