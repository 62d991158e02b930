"""Page of a version in MLflow: the ledger's current status above, the findings at registration below."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

STATUS, END = "### Status: ", "\n\n---\n\n"
"""Start and end of the ledger's part, which comes first because MLflow cuts long descriptions at the end."""
TOLD_ONCE = tuple(f"neorl.{name}" for name in ("decided_by", "decided_at", "meaning", "note", "signed"))
"""Tags of earlier versions, which are removed: the description has the information and is verified."""
LIMIT = 5000
"""Characters of a description that all of MLflow's databases accept."""


class Page(NamedTuple):
    """A version's tags and description in MLflow."""

    tags: Mapping[str, str]
    description: str


def split(description: str) -> tuple[str, str]:
    """Split a description into the ledger's part, possibly empty, and the rest."""
    if not description.startswith(STATUS):
        return "", description
    told, _, rest = description.partition(END)
    return told + END, rest


def joined(told: str, rest: str) -> str:
    """Join both parts, cut at MLflow's limit."""
    return (told + rest)[:LIMIT]
