"""The outside values that the plants' tests hold them to, and what came out."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.plants.kept import ROOT, kept
from neorl_core.plants import NAMES


def truths(names: Sequence[str] = NAMES) -> list[dict[str, Any]]:
    """Run the plants' tests; every outside value that one of them was held to by the `truth` fixture.

    Args:
        names: of plants; with fewer than all, those that have a file of tests of their own are run, and what is kept of
            the others stays.
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
            raise SystemExit("expected every test of the plants to pass, got failures: see above.")
        found = [
            json.loads(item.get("value", ""))
            for item in ElementTree.parse(report).iter("property")
            if item.get("name") == "truth"
        ]
    others = [row for row in kept("truths") or [] if row["plant"] not in names]
    return sorted(others + found, key=lambda row: row["plant"])


def lines_of(rows: list[dict[str, Any]]) -> list[str]:
    """The outside values as a section of docs/studies/plants.md."""
    if not rows:
        return []
    lines = [
        "",
        "## Outside values",
        "",
        "What the plants' tests hold them to, and what came out in the run that made this page.",
        "",
        "| plant | quantity | theirs | ours | allowed | source |",
        "|---|---|---|---|---|---|",
    ]
    for r in rows:
        lines.append(
            f"| {r['plant']} | {r['quantity']} | {r['theirs']:.8g} | {r['ours']:.8g} | ± {r['allowed']:.2g} "
            f"| {r['source']} |"
        )
    return lines
