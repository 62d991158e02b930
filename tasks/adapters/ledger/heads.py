"""Signed ledger heads that survive outside the ledger: in reports, in MLflow's tags, in files kept elsewhere."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Container, Iterable, Iterator
from pathlib import Path

from configs.errors import BadInput
from configs.home import Home

# The canonical envelope of a head: its keys in their one order, and nothing but base64 within the strings.
HEAD = re.compile(
    r'\{"payload":"[A-Za-z0-9+/=]+","payloadType":"application/vnd\.neorl\.ledger-head\+json",'
    r'"signatures":\[\{"keyid":"[0-9a-f]+","sig":"[A-Za-z0-9+/=]+"\}\]\}'
)


def heads_in(text: str) -> list[str]:
    """The signed heads in a text: a head itself, or a report that shows one."""
    return HEAD.findall(html.unescape(text))


def read_heads(path: Path) -> list[str]:
    """The signed heads in a file: an exported head or a report.

    Raises:
        BadInput: when the file cannot be read or holds none.
    """
    try:
        found = heads_in(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"expected a signed head in {path}, got {error}: check the path.") from error
    if not found:
        raise BadInput(f"expected a signed head in {path}, got none: give a report or an exported head.")
    return found


def signed_by(heads: Iterable[str], keys: Container[str]) -> list[str]:
    """The heads that say they are signed by one of these keys; whether they are is checked when they are used."""
    return [text for head in heads for text in heads_in(head) if json.loads(text)["signatures"][0]["keyid"] in keys]


def report_heads(home: Home) -> Iterator[str]:
    """The heads that this home's reports show."""
    for path in sorted((home.root / "reports").rglob("*.html")):
        yield from heads_in(path.read_text(errors="replace"))
