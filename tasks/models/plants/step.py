"""The identity of a simulator in policies and certificates: the digest of the lowered program of its step."""

from __future__ import annotations

from functools import lru_cache

from configs.errors import Refused
from neorl_core.safety.program import ImpureProgram, simulator_program
from neorl_core.types import Plant


@lru_cache(maxsize=8)
def step_digest(plant: Plant) -> str:
    """Return the digest of the lowered program of a simulator's step over the plant's default domain.

    Raises:
        Refused: if the program calls the host.
    """
    try:
        return simulator_program(plant, plant.domain).digest
    except ImpureProgram as error:
        raise Refused(f"plant {plant.spec.name} cannot be certified: {error}") from error
