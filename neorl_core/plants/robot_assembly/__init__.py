"""A robot puts a peg into a hole by impedance control, within a limit on the force of contact."""

from neorl_core.plants.robot_assembly.plant import PLANT, SPEC, logged_margins, logged_reward

__all__ = ["PLANT", "SPEC", "logged_margins", "logged_reward"]
