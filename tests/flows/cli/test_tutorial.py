"""The tutorial's commands work, on a log in the form of the public one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tasks.evidence.audit.audit import audit
from tests.conftest import SHARED

if TYPE_CHECKING:
    from flows.services.servers import Services

ROOT = Path(__file__).parents[3]
PERIOD = 4.0
"""s"""


def benchmark(path: Path, rows: int = 1024) -> None:
    """Write two records of a cascade of tanks under a slowly changing pump, in the form of the benchmark's file."""
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


def blocks(begin: str, end: str) -> list[str]:
    """Return the commands of a part of the page, block by block."""
    page = (ROOT / "docs" / "tutorial" / "own-plant.md").read_text()
    part = page[page.index(begin) : page.index(end)]
    return re.findall(r"^```sh\n(.*?)^```", part, re.DOTALL | re.MULTILINE)


def typed(script: str, folder: Path, home: Path, allowed: tuple[int, ...] = (0,)) -> str:
    """Run commands in a folder; stop at the first that fails with a code that is not allowed."""
    environment = {
        **os.environ,
        "NEORL_HOME": str(home),
        "PYTHONPATH": str(ROOT),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode in allowed, said
    assert "Traceback" not in said
    return said


@pytest.mark.slow
def test_commands_lead_to_a_complete_check(tmp_path: Path) -> None:
    script = "\n".join(blocks("## 1.", "## 3."))
    assert script.count("neorl") == 2
    benchmark(tmp_path / "dataBenchmark.csv")
    said = typed(script, tmp_path, tmp_path / ".neorl")
    assert not re.search("^missing", said, re.MULTILINE)
    assert re.search(r"^ok +episodes: 1,02\d rows in \d+ episodes", said, re.MULTILINE), said
    assert "holding the last action, uest toward 3 at a rate limit" in said


@pytest.mark.slow
def test_commands_lead_to_a_shadow_or_refusal(services: Services, tmp_path: Path) -> None:
    log, public = tmp_path / "dataBenchmark.csv", SHARED / "cascaded_tanks" / "dataBenchmark.csv"
    if public.exists():
        shutil.copy(public, log)
    else:
        benchmark(log)
    home = services.home.root
    typed("\n".join(blocks("## 1.", "## 3.")), tmp_path, home)
    # With fewer updates the numbers differ, but not the form of the verdict.
    config = tmp_path / "configs" / "tanks.yaml"
    config.write_text(
        config.read_text().replace("evaluate:\n", "evaluate:\n  model_updates: 200\n")
        + "train: {algorithm: td3_bc, updates: 400, seeds: 1}\n"
    )
    retrain, told = blocks("## 3.", "## 4.")
    said = typed(retrain, tmp_path, home, allowed=(0, 1))
    page = typed(told, tmp_path, home).splitlines()[0]
    assert "No statistical safety claim" in Path(page).read_text()
    if "The candidate failed" in said:
        assert re.search(r"The candidate failed \w+: .*\d", said), said
        assert "no candidate waits" in typed("neorl candidates tanks", tmp_path, home)
    else:
        said = typed("\n".join(blocks("## 4.", "## With a simulator")), tmp_path, home)
        assert "version 1 of tanks is approved; in shadow: 1" in said
        assert re.search(r"^- Newer logs: 1,02\d steps in \d+ episodes", said, re.MULTILINE), said
    assert audit(services.home).passed
