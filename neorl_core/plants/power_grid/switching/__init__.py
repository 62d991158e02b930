"""Network reconfiguration of any radial feeder; loads, noise and outages are ours, the rest is as in `power_grid`."""

from neorl_core.plants.power_grid.switching.plant import Domain, logged_margins, logged_reward, switching_plant

__all__ = ["Domain", "logged_margins", "logged_reward", "switching_plant"]
