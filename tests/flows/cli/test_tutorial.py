"""The tutorial's commands, as they stand on the page, on a log in the form of the public one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[3]
PERIOD = 4.0
"""s"""


def benchmark(path: Path, rows: int = 1024) -> None:
    """Two records of a cascade of tanks under a slowly changing pump, side by side, as in the benchmark's file."""
    draw = np.random.default_rng(0)
    columns = []
    for _ in range(2):
        phases = draw.uniform(0.0, 2 * np.pi, 8)
        periods = np.geomspace(100.0, 2000.0, 8)
        angles = 2 * np.pi * PERIOD * np.arange(rows)[:, None] / periods + phases
        pump = np.clip(3.0 + np.sin(angles).sum(axis=1), 0.5, 6.5)
        upper, lower, level = 4.0, 5.0, np.zeros(rows)
        for k in range(rows):
            level[k] = lower + 0.01 * draw.normal()
            upper, lower = (
                np.clip(upper + PERIOD * (0.035 * pump[k] - 0.05 * np.sqrt(upper)), 0.0, 10.0),
                np.clip(lower + PERIOD * 0.05 * (np.sqrt(upper) - np.sqrt(lower)), 0.0, 10.0),
            )
        columns.append((pump, level))
    (pump, level), (other_pump, other_level) = columns
    lines = ['"uEst","uVal","yEst","yVal","Ts",']
    for k, row in enumerate(zip(pump, other_pump, level, other_level, strict=True)):
        lines.append(",".join([*(f"{x:.5g}" for x in row), f"{PERIOD:g}" if k == 0 else "", ""]))
    path.write_text("\n".join(lines) + "\n")


def test_the_commands_lead_from_a_log_to_a_run_that_can_start(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "tutorial.md").read_text()
    commands = "\n".join(re.findall(r"^```sh\n(.*?)^```", page, re.DOTALL | re.MULTILINE))
    assert commands.count("neorl") == 2
    benchmark(tmp_path / "dataBenchmark.csv")
    environment = {
        **os.environ,
        "NEORL_HOME": str(tmp_path / ".neorl"),
        "PYTHONPATH": str(ROOT),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    lines = done.stdout.splitlines()
    assert not [line for line in lines if line.startswith("missing")]
    assert re.search(r"^ok +episodes: 1,02\d rows in \d+ episodes", done.stdout, re.MULTILINE), lines
    assert "holding the last action, uest toward 3 at a rate limit" in done.stdout
