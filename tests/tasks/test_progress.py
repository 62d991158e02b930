"""Progress as people see it: a line now and then in a log, a bar on a terminal, with an honest rate."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.progress import SECONDS_BETWEEN_LINES, StageProgress

PROJECT = Path(__file__).parents[2]


class Clock:
    """Seconds that go on when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_log_gets_a_line_now_and_then(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with StageProgress("train", clock) as report:
        for done in range(0, 3001, 100):
            report(done, 3000, "updates")
            clock.now += 1.0
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    # One for every ten seconds and a bit, and one at the end.
    assert lines == [
        "  train: 1,100 of 3,000 updates, 100 updates/s, 19 s left",
        "  train: 2,200 of 3,000 updates, 100 updates/s, 8 s left",
        "  train: 3,000 of 3,000 updates, 100 updates/s",
    ]
    assert SECONDS_BETWEEN_LINES == 10.0


def test_what_was_done_before_and_compiling_do_not_count(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with StageProgress("train", clock) as report:
        clock.now += 60.0  # compiling
        report(2000, 3000, "updates")
        assert capsys.readouterr().err == ""
        clock.now += 20.0
        report(2500, 3000, "updates")
    assert capsys.readouterr().err == "  train: 2,500 of 3,000 updates, 25 updates/s, 20 s left\n"


def test_slow_steps_and_no_early_estimate(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with StageProgress("simulate", clock) as report:
        report(0, 100, "controllers")
        for done in (4, 8):
            clock.now += 16.0
            report(done, 100, "controllers")
        clock.now += 3600.0
        report(10, 100, "controllers")
    assert capsys.readouterr().err.splitlines() == [
        "  simulate: 4 of 100 controllers, 4 s/controller",
        "  simulate: 8 of 100 controllers, 4 s/controller, 6.1 min left",
        "  simulate: 10 of 100 controllers, 6.1 min/controller, 9.1 h left",
    ]


def test_a_stage_that_found_all_done_says_no_rate(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with StageProgress("train", clock) as report:
        report(3000, 3000, "updates")
    assert capsys.readouterr().err == "  train: 3,000 of 3,000 updates\n"


def test_a_total_may_grow(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    # A violation makes the test of a certificate longer.
    with StageProgress("certify", clock) as report:
        report(0, 3000, "episodes")
        clock.now += 20.0
        report(1000, 3000, "episodes")
        clock.now += 20.0
        report(2000, 5000, "episodes")
    assert capsys.readouterr().err.splitlines() == [
        "  certify: 1,000 of 3,000 episodes, 50 episodes/s, 40 s left",
        "  certify: 2,000 of 5,000 episodes, 50 episodes/s, 60 s left",
    ]


def test_an_empty_stage_is_no_division_by_zero(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with StageProgress("ingest", clock) as report:
        report(0, 0, "sources")
    assert capsys.readouterr().err == "  ingest: 0 of 0 sources\n"


def test_an_error_passes_through() -> None:
    def fail() -> None:
        with StageProgress("train") as report:
            report(0, 10, "updates")
            raise KeyError

    with pytest.raises(KeyError):
        fail()


def test_a_terminal_gets_a_bar() -> None:
    code = (
        "import time\n"
        "from tasks.progress import StageProgress\n"
        "with StageProgress('train') as report:\n"
        "    for done in range(0, 2001, 500):\n"
        "        report(done, 2000, 'updates'); time.sleep(0.05)\n"
    )
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    command = [sys.executable, "-c", code]
    process = subprocess.Popen(command, cwd=PROJECT, env=environment, stdout=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    shown = b""
    while True:
        try:
            shown += (part := os.read(ours, 65536))
        except OSError:  # how Linux says that the other side has closed
            break
        if not part:
            break
    os.close(ours)
    assert process.communicate()[0] == b""
    assert process.returncode == 0
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    assert "train" in text
    assert re.search(r"2,000/2,000  [\d,]+ updates/s", text), text
