"""A project of a user's own, with a plant and a helper module in a sub-package."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

OWN = Path(__file__).parents[3] / "own_project"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the project, and a home beside it."""
    monkeypatch.setenv("NEORL_HOME", str(tmp_path / "home"))
    return Path(shutil.copytree(OWN, tmp_path / "project", ignore=shutil.ignore_patterns("__pycache__")))
