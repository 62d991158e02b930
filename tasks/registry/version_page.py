"""A version's page in MLflow: above, what the ledger says of it now; below, what was found when it was made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

STATUS, END = "### Status: ", "\n\n---\n\n"
"""How the part from the ledger begins and ends: it comes first, for MLflow cuts long descriptions at their end."""
TOLD_ONCE = tuple(f"neorl.{name}" for name in ("decided_by", "decided_at", "meaning", "note", "signed"))
"""Tags that versions once had: taken away wherever they are found, for the description says it and is held to it."""
LIMIT = 5000
"""Characters of a description that every database MLflow runs on accepts."""


class Page(NamedTuple):
    """What MLflow says of a version."""

    tags: Mapping[str, str]
    description: str


def split(description: str) -> tuple[str, str]:
    """The part from the ledger, nothing where there is none, and the rest."""
    if not description.startswith(STATUS):
        return "", description
    told, _, rest = description.partition(END)
    return told + END, rest


def joined(told: str, rest: str) -> str:
    """A description of both parts, cut where MLflow would."""
    return (told + rest)[:LIMIT]
