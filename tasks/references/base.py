"""Base class of references."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from tasks.files.stored import is_stored


class Reference(BaseModel):
    """Immutable model. Its `Path` fields name the files and folders of the result; unknown fields are refused."""

    # NaN stands for an estimate that does not exist. JSON has no NaN, so NaN is written as text.
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    def files(self) -> Iterator[Path]:
        """Yield every file or folder that this reference names, also in nested references."""
        for _, value in self:
            yield from _files(value)

    @property
    def complete(self) -> bool:
        return all(is_stored(path) for path in self.files())

    @property
    def found(self) -> str:
        """Summary of the result in one log line."""
        return type(self).__name__


def _files(value: object) -> Iterator[Path]:
    if isinstance(value, Path):
        yield value
    elif isinstance(value, Reference):
        yield from value.files()
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _files(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _files(item)


class Interval(Reference):
    """An estimate with its confidence interval."""

    value: float
    lower: float
    upper: float

    def __str__(self) -> str:
        return f"{self.value:+.4g} [{self.lower:+.4g}, {self.upper:+.4g}]"
