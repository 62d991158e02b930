"""Where the parts of docs/studies/plants.md are kept: one file for the parts about all plants, one for each plant's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tasks.files.canonical import write_json

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "studies" / "plants.md"
PICTURES = ROOT / "docs" / "studies" / "plants"


def kept(part: str) -> Any:
    """What a part about all plants found when it was last run; None if it never was."""
    return _read(RESULTS / f"plants-{part}.json")


def keep(part: str, found: Any) -> None:
    """Keep what a part about all plants found."""
    write_json(RESULTS / f"plants-{part}.json", found)


def own(name: str) -> dict[str, Any]:
    """What is kept about one plant, by part."""
    return _read(RESULTS / "plants" / f"{name}.json") or {}


def keep_own(name: str, part: str, found: Any) -> None:
    """Keep what a part found about one plant, beside its other parts."""
    path = RESULTS / "plants" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    write_json(path, own(name) | {part: found})


def _read(path: Path) -> Any:
    return json.loads(path.read_text()) if path.exists() else None
