"""Cooling of a house with three zones through a hot summer day, with a tariff and comfort to keep.

| constant | source |
|---|---|
| air_capacity, mass_capacity, air_loss, air_to_mass, mass_loss, gain_scale | identified from CityLearn Challenge \
2023, building 1, by benchmarks/identify/hvac.py |
| weather, outdoor_sd, clearness_sd, start_temperature | fitted to the same record |
| carnot | CityLearn (Vázquez-Canteli et al., BuildSys 2019), the middle of its range |
| aperture, aperture_low, aperture_high, doors, swing | ours |
| capacity_spread, loss_spread, gain_spread, start_spread, outdoor_mean_spread | ours |
| noise_sd | ours: the tolerance of a platinum thermometer of class AA at 0 °C (IEC 60751), as a standard deviation |

Valid for warm weather, in which the house is cooled and never heated: one June's record, its mean moved. The air of a
zone has one temperature, and its humidity is left out, so latent heat costs nothing. The heat pump's performance
follows the outdoors alone, not its load.
"""

from neorl_core.plants.hvac_control.plant import PLANT, SPEC, logged_margins, logged_reward

__all__ = ["PLANT", "SPEC", "logged_margins", "logged_reward"]
