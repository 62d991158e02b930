"""A pumping station that lifts water into a town's tank: up to three pumps of one speed, switched, under a tariff.

The pumps run in parallel on one rising main. With n of them on, the flow Q is where their head meets what lift and
friction take, and the tank balances it with the town's demand D:

(4/3 h₀ − (1/3) h₀ (Q / n q₀)²) · wear = lift + level + 10.67 L Q^1.852 / (C^1.852 d^4.871)
area · d(level)/dt = Q − D,  power = ρ g Q head / η

The head is EPANET's curve through one design point, the friction Hazen and Williams's. Energy is dear by day and cheap
at night, so that the tank is to be full in the morning, and every start of a pump wears it. What the tank holds more
at the end of a step is worth what lifting it costs at the mean price, so that nothing is gained by emptying it.

| constant | source |
|---|---|
| design_head, design_flow, length, diameter, lift, area, demand, RIM, LIMITS | ours, a town of 50,000 |
| roughness | Rossman 2000, EPANET 2 Users Manual, table 3.2: ductile iron and cement, 120 to 140 |
| efficiency | Rossman 2000, the default for energy |
| density, gravity | physical constants |
| PATTERN, NIGHT, PRICES, START_COST, BEYOND_COST | ours |
| wear, wear_most, roughness_spread, demand_spread, demand_sd, noise_sd | ours |

Valid for steady flow in the main: it answers a switch within seconds, and a step lasts half an hour. A tank beyond its
rim spills and an empty one gives nothing; both are beyond the limits, and neither ends the episode.
"""

from __future__ import annotations

from neorl_core.plants.pumping_station.plant import PLANT as PLANT
from neorl_core.plants.pumping_station.plant import logged_margins as logged_margins
from neorl_core.plants.pumping_station.plant import logged_reward as logged_reward
