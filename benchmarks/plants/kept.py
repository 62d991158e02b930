"""Read and write the kept results: one file for each part about all plants, and one file for each plant."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.pages import ROOT, STUDIES
from tasks.files.canonical import write_json

RESULTS = ROOT / "benchmarks" / "results"
PAGE = STUDIES / "plants.md"
PICTURES = STUDIES / "plants"


def kept(part: str) -> Any:
    """Return the kept result of a part about all plants; None if there is none."""
    return _read(RESULTS / f"plants-{part}.json")


def keep(part: str, found: Any) -> None:
    """Keep the result of a part about all plants."""
    write_json(RESULTS / f"plants-{part}.json", found)


def own(name: str) -> dict[str, Any]:
    """Return the kept results about one plant, by part."""
    return _read(RESULTS / "plants" / f"{name}.json") or {}


def keep_own(name: str, part: str, found: Any) -> None:
    """Keep the result of a part about one plant."""
    path = RESULTS / "plants" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    write_json(path, own(name) | {part: found})


def _read(path: Path) -> Any:
    return json.loads(path.read_text()) if path.exists() else None
