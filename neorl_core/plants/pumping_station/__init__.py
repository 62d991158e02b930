"""A pumping station that lifts water into a town's tank: up to three equal pumps, switched, under a tariff.

The pumps run in parallel on one rising main. With n pumps on, the flow Q balances the pump head with lift and friction,
and the tank balances Q with the town's demand D:

(4/3 h₀ − (1/3) h₀ (Q / n q₀)²) · wear = lift + level + 10.67 L Q^1.852 / (C^1.852 d^4.871)
area · d(level)/dt = Q − D,  power = ρ g Q head / η

The head is EPANET's curve through one design point; the friction is Hazen–Williams. Energy is cheap at night, so the
tank should be full in the morning. Every start of a pump costs wear. Water gained in the tank during a step is credited
at the mean price of lifting it, so that emptying the tank gains nothing.

| constant | source |
|---|---|
| design_head, design_flow, length, diameter, lift, area, demand, RIM, LIMITS | ours, a town of 50,000 |
| roughness | Rossman 2000, EPANET 2 Users Manual, table 3.2: ductile iron and cement, 120 to 140 |
| efficiency | Rossman 2000, the default for energy |
| density, gravity | physical constants |
| PATTERN, NIGHT, PRICES, START_COST, BEYOND_COST | ours |
| wear, wear_most, roughness_spread, demand_spread, demand_sd, noise_sd | ours |

Valid for steady flow in the main, which settles within seconds of a switch; a step lasts half an hour. A tank spills
above the rim and delivers nothing when empty; both violate the limits, and neither ends the episode.
"""

from __future__ import annotations

from neorl_core.plants.pumping_station.plant import PLANT as PLANT
from neorl_core.plants.pumping_station.plant import logged_margins as logged_margins
from neorl_core.plants.pumping_station.plant import logged_reward as logged_reward
