"""Annealing of steel plate in a continuous furnace; the actions are the burners' powers.

| constant | source (ours: chosen by NeoRL) |
|---|---|
| conductivity, heat_capacity | EN 1993-1-2, 3.4.1; factors on the tabulated values |
| density, emissivity | EN 1993-1-2, 3.2 and 2.2 |
| convection | ours; EN 1991-1-2, 3.2.1 has 25 W/(m² K) in a standard fire |
| width, sections and zones, zone_capacity, zone_loss, efficiency, efficiency_spread, ambient, POWER | ours |
| emissivity_spread, noise_sd | ours |
| speed, speed_sd, speed_time_constant | ours |
| thickness_low, thickness_high | ours |
| target_low, target_high | ours: normalising above the transformation at 735 °C |
| SOAK_BAND, SOAK_PER_MM, ERROR_SCALE, SOAK_SCALE, FUEL_COST | ours |
| limits of the temperatures and of their difference | ours |

The model is valid for carbon steel up to 1200 °C, the end of the standard's tables, and for plates that are thin
relative to their width. Heat flows across the thickness only, equally from both sides. Each zone has one temperature,
the atmosphere does not absorb radiation, and the transformation at 735 °C is the same in both directions and at any
rate.
"""

from neorl_core.plants.steel_annealing.plant import PLANT, SPEC, logged_margins, logged_reward

__all__ = ["PLANT", "SPEC", "logged_margins", "logged_reward"]
