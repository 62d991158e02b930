"""A distribution feeder with solar inverters, batteries and switchable lines: the IEEE 33-bus feeder over one day.

| constant | source (ours: chosen by NeoRL) |
|---|---|
| lines and loads | Baran and Wu, IEEE Trans. Power Delivery 4(2), 1989, as MATPOWER's case33bw |
| daily curve of the load | IEEE Reliability Test System, 1979 |
| clear sky | Haurwitz, J. Meteorology 2, 1945 |
| limits of the voltage | ANSI C84.1, range A |
| reactive power of inverters, voltages at which they trip | IEEE 1547-2018, tables 7 and 11 |
| price of reactive power and the free share | approximately TURPE 6 HTA |
| load_scale, load_scale_low, load_scale_high, source_voltage | ours: limits can be kept with the right lines open |
| bus_load, bus_load_spread, impedance_scale, impedance_spread | ours |
| load_sd, load_time_constant | ours |
| clearness_mean, clearness_mean_low, clearness_mean_high, clearness_sd, clearness_time_constant | ours |
| efficiency, efficiency_spread, start_energy_spread, sizes and places of units | ours |
| voltage_noise, meter_noise | ours: a fifth and all of the error limit of class 0.5 meters |
| topologies | the paper's first and best; one near the best and two with a trunk line open: ours |
| price of active energy, wear, cost of switching and of an outage | ours |
"""

from neorl_core.plants.power_grid.plant import LINKS, PLANT, SPEC, logged_margins, logged_reward

__all__ = ["LINKS", "PLANT", "SPEC", "logged_margins", "logged_reward"]
