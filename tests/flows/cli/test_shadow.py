"""`neorl extend` without servers."""

from __future__ import annotations

import getpass
from pathlib import Path

import pytest

from flows.cli.main import run


def test_unknown_user_gives_no_traceback(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 12345")

    monkeypatch.setattr(getpass, "getuser", nobody)
    # The command reaches the check of servers, which are absent.
    assert run(["extend", "chemical_reactor"]) == 3
