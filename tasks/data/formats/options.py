"""Options for reading a source."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class SourceOptions(NamedTuple):
    """Options of every command that takes a source."""

    plant: str | None = None
    """Plant that gives names, units and limits: a name, or a plant file in the working directory."""
    mapping: Path | None = None
    """Mapping of a historian export; it names the plant."""
    horizon: int | None = None
    """Time limit of episodes in steps, for a file without time limits."""
    spec: Path | None = None
    """YAML with names, units, limits and costs of a file of transitions."""


NO_OPTIONS = SourceOptions()
