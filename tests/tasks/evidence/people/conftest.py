"""A home whose policy requires persons' keys, and two persons."""

from __future__ import annotations

from pathlib import Path

import pytest

from configs.home import Home
from tasks.evidence.ledger.ledger import Ledger
from tasks.lifecycle.policy import sign
from tests.evidence import open_ledger
from tests.tasks.evidence.people.persons import Person, demanding, enrol


@pytest.fixture
def ada() -> Person:
    return Person("Ada Lovelace", "ada")


@pytest.fixture
def ben() -> Person:
    return Person("Ben")


@pytest.fixture
def ledger(home: Path) -> Ledger:
    return open_ledger(Home(home))


@pytest.fixture
def keyed(ledger: Ledger, ada: Person, ben: Person) -> Ledger:
    """A home whose policy asks for persons' keys, with two persons."""
    enrol(ledger, ada, ["safety engineer", "operator"])
    enrol(ledger, ben, ["operator"], by=ada)
    sign(ledger, demanding(), ada.name, "persons sign", [ada.signs])
    return ledger
