"""What each plant's controllers come to, as `make plants` measured it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PATH = Path(__file__).with_name("plant_scores.json")


def plant_scores() -> dict[str, dict[str, Any]]:
    """plant -> {idle, controller, oracle where there is one} -> {return, half_width, score, violated, episodes}."""
    found: dict[str, dict[str, Any]] = json.loads(PATH.read_text()) if PATH.exists() else {}
    return found
