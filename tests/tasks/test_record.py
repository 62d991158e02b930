"""Sentences for verdicts, headlines and history."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from tasks.evidence.ledger.entry import Entry
from tasks.gates import REQUIRED, REQUIRED_LOG_ONLY
from tasks.record import GATE_TITLES, VERDICTS, champion_in_force, headline, history_rows, verdict_text
from tasks.references import ChampionInForce, Gate, Interval, Rollouts, Verdict

CHAMPION = ChampionInForce(version="2", url="", composite="c", since="2026", approver="a reviewer", claim=None)
FAILED = Gate(name="ope", passed=False, detail="lower bound -0.1")
DIFFERENCE = Interval(value=0.1, lower=-0.1, upper=0.3)
ROLLOUTS = Rollouts(
    controllers={},
    differences={"plant controller": DIFFERENCE},
    score=1.0,
    trajectories=Path("t.npz"),
)


def fallback(passed: bool) -> Gate:
    return Gate(name="fallback", passed=passed, detail="9 violations in 300 episodes")


def entry(sequence: int, kind: str, plant: str, **body: object) -> Entry:
    return Entry(sequence, "", f"2026-11-2{sequence}", kind, plant, dict(body), [], f"digest {sequence}", b"")


def test_every_verdict_and_gate_has_a_text() -> None:
    assert set(VERDICTS) == {*get_args(Verdict), "passed", "failed"}
    assert set(GATE_TITLES) == {*REQUIRED, *REQUIRED_LOG_ONLY}


@pytest.mark.parametrize("verdict", get_args(Verdict))
def test_no_verdict_claims_a_missing_champion(verdict: Verdict) -> None:
    assert verdict_text(verdict, (FAILED, fallback(True)), CHAMPION) == VERDICTS[verdict]
    if verdict in ("refused", "waiting", "fallback_waiting"):
        for passed in (True, False):
            assert "stays" not in verdict_text(verdict, (FAILED, fallback(passed)), None)
    nothing = verdict_text("refused", (FAILED, fallback(False)), None)
    assert nothing == "Neither the candidate nor the plant's own controller is certified: there is no champion"


def test_headline_names_the_first_failed_gate() -> None:
    versus = "return against the plant's controller on the simulator +0.1 [-0.1, +0.3]"
    assert headline((fallback(True),), ROLLOUTS) == f"The candidate passed every gate; {versus}."
    assert headline((FAILED, fallback(True)), None) == "The candidate failed ope: lower bound -0.1."
    assert headline((FAILED, fallback(False)), None) == (
        "The candidate failed ope: lower bound -0.1; the plant's own controller is not certified either."
    )
    # Gates of a log-only plant.
    model = Gate(name="learned_model", passed=False, detail="1.1 of a line's error")
    assert headline((model, FAILED, fallback(False)), None) == (
        "The candidate failed learned_model: 1.1 of a line's error; it also failed ope, fallback."
    )
    assert headline((fallback(False),), None) == "The candidate failed fallback: 9 violations in 300 episodes."


def test_champion_and_history_come_from_the_ledger() -> None:
    entries = [
        entry(
            1, "candidate", "tank", url="http://host/1", claim="P(...)", composite="c" * 64, version="1", passed=True
        ),
        entry(2, "attempt", "other", number=4),
        entry(3, "approval", "tank", by="a reviewer", composite="c" * 64, candidate="digest 1"),
        entry(4, "promotion", "tank", version="1", composite="c" * 64, candidate="digest 1", approval="digest 3"),
    ]
    current = champion_in_force(entries[3], entries)
    assert (current.version, current.url, current.claim) == ("1", "http://host/1", "P(...)")
    assert (current.approver, current.since) == ("a reviewer", "2026-11-24")
    rows = history_rows(entries, "tank")
    assert [row.kind for row in rows] == ["candidate", "approval", "promotion"]
    assert rows[0].detail == "version 1, passed yes, composite cccccccccccc"


def test_review_page_explains_every_gate() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "review.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| [^|]{40,} \| [^|]{10,} \|$", page, re.MULTILINE)
    assert set(rows) == set(GATE_TITLES.items())
    assert {name for name, _ in rows} == {*REQUIRED, *REQUIRED_LOG_ONLY}
