"""A distribution feeder with solar inverters, batteries and switchable lines: the IEEE 33-bus feeder over one day."""

from neorl_core.plants.power_grid.plant import PLANT, SPEC, logged_margins, logged_reward

__all__ = ["PLANT", "SPEC", "logged_margins", "logged_reward"]
