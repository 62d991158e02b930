"""Grey boxes: a plant's unknown constants, estimated from its logs, and what may be claimed with them."""

from neorl_core.identify.domain import domain_from, identified_plant
from neorl_core.identify.estimate import Posterior
from neorl_core.identify.experiment import StepTest, step_test
from neorl_core.identify.fit import described, identify
from neorl_core.identify.forecast import Episodes, episodes_of, stack_rows
from neorl_core.identify.gate import segment_errors, simulator_gate
from neorl_core.identify.unknowns import Unknown

__all__ = [
    "Episodes",
    "Posterior",
    "StepTest",
    "Unknown",
    "described",
    "domain_from",
    "episodes_of",
    "identified_plant",
    "identify",
    "segment_errors",
    "simulator_gate",
    "stack_rows",
    "step_test",
]
