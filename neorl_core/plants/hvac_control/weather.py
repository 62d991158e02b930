"""Summer weather: a daily wave, slow deviations of temperature and clearness, and the sun.

Fitted by benchmarks/identify/hvac.py to the weather of the CityLearn Challenge 2023, phase 1
(intelligent-environments-lab/CityLearn, MIT): hourly, one June in Austin, Texas. Irradiance without clouds is by
Haurwitz (J. Meteorology 2, 1945).
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from neorl_core.plants.base import AnyArray, Scalar

DT = 0.25
"""Length of a step [h]."""
HORIZON = 96
LATITUDE, DECLINATION, NOON = 0.5283, 0.3927, 12.52
"""Austin in June: latitude [rad], declination [rad], and the hour of solar noon in standard time [h]."""


class WeatherParams(NamedTuple):
    """Daily wave of the outdoor temperature, and slow random deviations of temperature and clearness."""

    mean: Scalar = 29.588
    """Mean outdoor temperature [°C]."""
    cosine: Scalar = -4.594
    """Cosine term of the daily course, from midnight [K]."""
    sine: Scalar = -4.058
    """Sine term of the daily course [K]."""
    cosine_half: Scalar = 0.729
    """Cosine term of the half-daily course [K]."""
    sine_half: Scalar = 0.627
    """Sine term of the half-daily course [K]."""
    outdoor_sd: Scalar = 0.0
    """Standard deviation of the slow temperature deviation [K]."""
    outdoor_time_constant: Scalar = 28.1
    """Time constant of the temperature deviation [h]."""
    clearness_mean: Scalar = 0.779
    """Mean clearness: irradiance relative to a sky without clouds [1]."""
    clearness_sd: Scalar = 0.0
    """Standard deviation of the clearness [1]."""
    clearness_time_constant: Scalar = 18.1
    """Time constant of the clearness deviation [h]."""
    recorded: Float[AnyArray, "T 2"] | None = None
    """Record that replaces the random weather: outdoor temperature [°C] and global horizontal irradiance [kW/m²] per
    quarter of an hour from midnight. After the end, the last row is used."""


class Weather(NamedTuple):
    """The weather of one interval."""

    outdoor: Float[Array, ""]
    """Outdoor temperature [°C]."""
    irradiance: Float[Array, ""]
    """Global horizontal irradiance [kW/m²]."""
    clearness: Float[Array, ""]
    """Clearness of the sky, also by night [1]."""


def sun(hour: Float[AnyArray, "*n"]) -> tuple[Float[Array, "*n"], Float[Array, "*n"]]:
    """Return the sine of the solar elevation (0 at night), and the sun's position: 1 in the east, −1 in the west."""
    angle = jnp.pi / 12 * (jnp.asarray(hour) - NOON)
    height = np.sin(LATITUDE) * np.sin(DECLINATION) + np.cos(LATITUDE) * np.cos(DECLINATION) * jnp.cos(angle)
    return jnp.maximum(height, 0.0), -jnp.sin(angle)


def clear_sky(hour: Float[AnyArray, "*n"]) -> Float[Array, "*n"]:
    """Return the irradiance without clouds 1.098 c exp(−0.057/c) [kW/m²]; c is the sine of the solar elevation."""
    height = jnp.maximum(sun(hour)[0], 1e-3)
    return jnp.where(height > 1e-3, 1.098 * height * jnp.exp(-0.057 / height), 0.0)


def wave(hour: Float[AnyArray, "*n"], params: WeatherParams) -> Float[Array, "*n"]:
    """Return the outdoor temperature [°C] of the mean day at an hour."""
    angle = jnp.pi / 12 * jnp.asarray(hour)
    once = params.cosine * jnp.cos(angle) + params.sine * jnp.sin(angle)
    return params.mean + once + params.cosine_half * jnp.cos(2 * angle) + params.sine_half * jnp.sin(2 * angle)


def middle(step: Int[Array, ""], dtype: jnp.dtype) -> Float[Array, ""]:
    """Return the hour [h] in the middle of the interval that ends `step` intervals after midnight."""
    return (DT * (step.astype(dtype) - 0.5)) % 24.0


def follow(before: Weather, step: Int[Array, ""], draw: Float[Array, " 2"], params: WeatherParams) -> Weather:
    """Return the weather of the interval that ends `step` intervals after midnight.

    Deviations d of temperature and clearness change to φ d + sd √(1 − φ²) w with φ = exp(−dt/τ).

    Args:
        draw: (2,), standard normal numbers w; zeros give the expected weather.
    """
    dtype = before.outdoor.dtype
    if params.recorded is not None:
        rows = jnp.asarray(params.recorded, dtype)
        outdoor, irradiance = rows[jnp.clip(step - 1, 0, len(rows) - 1)]
        return Weather(outdoor, irradiance, before.clearness)
    hour = middle(step, dtype)
    keep_outdoor = jnp.exp(-DT / jnp.asarray(params.outdoor_time_constant, dtype))
    keep_sky = jnp.exp(-DT / jnp.asarray(params.clearness_time_constant, dtype))
    warmer = keep_outdoor * (before.outdoor - wave(middle(step - 1, dtype), params))
    clearer = keep_sky * (before.clearness - params.clearness_mean)
    outdoor = wave(hour, params) + warmer + params.outdoor_sd * jnp.sqrt(1 - keep_outdoor**2) * draw[0]
    clearness = params.clearness_mean + clearer + params.clearness_sd * jnp.sqrt(1 - keep_sky**2) * draw[1]
    clearness = jnp.clip(clearness, 0.05, 1.1)
    return Weather(outdoor, clear_sky(hour) * clearness, clearness)


def begin(draw: Float[Array, " 2"], params: WeatherParams) -> Weather:
    """Return the weather just before midnight; `draw` has two standard normal numbers for the deviations."""
    zero, dtype = jnp.zeros((), jnp.int32), draw.dtype
    outdoor = wave(middle(zero, dtype), params) + params.outdoor_sd * draw[0]
    clearness = jnp.clip(params.clearness_mean + params.clearness_sd * draw[1], 0.05, 1.1)
    if params.recorded is not None:
        outdoor = jnp.asarray(params.recorded, dtype)[0, 0]
    return Weather(outdoor, jnp.zeros_like(outdoor), clearness)
