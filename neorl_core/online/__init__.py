"""Learners that learn in a simulator. A module is imported when its learner is first used."""

from __future__ import annotations

from neorl_core.online.learner import Learner
from neorl_core.table import Table

NAMES = ("analytic_gradient", "ppo")
LEARNERS: Table[Learner] = Table(__name__, NAMES, lambda module: module.LEARNER)

__all__ = ["LEARNERS"]
