"""The campaign of faults: its page counts as a hand does, and the tests that it names are there and have the faults."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.chaos.__main__ import Trial, page
from benchmarks.chaos.faults import FAULTS, SITES
from benchmarks.chaos.site import Ended

PROJECT = Path(__file__).parents[2]
NAMED = {name: fault.test for name, fault in FAULTS.items() if fault.test}


@pytest.mark.parametrize("fault", NAMED)
def test_a_fault_is_in_the_test_that_the_page_names(fault: str) -> None:
    file, name = NAMED[fault].split("::")
    assert f"def {name}(" in (PROJECT / file).read_text()


def test_ten_faults_are_in_the_tests_and_every_fault_strikes_a_site() -> None:
    assert len(NAMED) >= 10
    assert {name for faults in SITES.values() for name in faults} == set(FAULTS)


def test_the_page_counts_trials_and_tells_every_violation() -> None:
    def trial(number: int, fault: str, code: int, sentence: str = "", *violations: str) -> Trial:
        what = f"{fault} happened"
        return Trial("team", number, fault, what, 1.0, True, code, sentence, 0, [*violations], 2.0, "c" * 40)

    trials = [
        trial(0, "flow killed", -9),
        trial(1, "MLflow killed", 3, "expected MLflow"),
        trial(2, "MLflow killed", 0, "", "the champion, version 1, did not pass every gate"),
    ]
    raced = [{"violations": []}, {"violations": ["2 promotions"]}]
    text = page(trials, raced, 200, 100)
    assert "3 faults of 200 so far, in 3 retrainings" in " ".join(text.split())
    assert "| flow killed | 1 | 1 | 0 | 0 | 0 |" in text
    assert "| MLflow killed | 2 | 2 | 1 | 1 | 1 |" in text
    assert "- team 2 at ccccccc, MLflow killed happened: the champion, version 1, did not pass every gate" in text
    assert "2 of 100" in text
    assert "violations: 1." in text
    assert "ccccccc" in text
    assert "No violation." in page(trials[:2], [], 200, 100)
    # What was mended stays on the page, with the trial that found it, and counts no more.
    again = page(trials[:2], [], 200, 100, trials[2:])
    assert "| MLflow killed | 1 | 1 | 1 | 0 | 0 |" in again
    assert "No violation.\n\nFound by the campaign and mended" in again
    assert "- team 2 at ccccccc, MLflow killed happened: the champion, version 1, did not pass every gate" in again


@pytest.mark.parametrize(
    ("code", "answer", "said", "fault"),
    [
        (0, {"verdict": "promoted"}, "", ""),
        (3, {}, "neorl: expected Prefect to answer, got none: start it.", ""),
        (1, {}, "", "exit code 1 without a sentence"),
        (1, {}, "Traceback (most recent call last):\n  x\nKeyError: 'a'\n", "a stack"),
        # What libfaketime does to a thread is not ours.
        (
            0,
            {"verdict": "fallback"},
            'Exception in thread Thread-2 (run):\nTraceback (most recent call last):\n  File "a.py"\n'
            "    time.sleep(1)\nOSError: [Errno 22] Invalid argument\n  train: 3 of 3\n",
            "",
        ),
    ],
)
def test_what_is_wrong_with_how_a_command_ended(code: int, answer: dict[str, object], said: str, fault: str) -> None:
    found = Ended(code, answer, said).fault
    assert found.startswith(fault)
    assert bool(found) == bool(fault)
