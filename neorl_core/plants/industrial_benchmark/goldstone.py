"""The Goldstone potential of the Siemens Industrial Benchmark, and the automaton that rotates it.

Hein et al.: Introduction to the "Industrial Benchmark" (arXiv 1610.03793) and arXiv 1709.09480. The potential
is a tilted Mexican hat over the radius r, which is the effective shift. The hat's angle φ has 24 steps per turn. If r
is outside the safe zone, the hat turns by one step per control step: first away and, after the strongest penalty, back.
If r is inside, the hat turns back to its start. A nonlinear scale for r makes max(|sin φ|, sin 15°) the optimal radius.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from neorl_core.plants.base import Scalar

TOP = 6
"""Steps to the angle of the strongest penalty, a quarter of a turn."""
REACH = math.sin(math.pi / 12)
"""Smallest optimal radius over all angles."""
SAFE = REACH / 2
"""Radius of the zone in which the hat returns to the start."""

_u = np.cbrt(1 + math.sqrt(2)) / math.sqrt(3)
_r = _u + 1 / (3 * _u)
_SCALE = 2 * _r**2 - _r**4 + 8 * math.sqrt(2 / 27) * _r
HAT, RIM, TILT = 2 / _SCALE, 1 / _SCALE, -8 * math.sqrt(2 / 27) / _SCALE
"""L(r, φ) = −HAT r² + RIM r⁴ + TILT sin φ r, with minimum −1."""

_ANGLES = np.mod(np.arange(-TOP, TOP + 1) * 2 * np.pi / (4 * TOP), 2 * np.pi)


def _valley(phi: float) -> float:
    """|argmin_r L(r, φ)|, the largest root of a cubic, by Cardano's formula."""
    q = TILT * abs(math.sin(phi)) / (8 * RIM)
    if q <= -math.sqrt(1 / 27):
        u = np.cbrt(-q + math.sqrt(q * q - 1 / 27))
        return float(u + 1 / (3 * u))
    return math.sqrt(4 / 3) * math.cos(math.acos(-q * math.sqrt(27)) / 3)


_SINES = np.sin(_ANGLES)
_VALLEYS = np.array([_valley(phi) for phi in _ANGLES])
_OPTIMA = np.maximum(np.abs(_SINES), REACH)
"""Optimal radius at each angle."""


class Automaton(NamedTuple):
    facing: Float[Array, ""]
    """Sign of the last radius outside the safe zone, ±1."""
    response: Float[Array, ""]
    """1 while the hat turns away from the start, −1 after the hat has reversed."""
    phi: Float[Array, ""]
    """Angle in steps, −6 to 6."""


def effective_shift(shift: Float[Array, ""], setpoint: Scalar) -> Float[Array, ""]:
    """Return the effective shift clip(5h/100 − 0.02p − 1.5, ±1.5), at shift h and set point p."""
    return jnp.clip(5.0 * shift / 100.0 - 0.02 * setpoint - 1.5, -1.5, 1.5)


def shift_of(radius: Float[Array, ""], setpoint: Float[Array, ""]) -> Float[Array, ""]:
    """Return the shift for an effective shift within ±1.5."""
    return (radius + 1.5 + 0.02 * setpoint) * 20.0


def rest(dtype: Any) -> Automaton:
    """Return the initial state."""
    return Automaton(jnp.ones((), dtype), jnp.ones((), dtype), jnp.zeros((), dtype))


def turn(automaton: Automaton, radius: Float[Array, ""]) -> Automaton:
    """Return the automaton after one control step with the effective shift `radius`."""
    facing, response, phi = automaton
    home = jnp.abs(radius) <= SAFE
    side = jnp.sign(radius)
    turned = jnp.where(home, facing, side)
    response = jnp.where(turned != facing, 1.0, response)
    away = jnp.where(phi == -turned * TOP, 0.0, response * side)
    phi = phi + jnp.where(home, -jnp.sign(phi), away)
    beyond = jnp.abs(phi) >= TOP
    response = jnp.where(beyond, -1.0, response)
    phi = jnp.where(beyond, 2 * TOP - jnp.mod(phi + 4 * TOP, 4 * TOP), phi)
    settled = home & (phi == 0)
    return Automaton(jnp.where(settled, 1.0, turned), jnp.where(settled, 1.0, response), phi)


def potential(phi: Float[Array, ""], radius: Float[Array, ""]) -> Float[Array, ""]:
    """Return the potential L(r, φ) at an angle (in steps) and a radius.

    A first scaling moves the minimum of L to the optimal radius: linear up to this radius, beyond it a power.
    """
    index = jnp.asarray(phi + TOP, jnp.int32)
    sine, valley, optimum = (jnp.asarray(x, radius.dtype)[index] for x in (_SINES, _VALLEYS, _OPTIMA))
    distance = jnp.abs(radius)
    exponent = (2.0 - optimum) / (2.0 - valley)
    # Replace the base by 1 where the power is unused, because its gradient at 0 is not finite.
    beyond = jnp.where(distance > optimum, distance - optimum, 1.0)
    outer = valley + (2.0 - valley) / (2.0 - optimum) ** exponent * beyond**exponent
    warped = jnp.sign(radius) * jnp.where(distance > optimum, outer, distance * valley / optimum)
    value: Float[Array, ""] = -HAT * warped**2 + RIM * warped**4 + TILT * sine * warped
    return value
