"""A home to back up."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.evidence import furnished_home


@pytest.fixture(scope="module")
def furnished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("upkeep") / "home"
    furnished_home(root)
    for folder in ("cache", "logs", "locks"):
        (root / folder).mkdir(exist_ok=True)
        (root / folder / "x").write_text("needed by nobody")
    return root
