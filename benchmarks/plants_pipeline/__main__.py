"""`make plants-pipeline`: every plant through `neorl retrain` on generated logs in a new home, and a table of the ends.

    python -m benchmarks.plants_pipeline                      # all plants, one after the other
    python -m benchmarks.plants_pipeline steel_annealing      # one anew; what is kept of the others stays in the table

Each run is what a user types: `neorl generate PLANT`, then `neorl retrain configs/PLANT.yaml` on what it wrote. What
they come to is kept in benchmarks/results/plants-pipeline.json, of which docs/studies/pipeline.md is made.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import certification
from benchmarks.plants_pipeline import simulator_gate
from benchmarks.setting import commit, own_home
from configs.errors import BadInput
from configs.home import Home
from neorl_core.plants import NAMES

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "plants-pipeline.json"
PAGE = ROOT / "docs" / "studies" / "pipeline.md"
SOURCES = ("neorl_core", "tasks", "configs", "flows", "benchmarks/plants_pipeline")
"""What a row depends on."""
MARKS = {True: "pass", False: "**fail**", None: "not run"}


def neorl(*arguments: str) -> tuple[int, dict[str, Any], str]:
    """Run a command to its end: exit code, its JSON, and what it said."""
    command = [sys.executable, "-m", "flows", *arguments, "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = done.stdout.strip().splitlines()
    try:
        answer = json.loads(lines[-1]) if lines else {}
    except json.JSONDecodeError:
        answer = {}
    return done.returncode, answer, done.stderr


def log_of(plant: str, home: Home) -> Path:
    """The plant's generated log in a home."""
    code, _, said = neorl("generate", plant)
    if code:
        raise SystemExit(f"plants-pipeline: neorl generate {plant} left with {code}:\n{said[-3000:]}")
    folder = home.root / "generated" / plant
    return next(file for name in ("historian.parquet", "episodes.hdf5") if (file := folder / name).exists())


def run(plant: str, configs: Path, home: Home) -> dict[str, Any]:
    """One plant's retraining, as a row of the table."""
    log, started = log_of(plant, home), time.monotonic()
    code, answer, said = neorl("retrain", str(configs / f"{plant}.yaml"), "--data", str(log))
    seconds = time.monotonic() - started
    if "Traceback" in said or not answer:
        raise SystemExit(f"plants-pipeline: neorl retrain of {plant} left with {code}:\n{said[-3000:]}")
    champion = answer.get("champion") or {}
    return {
        "exit": code,
        "verdict": answer.get("decided") or answer.get("verdict") or "refused",
        "headline": answer.get("headline") or answer.get("error") or said.strip().splitlines()[-1],
        "champion": champion.get("composite", "")[:12],
        "claim": champion.get("claim"),
        "seconds": round(seconds),
        "gates": answer.get("gates", []),
    }


def page(rows: dict[str, dict[str, Any]]) -> str:
    """The table of all plants, and every gate of each with its numbers."""
    lines = [
        "# Every plant through the pipeline",
        "",
        "Made by `make plants-pipeline`: `neorl generate PLANT`, then `neorl retrain configs/PLANT.yaml` on what it "
        "wrote, all in one home. Seconds are those of the retraining, on the machine and beside the load of that day. "
        "The commit is the last one that had changed what a retraining depends on.",
        "",
        "| plant | verdict | champion | seconds | gates that failed | what came of it | day and commit |",
        "|---|---|---|---|---|---|---|",
    ]
    for plant in NAMES:
        if (row := rows.get(plant)) is None:
            lines.append(f"| {plant} | not run | – | – | – | – | – |")
            continue
        failed = ", ".join(gate["name"] for gate in row["gates"] if gate["passed"] is False) or "none"
        champion = f"`{row['champion']}`" if row["champion"] else "–"
        said = f"{row['verdict']} | {champion} | {row['seconds']:,} | {failed} | {_cell(row['headline'])}"
        lines.append(f"| {plant} | {said} | {row['date']}, {row['commit'][:7]} |")
    for plant in NAMES:
        if plant in rows and rows[plant]["gates"]:
            lines += ["", f"## {plant}", "", *([f"> {rows[plant]['claim']}", ""] if rows[plant]["claim"] else [])]
            lines += ["| gate | verdict | found |", "|---|---|---|"]
            gates = rows[plant]["gates"]
            lines += [f"| {gate['name']} | {MARKS[gate['passed']]} | {_cell(gate['detail'])} |" for gate in gates]
    kept = json.loads(simulator_gate.RESULTS.read_text()) if simulator_gate.RESULTS.exists() else {}
    if kept:
        lines += ["", "## The simulator's gate", ""]
        made = "Made by `python -m benchmarks.plants_pipeline.simulator_gate`: logs of plants of the operating domain, "
        lines += [made + "as they are and with one constant 5 % wrong; what the domain covers is not refused."]
        lines += ["", *simulator_gate.table(kept)]
    shown = json.loads(certification.RESULTS.read_text()) if certification.RESULTS.exists() else []
    if shown:
        lines += ["", "## How rare a violation can be shown to be", "", *certification.table(shown)]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plants", nargs="*", help="all by default")
    parser.add_argument("--configs", type=Path, default=ROOT / "configs", help="folder of the runs' YAML")
    parser.add_argument("--page", action="store_true", help="only write the page again from what is kept")
    given = parser.parse_args()
    rows: dict[str, dict[str, Any]] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if not given.page:
        try:
            at = commit(SOURCES)
        except BadInput as refused:
            parser.error(str(refused))
        with tempfile.TemporaryDirectory(prefix="neorl-pipeline-") as folder, own_home(Path(folder) / "home") as home:
            code, _, said = neorl("up", "--no-worker")
            if code:
                raise SystemExit(f"plants-pipeline: neorl up left with {code}:\n{said[-3000:]}")
            for plant in given.plants or NAMES:
                today = datetime.now(UTC).date().isoformat()
                rows[plant] = run(plant, given.configs, home) | {"date": today, "commit": at}
                print(f"{plant}: {rows[plant]['verdict']} in {rows[plant]['seconds']:,} s", flush=True)
                RESULTS.write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n")
    PAGE.write_text(page(rows))


if __name__ == "__main__":
    main()
