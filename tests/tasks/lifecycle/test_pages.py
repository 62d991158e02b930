"""MLflow's pages agree with the ledger."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from configs.home import Home
from tasks.evidence.decisions.champions import WithdrawalBody, champion
from tasks.evidence.decisions.verdicts import reject
from tasks.evidence.ledger.ledger import Ledger
from tasks.lifecycle.aliases import stale_pages
from tasks.lifecycle.pages import of_this_ledger, wanted_pages
from tasks.promote import verdict_on
from tasks.registry.reading import STATUS, Page, joined, split
from tasks.registry.upload import COMPOSITE
from tests import judged
from tests.evidence import PLANT, candidate_record, certificate_of, certify, open_ledger
from tests.tasks.evidence.people.persons import Person, approval, crowned, enrol, proposed

A, B, C, D = "a" * 64, "b" * 64, "c" * 64, "d" * 64


@pytest.fixture
def ledger(home: Path) -> Ledger:
    return open_ledger(Home(home))


def said(ledger: Ledger) -> dict[str, str]:
    pages = wanted_pages(ledger.entries(), PLANT, datetime.now(UTC))
    for page in pages.values():
        assert page.description.startswith(f"{STATUS}{page.tags['neorl.status']}\n")
    return {version: page.tags["neorl.status"] for version, page in pages.items()}


def test_each_version_shows_its_status(ledger: Ledger) -> None:
    ada = Person("Ada")
    enrol(ledger, ada)
    first, second = proposed(ledger, A, version="1"), proposed(ledger, B, version="2", run_key="2")
    certify(ledger, C)
    own = certificate_of(ledger, C)
    numbers = judged.evidence(fallback=own, certificate=own, data=("too few episodes",))
    ledger.append("candidate", candidate_record(ledger, C, numbers, version="3", run_key="3"), plant=PLANT)
    assert said(ledger) == {"1": "waits for approval", "2": "waits for approval", "3": "refused"}
    given = approval(ledger, first, ada, "compared | trajectories <b>")
    page = wanted_pages(ledger.entries(), PLANT, datetime.now(UTC))["1"]
    assert "It is approved. The next command promotes it." in page.description
    assert (
        f"| approved for closed loop | Ada | compared \\| trajectories &lt;b&gt; | key {ada.id} |" in page.description
    )
    crowned(ledger, given)
    assert said(ledger) == {"1": "champion", "2": "superseded", "3": "refused"}
    again = proposed(ledger, A, version="4", run_key="4")
    third = proposed(ledger, D, version="5", run_key="5")
    assert said(ledger) | {"4": "the champion, as version 1", "5": "waits for approval"} == said(ledger)
    reject(ledger, PLANT, verdict_on(third, "a reviewer", "too lively", against=True))
    pages = wanted_pages(ledger.entries(), PLANT, datetime.now(UTC))
    # Person and reason are only in the description: MLflow's table of versions would repeat a tag.
    assert pages["5"].tags == {"neorl.status": "rejected"}
    assert "| rejected | a reviewer | too lively | in the home's name |" in pages["5"].description
    better = proposed(ledger, B, version="6", run_key="6")
    crowned(ledger, approval(ledger, better, ada))
    assert said(ledger)["1"] == "was champion"
    assert said(ledger)["6"] == "champion"
    now = champion(ledger.entries(), PLANT)
    assert now is not None
    gone = WithdrawalBody(composite=B, promotion=now.digest, version="6", by="shift engineer", why="another valve")
    ledger.append("withdrawal", gone, plant=PLANT)
    assert said(ledger) == {
        "1": "was champion",
        "2": "withdrawn",
        "3": "refused",
        "4": "superseded",
        "5": "rejected",
        "6": "withdrawn",
    }
    page = wanted_pages(ledger.entries(), PLANT, datetime.now(UTC))["6"]
    assert "| withdrawn | shift engineer | another valve | in the home's name |" in page.description
    assert "| promoted |" in page.description
    assert (second.body["version"], again.body["version"]) == ("2", "4")
    assert of_this_ledger(ledger.entries(), PLANT, "6", B)
    assert not of_this_ledger(ledger.entries(), PLANT, "6", A)
    assert not of_this_ledger(ledger.entries(), PLANT, "7", A)


def test_an_altered_tag_is_found(ledger: Ledger) -> None:
    proposed(ledger, A, version="1")
    entries = ledger.entries()
    page = wanted_pages(entries, PLANT, datetime.now(UTC))["1"]
    right = Page({**page.tags, COMPOSITE: A}, page.description)
    assert stale_pages(entries, PLANT, {"1": right}) == {}
    forged = right._replace(tags={**right.tags, "neorl.decided_by": "Ada"})
    assert stale_pages(entries, PLANT, {"1": forged}) == {"1": (forged, page)}


def test_a_description_has_two_parts() -> None:
    told = "### Status: champion\n\nwho\n\n---\n\n"
    assert split(told + "### The candidate\n\n---\n\nmore") == (told, "### The candidate\n\n---\n\nmore")
    assert split("### The candidate\n\n---\n\n") == ("", "### The candidate\n\n---\n\n")
    assert split(joined(told, "x" * 9_000))[1] == "x" * (5_000 - len(told))
