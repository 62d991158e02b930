"""Steel plate annealed in a continuous furnace whose burners are the actions."""

from neorl_core.plants.steel_annealing.plant import PLANT, SPEC, logged_margins, logged_reward

__all__ = ["PLANT", "SPEC", "logged_margins", "logged_reward"]
