"""Carbon steel between 20 °C and 1200 °C by EN 1993-1-2: conductivity, specific heat, and specific enthalpy.

Near 735 °C steel transforms from ferrite to austenite and the specific heat peaks at 5000 J/(kg K). The
simulation therefore integrates the specific enthalpy, and a table gives the temperature.
"""

from __future__ import annotations

from functools import cache

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jaxtyping import Array, Float

CELSIUS = 273.15
NODES = 1024
"""Nodes of the table, 1 kJ/kg apart; the error of the temperature is below 2 mK."""
HOTTEST = 1400.0
"""End of the table [°C], beyond the standard's 1200 °C. Above the end and below 0 °C, extrapolation is linear."""


def conductivity(temperature: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """Return k [W/(m K)] at a temperature [K]: 54 − 0.0333 θ below θ = 800 °C, 27.3 above (EN 1993-1-2, 3.4.1.3)."""
    celsius = temperature - CELSIUS
    return jnp.where(celsius < 800.0, 54.0 - 3.33e-2 * celsius, 27.3)


def integral(celsius: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return ∫ c dθ [J/kg] from 0 °C in closed form, for the specific heat c of EN 1993-1-2, 3.4.1.2.

    c [J/(kg K)] is a cubic in θ [°C] below 600 °C, a hyperbola on each side of 735 °C, and 650 above 900 °C.
    """
    t = np.asarray(celsius, float)
    low, middle, high = np.minimum(t, 600.0), np.clip(t, 600.0, 735.0), np.clip(t, 735.0, 900.0)
    cubic = low * (425.0 + low * (0.773 / 2 + low * (-1.69e-3 / 3 + low * 2.22e-6 / 4)))
    rising = 666.0 * (middle - 600.0) + 13002.0 * np.log(138.0 / (738.0 - middle))
    falling = 545.0 * (high - 735.0) + 17820.0 * np.log((high - 731.0) / 4.0)
    return np.asarray(cubic + rising + falling + 650.0 * np.maximum(t - 900.0, 0.0))


@cache
def _table() -> tuple[float, npt.NDArray[np.float64]]:
    """Return the spacing of the nodes [J/kg] and their temperatures [°C]."""
    enthalpy = np.linspace(0.0, float(integral(HOTTEST)), NODES)
    fine = np.linspace(0.0, HOTTEST, 200_001)
    return float(enthalpy[1]), np.interp(enthalpy, integral(fine), fine)


def temperature(enthalpy: Float[Array, "*n"]) -> tuple[Float[Array, "*n"], Float[Array, "*n"]]:
    """Return the temperature [K] at an enthalpy [J/kg], and the slope 1/c [K kg/J], interpolated in a table."""
    spacing, celsius = _table()
    nodes, slopes = (jnp.asarray(x, enthalpy.dtype) for x in (celsius[:-1], np.diff(celsius) / spacing))
    place = jnp.clip((enthalpy / spacing).astype(jnp.int32), 0, NODES - 2)
    slope = slopes[place]
    return nodes[place] + CELSIUS + slope * (enthalpy - spacing * place.astype(enthalpy.dtype)), slope


def enthalpy(temperature: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """Return the specific enthalpy [J/kg] at a temperature [K], zero at 0 °C: the inverse of `temperature`."""
    spacing, celsius = _table()
    nodes = jnp.asarray(celsius, temperature.dtype)
    wanted = temperature - CELSIUS
    place = jnp.clip(jnp.searchsorted(nodes, wanted, side="right") - 1, 0, NODES - 2)
    share = (wanted - nodes[place]) / (nodes[place + 1] - nodes[place])
    return spacing * (place.astype(wanted.dtype) + share)
