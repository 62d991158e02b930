"""Entries' times: in one form, for they are compared as texts."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.redteam.stage import forge
from configs.errors import Refused
from configs.home import Home
from tasks.adapters.ledger.audit import audit
from tasks.adapters.ledger.ledger import Ledger
from tasks.adapters.ledger.rules import NoteBody
from tests.evidence import open_ledger


@pytest.mark.parametrize(
    "time", ["zzzz", "9", "2999-12-01", "2999-12-01T10:00:00Z", "2999-12-01T10:00:00.000000+00:00", "29991201T100000Z"]
)
def test_a_time_in_another_form_is_named(home: Path, time: str) -> None:
    """As who holds the key could sign one, which ended the audit in a traceback."""
    ledger = open_ledger(Home(home))
    ledger.append("note", NoteBody(text="first"))
    with pytest.raises(Refused, match="ledger entry 2: "):
        forge(ledger.home, "note", NoteBody(text="second"), timestamp=time)
    with pytest.raises(Refused, match="ledger entry 2: "):
        Ledger.open(ledger.home, write=False).entries()
    (chain,) = (check for check in audit(ledger.home).failures if check.name == "chain")
    assert chain.detail.startswith("ledger entry 2: ")
