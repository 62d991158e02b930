"""The campaign of faults: counts on the page, and violations in the output of a command."""

from __future__ import annotations

import pytest

from benchmarks.chaos.__main__ import Trial, page
from benchmarks.chaos.faults import FAULTS, SITES
from benchmarks.chaos.site import Ended


def test_every_fault_belongs_to_a_site() -> None:
    assert {name for faults in SITES.values() for name in faults} == set(FAULTS)


def test_page_counts_trials_and_lists_violations() -> None:
    def trial(number: int, fault: str, code: int, sentence: str = "", *violations: str) -> Trial:
        what = f"{fault} happened"
        return Trial("team", number, fault, what, 1.0, True, code, sentence, 0, [*violations], 2.0, "c" * 40)

    trials = [
        trial(0, "flow killed", -9),
        trial(1, "MLflow killed", 3, "MLflow does not answer"),
        trial(2, "MLflow killed", 0, "", "the champion, version 1, did not pass every gate"),
    ]
    raced = [{"violations": []}, {"violations": ["2 promotions"]}]
    text = page(trials, raced, 200, 100)
    assert "3 faults in 3 retrainings caused 1 violations" in " ".join(text.split())
    assert "| flow killed | 1 | 1 | 0 | 0 | 0 |" in text
    assert "| MLflow killed | 2 | 2 | 1 | 1 | 1 |" in text
    assert (
        "- team, trial 2 at ccccccc, MLflow killed happened: the champion, version 1, did not pass every gate" in text
    )
    assert "2 races between two approvals caused 1." in " ".join(text.split())
    assert "ccccccc" in text
    assert "No violation." in page(trials[:2], [], 200, 100)
    # Fixed violations stay on the page and do not count.
    again = page(trials[:2], [], 200, 100, trials[2:])
    assert "| MLflow killed | 1 | 1 | 1 | 0 | 0 |" in again
    assert "No violation.\n\nEarlier trials had these violations" in again
    assert (
        "- team, trial 2 at ccccccc, MLflow killed happened: the champion, version 1, did not pass every gate" in again
    )


@pytest.mark.parametrize(
    ("code", "answer", "said", "fault"),
    [
        (0, {"verdict": "promoted"}, "", ""),
        (3, {}, "neorl: Prefect does not answer at 127.0.0.1: start it.", ""),
        (1, {}, "", "exit code 1 without a message"),
        (1, {}, "Traceback (most recent call last):\n  x\nKeyError: 'a'\n", "a traceback"),
        # An error of libfaketime in a thread does not count.
        (
            0,
            {"verdict": "fallback"},
            'Exception in thread Thread-2 (run):\nTraceback (most recent call last):\n  File "a.py"\n'
            "    time.sleep(1)\nOSError: [Errno 22] Invalid argument\n  train: 3 of 3\n",
            "",
        ),
    ],
)
def test_violation_of_a_finished_command(code: int, answer: dict[str, object], said: str, fault: str) -> None:
    found = Ended(code, answer, said).fault
    assert found.startswith(fault)
    assert bool(found) == bool(fault)
