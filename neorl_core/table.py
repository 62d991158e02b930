"""A read-only mapping that imports the module of an entry at the first access."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, TypeVar

Member = TypeVar("Member")


class Table(Mapping[str, Member]):
    """A read-only mapping from module names to values, with modules imported at the first access.

    Args:
        member: function that returns the value of an imported module.
    """

    def __init__(self, package: str, names: Sequence[str], member: Callable[[Any], Member]) -> None:
        self._package, self._names, self._member = package, tuple(names), member
        self._loaded: dict[str, Member] = {}

    def module(self, name: str) -> str:
        """Return the full module name of an entry.

        Raises:
            KeyError: if there is no such entry.
        """
        if name not in self._names:
            raise KeyError(name)
        return f"{self._package}.{name}"

    def __getitem__(self, name: str) -> Member:
        if name not in self._loaded:
            self._loaded[name] = self._member(import_module(self.module(name)))
        return self._loaded[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
