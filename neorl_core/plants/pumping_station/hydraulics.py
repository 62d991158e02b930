"""Pumps, main, tank and tariff: flow, cost, and distance of the level to the limits."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from neorl_core.plants.base import AnyArray, two_sided_margin
from neorl_core.plants.integrators import RK4, integrate

DT = 0.5
SLOTS = 48
"""Steps of a day."""
SUBSTEPS = 1
"""RK4 steps per control step."""
NEWTON = 6
"""Newton iterations for the flow."""
PUMPS = 3.0
LIMITS = (1.0, 5.0)
"""Levels [m]: below the lower limit the fire reserve is used, above the upper the tank is close to spilling."""
RIM = 6.0
"""Height of the tank [m]."""
# fmt: off
PATTERN = (
    0.57, 0.47, 0.41, 0.41, 0.47, 0.67, 1.08, 1.50, 1.55, 1.39, 1.24, 1.19,
    1.19, 1.13, 1.03, 0.98, 1.03, 1.19, 1.39, 1.44, 1.29, 1.08, 0.88, 0.42,
)
# fmt: on
"""Demand of each hour of the day, as a share of the mean."""
NIGHT = (23.0, 7.0)
"""Hours [h] between which energy is cheap."""
PRICES = (0.08, 0.20)
"""Price of energy [EUR/kWh], cheap and dear."""
START_COST = 1.0
"""Cost of the wear of a pump start [EUR]."""
BEYOND_COST = 200.0
"""Cost of a step that ends beyond a limit [EUR/m]; more than all the energy of the step."""
MEAN_PRICE = (PRICES[0] * (24 - NIGHT[0] + NIGHT[1]) + PRICES[1] * (NIGHT[0] - NIGHT[1])) / 24
SECONDS = 3600.0


Scalar = float | Float[Array, ""]


class Params(NamedTuple):
    """Pumps, main, tank and town."""

    design_head: Scalar = 60.0
    """Head of a pump at its design point, h₀ [m]."""
    design_flow: Scalar = 400.0
    """Flow of a pump at the design point, q₀ [m³/h]."""
    wear: Scalar = 1.0
    """Remaining share of the head of a pump."""
    efficiency: Scalar = 0.75
    length: Scalar = 3_000.0
    """Length of the main, L [m]."""
    diameter: Scalar = 0.5
    """Diameter of the main, d [m]."""
    roughness: Scalar = 130.0
    """Hazen–Williams coefficient C of the main."""
    lift: Scalar = 40.0
    """Height of the tank floor above the source [m]."""
    area: Scalar = 1_000.0
    """Cross-section of the tank [m²]."""
    demand: Scalar = 540.0
    """Mean demand of the town [m³/h]."""
    density: Scalar = 1_000.0
    """Density of water, ρ [kg/m³]."""
    gravity: Scalar = 9.81
    """g [m/s²]."""
    demand_sd: Scalar = 0.0
    """Deviation of the demand from its pattern, as a share; it lasts some hours."""
    noise_sd: Scalar = 0.0
    """Measurement noise of the level [m]."""


NOMINAL = Params()


def friction(params: Params) -> Float[Array, ""]:
    """K of the head loss K Q^1.852 [m] with Q in m³/s: `10.67 L / (C^1.852 d^4.871)` (Hazen–Williams, SI)."""
    return jnp.asarray(10.67 * params.length / (params.roughness**1.852 * params.diameter**4.871))


def flow(pumps: Float[Array, ""], level: Float[Array, ""], params: Params) -> Float[Array, ""]:
    """Return the flow [m³/h] of `pumps` running pumps at a level of the tank [m], by Newton's method.

    The remaining head decreases ever faster with the flow, so the iteration from the frictionless flow is monotone.
    """
    running = jnp.maximum(pumps, 1.0)
    wanted = params.lift + level
    shut_off, fall = 4.0 / 3.0 * params.design_head * params.wear, params.design_head * params.wear / 3.0
    loss = friction(params).astype(level.dtype)
    # Pumps too worn to reach the tank deliver almost nothing; the bound avoids the root of a negative number.
    most = running * params.design_flow * jnp.sqrt(jnp.maximum((shut_off - wanted) / fall, 1e-6))

    def newton(q: Float[Array, ""], _: None) -> tuple[Float[Array, ""], None]:
        share = q / (running * params.design_flow)
        left = shut_off - fall * share**2 - wanted - loss * (q / SECONDS) ** 1.852
        slope = -2.0 * fall * share / (running * params.design_flow) - 1.852 * loss * (q / SECONDS) ** 0.852 / SECONDS
        return jnp.maximum(q - left / slope, 1e-3 * most), None

    found = jax.lax.scan(newton, most, None, length=NEWTON)[0]
    return jnp.where(pumps > 0.5, found, 0.0)


def power(pumps: Float[Array, ""], level: Float[Array, ""], params: Params) -> Float[Array, ""]:
    """Power [kW] of the running pumps: `ρ g Q H / η`, with H from the pump curve."""
    q = flow(pumps, level, params)
    share = q / (jnp.maximum(pumps, 1.0) * params.design_flow)
    head = params.design_head * params.wear * (4.0 - share**2) / 3.0
    return params.density * params.gravity * (q / SECONDS) * head / params.efficiency / 1e3


def pattern(slot: Int[Array, "*n"]) -> Float[Array, "*n"]:
    """Share of the mean demand in a step of the day."""
    return jnp.asarray(PATTERN)[slot // 2 % 24]


def price(slot: Int[Array, "*n"]) -> Float[Array, "*n"]:
    """Price of energy [EUR/kWh] in a step of the day."""
    turn, (dusk, dawn) = slot % SLOTS, (round(hour / DT) for hour in NIGHT)
    return jnp.where((turn >= dusk) | (turn < dawn), *PRICES)


def slot_of(observation: Float[AnyArray, "*n 6"]) -> Int[Array, "*n"]:
    """Step of the day from the clock of an observation."""
    turn = jnp.arctan2(observation[..., 3], observation[..., 4]) / (2 * jnp.pi)
    return jnp.round(turn * SLOTS).astype(jnp.int32) % SLOTS


def margins_of(level: Float[AnyArray, "*n"]) -> Float[Array, "*n 1"]:
    """Distance [m] of the level to the nearer limit."""
    return two_sided_margin(level, *LIMITS)[..., None]


def advance(
    level: Float[Array, ""], pumps: Float[Array, ""], demand: Float[Array, ""], params: Params
) -> tuple[Float[Array, ""], Float[Array, " 1"]]:
    """Return the level [m] after a step at constant pumps and demand [m³/h], and the least margin [m] of the step."""

    def rise(h: Float[Array, " 1"]) -> Float[Array, " 1"]:
        return (flow(pumps, h[0], params)[None] - demand) / params.area

    path = integrate(RK4, rise, level[None], DT, SUBSTEPS)[:, 0]
    every = jnp.concatenate([level[None], path])
    return jnp.clip(path[-1], 0.0, RIM), jnp.min(margins_of(every), axis=0)


def cost(
    level: Float[Array, ""],
    before: Float[Array, ""],
    pumps: Float[Array, ""],
    after: Float[Array, ""],
    tariff: Float[Array, ""],
    params: Params,
) -> Float[Array, ""]:
    """Cost of a step [EUR]: energy, starts and levels beyond the limits, minus the value of the water gained.

    Args:
        level: level at the start of the step [m].
        before: pumps that ran before the step.
        pumps: pumps that run during the step.
        after: level at the end of the step [m].
        tariff: price of energy [EUR/kWh].
        params: constants of the plant.
    """
    energy = DT * power(pumps, level, params)
    lifting = params.density * params.gravity * params.lift / params.efficiency / 3.6e6
    gained = MEAN_PRICE * lifting * params.area * (after - level)
    beyond = jnp.maximum(-margins_of(after)[..., 0], 0.0)
    return tariff * energy + START_COST * jnp.maximum(pumps - before, 0.0) + BEYOND_COST * beyond - gained
