"""A feeder of 33 buses: dispatchers switch it by the hour, and what takes over from a policy switches little."""

from functools import partial

from neorl_core.plants.power_grid import switching
from neorl_core.plants.power_grid.feeder33 import FEEDER

# Days on which the voltage can be held; the scale is a day without switching, and one of the best that is known.
DOMAIN = switching.Domain(load_scale_low=0.25, load_scale_high=0.45, bus_load_sd=0.3, start_spread=0.3)
BASE = switching.switching_plant(FEEDER, source_voltage=1.04, domain=DOMAIN, score_range=(-400.0, -300.0), keep=0.9)
# The logs are of dispatchers who follow the rule as far as they see it.
PLANT = BASE._replace(found_params=BASE.reference_params)
logged_reward, logged_margins = partial(switching.logged_reward, FEEDER), switching.logged_margins
