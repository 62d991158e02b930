"""Cooling of a three-zone house over a hot summer day, under a time-of-use tariff and comfort limits.

| constant | source (ours: chosen by NeoRL) |
|---|---|
| air_capacity, mass_capacity, air_loss, air_to_mass, mass_loss, gain_scale | identified from CityLearn Challenge \
2023, building 1, by benchmarks/identify/hvac.py |
| weather, outdoor_sd, clearness_sd, start_temperature | fitted to the same record |
| carnot | CityLearn (Vázquez-Canteli et al., BuildSys 2019), the middle of the range |
| aperture, aperture_low, aperture_high, doors, swing | ours |
| capacity_spread, loss_spread, gain_spread, start_spread, outdoor_mean_spread | ours |
| noise_sd | ours: the tolerance of a class AA platinum thermometer at 0 °C (IEC 60751), as a standard deviation |

The model is valid for warm weather with cooling and without heating: the record of one June, with a shifted mean. The
air of each zone has one temperature. Humidity is ignored, so latent heat costs nothing. The heat pump's performance
depends on the outdoor temperature only, not on the load.
"""

from neorl_core.plants.hvac_control.plant import PLANT, SPEC, logged_margins, logged_reward

__all__ = ["PLANT", "SPEC", "logged_margins", "logged_reward"]
