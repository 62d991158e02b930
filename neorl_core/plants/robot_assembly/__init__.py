"""A robot inserts a peg into a hole by impedance control, within a limit on the contact force.

| constant | source (ours: chosen by NeoRL) |
|---|---|
| contact_stiffness, contact_stiffness_low, contact_stiffness_high | 100 N/mm: aluminium on a position-controlled arm \
(Wilson and Pham, arXiv 2003.03047); 1 N/µm: upper bound for industrial arms (Pan et al., J. Materials Processing \
Technology 173, 2006); nominal: geometric mean |
| bristle_stiffness | 2 (1 − ν) / (2 − ν) at ν = 0.3 (Mindlin, J. Applied Mechanics 16, 1949) |
| friction, friction_low, friction_high | ours, lubricated to dry metal |
| clearance, clearance_low, clearance_high | 100 µm: Wilson and Pham; the range is ours |
| offset_spread, tilt_spread, force_noise | ours |
| contact_damping | ours |
| mass, inertia, centre, half_width, length, depth | ours |
| stiffness, damping, turning_stiffness, turning_damping | ours |
"""

from neorl_core.plants.robot_assembly.plant import PLANT, SPEC, logged_margins, logged_reward

__all__ = ["PLANT", "SPEC", "logged_margins", "logged_reward"]
