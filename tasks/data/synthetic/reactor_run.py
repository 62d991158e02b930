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
"""Amplitude of the binary test signal (dither) that is added to the coolant command, in K."""
PULSE = (-4.0, 3.0)
"""Range of the test pulses that are added to the coolant command, in K.
Heating can cause a runaway reaction, so positive pulses are smaller."""
BY_HAND = (295.5, 301.8)
"""Range of the operators' coolant commands, in K."""
FOUND = reactor.PLANT.found_params
CHUNK = 4096


class Schedule(NamedTuple):
    """Set points, modes, test signals and drifts of a plant, as arrays (N,) with one value per control step."""

    setpoint: Floats
    """Set point of the concentration in mol/L."""
    mode: npt.NDArray[np.int64]
    dither: Floats
    """Test signal in K; the sum with the controller's output is clipped to the controller's range."""
    pulse: Floats
    """Test pulse in K, which may exceed the controller's range."""
    bump: Floats
    """Change of the coolant command by an operator in K."""
    reaction: Floats
    cooling: Floats


class Run(NamedTuple):
    """Values at each of N control instants, before the step, as NumPy arrays."""

    observations: Any
    """Observations (N, 4), with measurement noise."""
    actions: Any
    """Actions (N, 1)."""
    temperature: Any
    """Reactor temperature in K, without measurement noise (N,)."""
    feed_deviation: Any
    """Deviation of the feed temperature in K (N,)."""


def _stretches(rng: np.random.Generator, steps: int, shortest: int, longest: int) -> Iterator[tuple[int, int]]:
    at = 0
    while at < steps:
        end = min(at + int(rng.integers(shortest, longest + 1)), steps)
        yield at, end
        at = end


def draw_schedule(rng: np.random.Generator, steps: int) -> Schedule:
    """Draw set points, operator actions, test signals and drifts at random for a number of control steps.

    Set points change every 10 to 60 min within the certified range. Every day or two, an operator changes the coolant
    by hand for an hour. On every other day, dither is added to the controller's output; on the days between, a pulse
    every 3 to 9 min. The reaction and cooling constants drift from day to day within ±1 %. In the middle of the record
    the plant stops for eight hours (less in short records), and an operator starts it again.
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
    """Simulate one control step: the controller or the operator sets the coolant. A stopped reactor does not change."""
    state, observation, memory, base = carry
    key, now = inputs
    plant = reactor.PLANT
    observation = observation.at[3].set(now.setpoint)
    state = state._replace(setpoints=jnp.full_like(state.setpoints, now.setpoint), step=jnp.zeros_like(state.step))
    # Give the controller its last output without dither and pulse, which its integrator would otherwise absorb.
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
    """Simulate the reactor for the N steps of a schedule, with the disturbances and noise of the operating domain.

    Return the values at each control instant. `nominal` has the constants of the reactor or site.
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
        # All chunks have the same length, so that JAX compiles only once; surplus steps at the end are cut off.
        rows = np.minimum(np.arange(begin, begin + CHUNK), steps - 1)
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key_steps, jnp.arange(begin, begin + CHUNK))
        inputs = jax.tree.map(lambda x, at=rows: jnp.asarray(x[at], jnp.int32 if x.dtype == np.int64 else float), plan)
        carry, record = _chunk(constants, carry, (keys, inputs))
        records.append(jax.device_get(record))
        if progress:
            progress(min(begin + CHUNK, steps), steps, "steps")
    return Run(*(np.concatenate(parts)[:steps].astype(np.float64) for parts in zip(*records, strict=True)))
