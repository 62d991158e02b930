"""A table of modules of one package, by name, each imported when it is first asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, TypeVar

Member = TypeVar("Member")


class Table(Mapping[str, Member]):
    """Reads like a dictionary. What one member's source says is no dependency of another's results.

    Args:
        package: full name of the package whose modules are the members.
        names: the modules' names, in the table's order.
        member: what a module contributes.
    """

    def __init__(self, package: str, names: Sequence[str], member: Callable[[Any], Member]) -> None:
        self._package, self._names, self._member = package, tuple(names), member
        self._loaded: dict[str, Member] = {}

    def module(self, name: str) -> str:
        """Full name of a member's module.

        Raises:
            KeyError: when there is no such member.
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
