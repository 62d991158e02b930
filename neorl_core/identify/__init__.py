"""System identification: estimate a plant's unknown constants from logs, and build an operating domain from them."""

from neorl_core.identify.domain import drawing_plant, identified_plant, posterior_fields
from neorl_core.identify.estimate import Posterior
from neorl_core.identify.experiment import StepTest, step_test
from neorl_core.identify.fit import describe, identify
from neorl_core.identify.forecast import Episodes, episodes_of, stack_rows
from neorl_core.identify.unknowns import Unknown

__all__ = [
    "Episodes",
    "Posterior",
    "StepTest",
    "Unknown",
    "describe",
    "drawing_plant",
    "episodes_of",
    "identified_plant",
    "identify",
    "posterior_fields",
    "stack_rows",
    "step_test",
]
