"""Collect the outside values that the plants' tests compare with."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.pages import ROOT, table
from benchmarks.plants.kept import kept
from neorl_core.plants import NAMES


def truths(names: Sequence[str] = NAMES) -> list[dict[str, Any]]:
    """Run the plants' tests and return every value that the tests compared with an outside source.

    Args:
        names: plants. If some plants are left out, their test files do not run and their kept values stay.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        folder_of_tests = ROOT / "tests" / "neorl_core" / "plants"
        wanted = [f"test_plant_{name}.py" for name in names] if set(names) < set(NAMES) else ["test_plant*.py"]
        tests = sorted(str(path) for each in wanted for path in folder_of_tests.glob(each))
        options = ["-m", "", f"--junitxml={report}", "-o", "junit_family=xunit1"]
        command = [sys.executable, "-m", "pytest", *options, *tests]
        done = subprocess.run(command, cwd=ROOT, check=False)
        if done.returncode != 0:
            raise SystemExit(f"plant tests failed with exit code {done.returncode}: see the output above.")
        found = [
            json.loads(item.get("value", ""))
            for item in ElementTree.parse(report).iter("property")
            if item.get("name") == "truth"
        ]
    others = [row for row in kept("truths") or [] if row["plant"] not in names]
    return sorted(others + found, key=lambda row: row["plant"])


def section(rows: list[dict[str, Any]]) -> str:
    """Return a table with the number of compared values and the largest error, by plant and source."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["plant"], row["source"]), []).append(row)
    shown = [
        (plant, source, len(group), f"{max(_share(row) for row in group):.2g}")
        for (plant, source), group in groups.items()
    ]
    return table(("plant", "source", "values", "largest error / tolerance"), shown)


def _share(row: dict[str, Any]) -> float:
    """Return error / tolerance of a value; 0 if its tolerance is 0."""
    return float(abs(row["ours"] - row["theirs"]) / row["allowed"]) if row["allowed"] else 0.0
