"""Steel plate annealed in a continuous furnace whose burners are the actions.

| constant | source |
|---|---|
| conductivity, heat_capacity | EN 1993-1-2, 3.4.1; factors of what it says at each temperature |
| density, emissivity | EN 1993-1-2, 3.2 and 2.2 |
| convection | ours; EN 1991-1-2, 3.2.1 has 25 W/(m² K) in a standard fire |
| width, sections and zones, zone_capacity, zone_loss, efficiency, efficiency_spread, ambient, POWER | ours |
| emissivity_spread, noise_sd | ours |
| speed, speed_sd, speed_time_constant | ours |
| thickness_low, thickness_high | ours |
| target_low, target_high | ours: normalised above the austenite's 735 °C |
| SOAK_BAND, SOAK_PER_MM, ERROR_SCALE, SOAK_SCALE, FUEL_COST | ours |
| limits of the temperatures and of their difference | ours |

Valid for carbon steel plate up to 1200 °C, where the standard's properties end, and thin beside its width: heat goes
across it alone, from both sides alike. Each zone has one temperature, the atmosphere takes no part in the exchange, and
transformation takes its heat at 735 °C whichever way and however fast it is passed.
"""

from neorl_core.plants.steel_annealing.plant import PLANT, logged_margins, logged_reward
from neorl_core.plants.steel_annealing.spec import SPEC

__all__ = ["PLANT", "SPEC", "logged_margins", "logged_reward"]
