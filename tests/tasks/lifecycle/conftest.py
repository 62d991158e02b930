"""A ledger with a policy, and a home that MLflow serves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from configs.home import Home
from tasks.evidence.ledger.ledger import Ledger
from tasks.lifecycle.policy import sign
from tests.evidence import POLICY, signer_at
from tests.tasks.lifecycle.served import Served

if TYPE_CHECKING:
    from flows.services.servers import Services


@pytest.fixture
def ledger(home: Path) -> Iterator[Ledger]:
    """A new ledger with the policy."""
    with signer_at(Home(home)):
        ledger = Ledger.open(Home(home))
        sign(ledger, POLICY, "a reviewer", "first")
        yield ledger


@pytest.fixture
def served(services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """A separate home with the policy, on the session's servers."""
    found = Served(services, tmp_path / "home", monkeypatch)
    sign(found.ledger, POLICY, "a reviewer", "before the first promotion")
    yield found
    found.close()
