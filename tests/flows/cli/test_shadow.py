"""Commands about newer logs and shadows, where they end before anything is compared."""

from __future__ import annotations

import getpass
from pathlib import Path

import pytest

from flows.cli.main import run


def test_a_machine_that_does_not_know_its_user_ends_no_decision_in_a_traceback(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 12345")

    monkeypatch.setattr(getpass, "getuser", nobody)
    # It comes as far as to ask for the servers, of which none is there.
    assert run(["extend", "chemical_reactor"]) == 3
