"""What a user says of a source that does not tell it by itself."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class SourceOptions(NamedTuple):
    """How a source is to be understood: the options of the same names of every command that takes one."""

    plant: str | None = None
    """Whose names, units and limits apply: a name, or a plant's code in the working directory."""
    mapping: Path | None = None
    """What a historian's tags mean; it names the plant."""
    horizon: int | None = None
    """Steps after which episodes were cut, for a file that does not tell."""
    spec: Path | None = None
    """YAML that names the signals of a file of transitions, with units, limits and costs."""


UNTOLD = SourceOptions()
"""Of a source that tells everything by itself."""
