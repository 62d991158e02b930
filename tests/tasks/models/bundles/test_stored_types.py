"""Names of types and fields that bundles store: a renamed one would make every stored bundle unreadable."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from neorl_core.plants import NAMES, PLANTS
from neorl_core.types import Process
from tasks.models.bundles.structure import _known_types

STORED: dict[str, dict[str, str]] = json.loads(Path(__file__).with_name("stored_types.json").read_text())
"""Fields of each type in bundles of commit 89a12a2. Never remove or rename one; a new field needs the default None."""


@pytest.mark.parametrize("plant", [*NAMES, "log_only"])
def test_stored_types_keep_their_names(plant: str) -> None:
    if plant == "log_only":
        stored, known = STORED[plant], _known_types(Process(PLANTS["chemical_reactor"].spec))
    else:
        stored, known = {**STORED["every simulator"], **STORED.get(plant, {})}, _known_types(PLANTS[plant])
    for name, fields in stored.items():
        before = fields.split()
        kind = known[name]
        assert set(before) <= set(kind.fields), f"{name} of {plant}"
        assert set(kind.fields) - set(before) <= set(kind.optional), f"{name} of {plant}"
