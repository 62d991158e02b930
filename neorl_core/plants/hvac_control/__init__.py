"""Cooling of a house with three zones through a hot summer day, with a tariff and comfort to keep."""

from neorl_core.plants.hvac_control.plant import PLANT, SPEC, logged_margins, logged_reward

__all__ = ["PLANT", "SPEC", "logged_margins", "logged_reward"]
