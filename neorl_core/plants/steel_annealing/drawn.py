"""What pictures of the furnace show, in degrees Celsius: its limits are on the hottest of many places."""

from neorl_core.plants.steel_annealing.furnace import ZONES
from neorl_core.types import Panel

DRAWN = (
    Panel("steel core at the exit", ("core_temperature",), set_point=f"target_{ZONES}"),
    Panel("steel surface at the exit", (f"surface_temperature_{ZONES}",), limit="steel surface temperature"),
    Panel("hottest zone", limit="zone temperature", unit="degC"),
    Panel("difference across half the thickness", limit="temperature difference across half the thickness"),
)
