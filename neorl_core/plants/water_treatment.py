"""The quadruple tank: four coupled water tanks fed by two pumps; the valves decide how hard the tanks are to control.

Johansson: The quadruple-tank process, IEEE Trans. Control Systems Technology 8(3), 2000. Pump 1 fills tanks 1 and 4,
pump 2 fills tanks 2 and 3. The valve of a pump sends the share γ to the lower tank (1 or 2) and 1 − γ to the upper tank
(3 or 4). Tank 3 empties into tank 1, and tank 4 into tank 2. For the level h_i of tank i with tank j above:

A_i dh_i/dt = −(a_i + l_i) √(2g h_i) + a_j √(2g h_j) + share · k v

At Johansson's point P−, γ1 + γ2 > 1, and all zeros lie in the left half plane. At P+, γ1 + γ2 < 1, and one zero lies in
the right half plane: a level first moves the wrong way, and each pump must control the opposite tank, as the relative
gain array shows. `PLANT` is at P−, `PLANT_PLUS` at P+, each with suitable loops.

| constant | source (ours: chosen by NeoRL) |
|---|---|
| area, outlet, gravity, pump, valve, rest, HIGH_LEVEL | Johansson 2000 |
| leak, leak_most, pump_spread, noise_sd, spread, LOW_LEVELS, TRIP_COST | ours |
| gains at P− | Johansson 2000; at P+ ours, by search |

The model is valid for levels from 0 to 20 cm, by Torricelli's law. A trip ends the episode. A pump's flow is
proportional to the voltage v, without delay.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from neorl_core.control.mpc import MPCParams, single_shooting
from neorl_core.control.pid import PIDParams, loops, pid
from neorl_core.plants.base import AnyArray, Scalar, clip_to, two_sided_margin
from neorl_core.plants.integrators import RK4, integrate
from neorl_core.types import Constraint, Controller, Plant, PlantSpec, Space, Timestep

DT = 5.0
HORIZON = 200
SETPOINT_STEPS = 100
"""Steps between two changes of the set points."""
STRETCHES = -(-HORIZON // SETPOINT_STEPS)
SUBSTEPS = 2
"""RK4 steps per control step."""
ERROR_SCALE = 2.0
"""Level error [cm] of a lower tank that costs 1 per step."""
HIGH_LEVEL = 20.0
"""Height of the tanks [cm] (Johansson)."""
LOW_LEVELS = (2.0, 2.0, -20.0, -20.0)
"""Lowest levels [cm], added by NeoRL. The lower tanks must not run dry. The upper tanks may: −20 has no effect."""
TRIP_COST = 30_000.0
"""Cost of a trip. Set points lie within 17 cm of the limits, so an episode without a trip costs at most
200 · 2 · (17/2)² = 28,900. A trip costs more, so ending an episode early does not pay."""
LAMINAR = 1e-3
"""Below this share of a tank's height the outflow is linear in the level, so that the slope at 0 is finite."""

_LEVELS = ("level_1", "level_2", "level_3", "level_4")
SPEC = PlantSpec(
    name="water_treatment",
    observation=Space(
        names=(*_LEVELS, "pump_1", "pump_2", "level_1_setpoint", "level_2_setpoint"),
        units=("cm",) * 4 + ("V",) * 2 + ("cm",) * 2,
        low=(-1.0,) * 4 + (0.0,) * 4,
        high=(25.0,) * 4 + (10.0,) * 2 + (25.0,) * 2,
    ),
    action=Space(names=("pump_1", "pump_2"), units=("V", "V"), low=(0.0, 0.0), high=(10.0, 10.0)),
    constraints=tuple(Constraint(f"level of tank {i + 1}", "cm", low, HIGH_LEVEL) for i, low in enumerate(LOW_LEVELS)),
    dt=DT,
    time_unit="s",
    horizon=HORIZON,
    # 0: the best constant voltages (1,000 episodes); 100: NMPC (400).
    score_range=(-131.0, -1.84),
)

Quad = tuple[float, float, float, float]
Pair = tuple[float, float]


class Params(NamedTuple):
    """Constants of the tanks, by default Johansson's at P−, and constants of the task."""

    area: Quad | Float[Array, " 4"] = (28.0, 32.0, 28.0, 32.0)
    """Cross-sections of the tanks [cm²]."""
    outlet: Quad | Float[Array, " 4"] = (0.071, 0.057, 0.071, 0.057)
    """Cross-sections of the outlets [cm²]."""
    leak: Quad | Float[Array, " 4"] = (0.0, 0.0, 0.0, 0.0)
    """Cross-sections of leaks to the drain [cm²]."""
    gravity: Scalar = 981.0
    """Acceleration of gravity [cm/s²]."""
    pump: Pair | Float[Array, " 2"] = (3.33, 3.35)
    """Flow per voltage [cm³/(V s)]."""
    valve: Pair | Float[Array, " 2"] = (0.70, 0.60)
    """γ: share of each pump's flow into the lower tank."""
    noise_sd: Scalar = 0.0
    """Standard deviation of the noise of the level sensors [cm]."""
    rest: Pair | Float[Array, " 2"] = (3.0, 3.0)
    """Johansson's voltages [V], around which the voltages of starts and set points are drawn."""
    spread: Scalar = 0.3
    """Half range of voltages around `rest` [V]. Steady levels at drawn voltages are the starts and set points."""


P_MINUS = Params()
P_PLUS = P_MINUS._replace(pump=(3.14, 3.29), valve=(0.43, 0.34), rest=(3.15, 3.15))
NOMINAL = P_MINUS


class Domain(NamedTuple):
    """The operating domain. `pump_spread` is a relative half range, `spread` a half range [V]."""

    non_minimum_phase: float = 0.0
    """0: operating point P−; 1: P+; between 0 and 1 the constants are interpolated."""
    pump_spread: float = 0.02
    leak_most: float = 0.03
    """Largest leak of a tank, as a share of the outlet's cross-section."""
    noise_sd: float = 0.05
    spread: float = 0.3


class State(NamedTuple):
    levels: Float[Array, " 4"]
    voltages: Float[Array, " 2"]
    setpoints: Float[Array, "S 2"]
    """One pair per `SETPOINT_STEPS` steps; the last pair stays."""
    step: Int[Array, ""]


def outflow(levels: Float[Array, " 4"], params: Params) -> Float[Array, " 4"]:
    """Return the speed √(2g h) [cm/s] of the water at each outlet; linear in h in a nearly empty tank."""
    least = LAMINAR * HIGH_LEVEL
    full = jnp.sqrt(2.0 * params.gravity * jnp.maximum(levels, least))
    return jnp.where(levels > least, full, full * levels / least)


def derivative(levels: Float[Array, " 4"], voltages: Float[Array, " 2"], params: Params) -> Float[Array, " 4"]:
    """Return dh/dt (4,) [cm/s] at levels h (4,) [cm] and pump voltages (2,) [V]."""
    area, outlet, leak, pump, valve = (
        jnp.asarray(x, levels.dtype) for x in (params.area, params.outlet, params.leak, params.pump, params.valve)
    )
    speed = outflow(levels, params)
    fed = pump * voltages
    inflow = jnp.concatenate([valve * fed + (outlet * speed)[2:], ((1.0 - valve) * fed)[::-1]])
    return (inflow - (outlet + leak) * speed) / area


def margins_of(levels: Float[AnyArray, "*n 4"]) -> Float[Array, "*n 4"]:
    """Return the distance [cm] of each level to the nearer limit; negative beyond a limit."""
    each = [two_sided_margin(levels[..., i], low, HIGH_LEVEL) for i, low in enumerate(LOW_LEVELS)]
    return jnp.stack(each, axis=-1)


def advance(
    levels: Float[Array, " 4"],
    voltages: Float[Array, " 2"],
    params: Params,
    duration: float = DT,
    substeps: int = SUBSTEPS,
) -> tuple[Float[Array, " 4"], Float[Array, " 4"]]:
    """Return levels [cm] after `duration` [s] at constant voltages [V], and the least margins [cm] in this time."""
    path = integrate(RK4, lambda h: derivative(h, voltages, params), levels, duration, substeps)
    every = jnp.concatenate([levels[None], path])
    return path[-1], jnp.min(margins_of(every), axis=0)


def steady_levels(voltages: Float[Array, " 2"], params: Params) -> Float[Array, " 4"]:
    """Return the steady levels (4,) at voltages (2,) [V]: h = (inflow / (a + l))² / (2g) [cm]."""
    outlet, leak, pump, valve = (
        jnp.asarray(x, voltages.dtype) for x in (params.outlet, params.leak, params.pump, params.valve)
    )
    fed = pump * voltages
    upper = ((1.0 - valve) * fed)[::-1] / (outlet + leak)[2:]
    lower = (valve * fed + outlet[2:] * upper) / (outlet + leak)[:2]
    return jnp.square(jnp.concatenate([lower, upper])) / (2.0 * params.gravity)


def cost(levels: Float[AnyArray, "*n 2"], setpoints: Float[AnyArray, "*n 2"]) -> Float[Array, "*n"]:
    """Return Σ ((h − SP) / 2 cm)² over the lower tanks, with levels h and set points SP [cm]."""
    return jnp.sum(jnp.square((jnp.asarray(levels) - setpoints) / ERROR_SCALE), axis=-1)


def sample_params(key: PRNGKeyArray, domain: Domain) -> Params:
    key_pump, key_leak = jax.random.split(key)
    away = jax.random.uniform(key_pump, (2,), minval=-1.0, maxval=1.0)
    share = jnp.asarray(domain.non_minimum_phase, float)

    def between(minus: Pair, plus: Pair) -> Float[Array, " 2"]:
        return (1.0 - share) * jnp.array(minus) + share * jnp.array(plus)

    outlet = jnp.array(NOMINAL.outlet)
    return NOMINAL._replace(
        pump=between((3.33, 3.35), (3.14, 3.29)) * (1.0 + domain.pump_spread * away),
        valve=between((0.70, 0.60), (0.43, 0.34)),
        rest=between((3.0, 3.0), (3.15, 3.15)),
        leak=domain.leak_most * outlet * jax.random.uniform(key_leak, (4,)),
        noise_sd=domain.noise_sd,
        spread=domain.spread,
    )


def _setpoints(state: State) -> Float[Array, " 2"]:
    return state.setpoints[jnp.minimum(state.step // SETPOINT_STEPS, state.setpoints.shape[0] - 1)]


def _observe(state: State, noise: Float[Array, " 4"]) -> Float[Array, " 8"]:
    return jnp.concatenate([state.levels + noise, state.voltages, _setpoints(state)])


def reset(key: PRNGKeyArray, params: Params) -> tuple[State, Float[Array, " 8"]]:
    """Draw a steady state of the tanks as initial state. Set points are steady levels of tanks without leaks."""
    key_volts, key_noise = jax.random.split(key)
    drawn = jax.random.uniform(key_volts, (STRETCHES + 1, 2), minval=-1.0, maxval=1.0)
    voltages = jnp.asarray(params.rest, drawn.dtype)[None] + params.spread * drawn
    sound = params._replace(leak=(0.0, 0.0, 0.0, 0.0))
    wanted = jax.vmap(lambda v: steady_levels(v, sound)[:2])(voltages[1:])
    state = State(steady_levels(voltages[0], params), voltages[0], wanted, jnp.zeros((), jnp.int32))
    return state, _observe(state, params.noise_sd * jax.random.normal(key_noise, (4,)))


def step(key: PRNGKeyArray, state: State, action: Float[Array, " 2"], params: Params) -> tuple[State, Timestep]:
    """Simulate one control step under two voltages [V], clipped. A level beyond its limits terminates the episode."""
    voltages = clip_to(SPEC.action, action)
    levels, margins = advance(state.levels, voltages, params)
    tripped = ~jnp.all(margins >= 0)
    next_state = State(levels, voltages, state.setpoints, state.step + 1)
    noise = params.noise_sd * jax.random.normal(key, (4,), levels.dtype)
    return next_state, Timestep(
        observation=_observe(next_state, noise),
        reward=-cost(levels[:2], _setpoints(next_state)) - jnp.where(tripped, TRIP_COST, 0.0),
        margins=margins,
        terminated=tripped,
        truncated=next_state.step >= HORIZON,
    )


def predict(
    observation: Float[Array, " 8"], action: Float[Array, " 2"], params: Params
) -> tuple[Float[Array, " 8"], Float[Array, " 4"]]:
    """Predict the noise-free next observation with unchanged set points, and least distances [cm] to the limits."""
    voltages = clip_to(SPEC.action, action)
    levels, margins = advance(observation[:4], voltages, params)
    return jnp.concatenate([levels, voltages, observation[6:]]), margins


def resume(key: PRNGKeyArray, state: State, observation: Float[Array, " 8"], params: Params) -> tuple[State, Params]:
    noise = params.noise_sd * jax.random.normal(key, (4,), observation.dtype)
    setpoints = jnp.broadcast_to(observation[6:], state.setpoints.shape)
    return state._replace(levels=observation[:4] - noise, voltages=observation[4:6], setpoints=setpoints), params


def applied(observation: Float[Array, " 8"]) -> Float[Array, " 2"]:
    return observation[4:6]


def logged_margins(next_observation: Float[AnyArray, "*n 8"]) -> Float[Array, "*n 4"]:
    return margins_of(next_observation[..., :4])


def logged_reward(
    observation: Float[AnyArray, "*n 8"], action: Float[AnyArray, "*n 2"], next_observation: Float[AnyArray, "*n 8"]
) -> Float[Array, "*n"]:
    tripped = jnp.any(logged_margins(next_observation) < 0, axis=-1)
    return -cost(next_observation[..., :2], next_observation[..., 6:]) - jnp.where(tripped, TRIP_COST, 0.0)


def linear_model(
    voltages: Pair, params: Params
) -> tuple[Float[np.ndarray, "4 4"], Float[np.ndarray, "4 2"], Float[np.ndarray, "2 4"]]:
    """Return A, B, C of d(δh)/dt = A δh + B δv at the steady state of two voltages; C selects the lower levels."""
    held = jnp.asarray(voltages, float)
    levels = steady_levels(held, params)
    a, b = jax.jacfwd(derivative, (0, 1))(levels, held, params)
    return np.asarray(a), np.asarray(b), np.eye(2, 4)


def relative_gain(params: Params) -> float:
    """Return the relative gain γ1 γ2 / (γ1 + γ2 − 1): pump 1 should control level 1 if > 0.5, level 2 if negative."""
    first, second = (float(x) for x in np.asarray(params.valve))
    return first * second / (first + second - 1.0)


def tracking_residuals(
    observation: Float[Array, " 8"], margins: Float[Array, " 4"], action: Float[Array, " 2"], before: Float[Array, " 2"]
) -> Float[Array, " R"]:
    """Return tracking errors, penalties for margins below 0.5 cm (10 per cm), and small penalties on moves."""
    errors = (observation[:2] - observation[6:]) / ERROR_SCALE
    return jnp.concatenate([errors, 10.0 * jnp.maximum(0.5 - margins, 0.0), 0.02 * (action - before)])


straight = loops((pid(0, 6, DT), pid(1, 7, DT)))
"""Pump 1 controls level 1 and pump 2 level 2: the pairing for P−, with a relative gain of 1.40."""
crossed = loops((pid(1, 7, DT), pid(0, 6, DT)))
"""Pump 1 controls level 2 and pump 2 level 1: the pairing for P+, with a relative gain of −0.64."""
STRAIGHT = (PIDParams(1.5, 0.05, 0.0, 0.0, 10.0), PIDParams(1.35, 0.034, 0.0, 0.0, 10.0))
"""Johansson's tuning for P−: gains 3.0 and 2.7, integral times 30 s and 40 s, for level sensors with 0.5 V/cm."""
TUNED = (PIDParams(1.9, 0.29, 0.0, 0.0, 10.0), PIDParams(2.4, 0.38, 0.0, 0.0, 10.0))
"""Found by benchmarks.tuning, for the operating domain at P−."""
CROSSED = (PIDParams(0.4, 0.003, 0.0, 0.0, 10.0),) * 2
"""Found by search. At P+, the right-half-plane zero at 0.013/s limits the speed of control."""

nmpc = single_shooting(predict, applied, tracking_residuals, holds=(1, 2, 4, 8, 16, 32), iterations=2)
"""Nonlinear model predictive control with a horizon of 315 s. At P+, half this horizon doubles the cost."""


def planned_with(model: Params) -> MPCParams:
    """Return the parameters of `nmpc` for a model with these constants. `nmpc` corrects offsets of predicted levels."""
    return MPCParams(model, SPEC.action.low, SPEC.action.high, (0.2,) * 4 + (0.0,) * 4)


def own_control(params: Params) -> tuple[Controller, tuple[PIDParams, PIDParams]]:
    """Return PI loops and gains. The relative gain decides which pump controls which level."""
    return (straight, TUNED) if relative_gain(params) > 0.5 else (crossed, CROSSED)


PLANT = Plant(
    spec=SPEC,
    params=NOMINAL,
    domain=Domain(),
    sample_params=sample_params,
    reset=reset,
    step=step,
    predict=predict,
    applied=applied,
    resume=resume,
    fallback=own_control(NOMINAL)[0],
    fallback_params=own_control(NOMINAL)[1],
    found_params=STRAIGHT,
    reference=nmpc,
    reference_params=planned_with(NOMINAL),
    idle=(3.076, 3.077),
)
PLANT_PLUS = PLANT._replace(
    # 0: the pumps keep their initial voltages; 100: NMPC.
    spec=SPEC._replace(name="water_treatment_plus", score_range=(-240.7, -1.84)),
    params=P_PLUS,
    domain=Domain(non_minimum_phase=1.0),
    fallback=own_control(P_PLUS)[0],
    fallback_params=own_control(P_PLUS)[1],
    found_params=None,
    reference_params=planned_with(P_PLUS),
    idle=None,
)
"""The tanks at P+, as a separate plant: the loops of P− would drive them out of the limits."""
