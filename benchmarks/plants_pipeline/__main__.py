"""`make plants-pipeline`: generate logs for every plant, retrain it with `neorl retrain`, and tabulate the verdicts.

    python -m benchmarks.plants_pipeline                      # all plants, in a new home
    python -m benchmarks.plants_pipeline steel_annealing      # one plant; kept results of the others stay
    python -m benchmarks.plants_pipeline --page               # docs/studies/pipeline.md from the kept results

Results are kept in benchmarks/results/plants-pipeline.json.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import certification, pages
from benchmarks.pages import ROOT, STUDIES, listed, wrap
from benchmarks.plants_pipeline import simulator_gate
from benchmarks.setting import commit, own_home
from configs.errors import BadInput
from configs.home import Home
from neorl_core.plants import NAMES

RESULTS = ROOT / "benchmarks" / "results" / "plants-pipeline.json"
PAGE = STUDIES / "pipeline.md"
SOURCES = ("neorl_core", "tasks", "configs", "flows", "benchmarks/plants_pipeline")
"""Files and folders that a row depends on."""
MARKS = {True: "pass", False: "**fail**", None: "–"}


def neorl(*arguments: str) -> tuple[int, dict[str, Any], str]:
    """Run a `neorl` command and return exit code, JSON answer and standard error."""
    command = [sys.executable, "-m", "flows", *arguments, "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = done.stdout.strip().splitlines()
    try:
        answer = json.loads(lines[-1]) if lines else {}
    except json.JSONDecodeError:
        answer = {}
    return done.returncode, answer, done.stderr


def log_of(plant: str, home: Home) -> Path:
    """Generate a plant's log and return the file."""
    code, _, errors = neorl("generate", plant)
    if code:
        raise SystemExit(f"plants-pipeline: neorl generate {plant} exited with {code}:\n{errors[-3000:]}")
    folder = home.root / "generated" / plant
    return next(file for name in ("historian.parquet", "episodes.hdf5") if (file := folder / name).exists())


def run(plant: str, configs: Path, home: Home) -> dict[str, Any]:
    """Retrain one plant and return the row of the table."""
    log, started = log_of(plant, home), time.monotonic()
    code, answer, errors = neorl("retrain", str(configs / f"{plant}.yaml"), "--data", str(log))
    seconds = time.monotonic() - started
    if "Traceback" in errors or not answer:
        raise SystemExit(f"plants-pipeline: neorl retrain of {plant} exited with {code}:\n{errors[-3000:]}")
    champion = answer.get("champion") or {}
    return {
        "exit": code,
        "verdict": answer.get("decided") or answer.get("verdict") or "refused",
        "headline": answer.get("headline") or answer.get("error") or errors.strip().splitlines()[-1],
        "champion": champion.get("composite", "")[:12],
        "claim": champion.get("claim"),
        "seconds": round(seconds),
        "gates": answer.get("gates", []),
    }


def page(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Return docs/studies/pipeline.md: verdicts of all plants, power of the simulator gate, and certification."""
    gates = list(dict.fromkeys(gate["name"] for row in rows.values() for gate in row["gates"]))
    verdicts = []
    for plant in NAMES:
        if (row := rows.get(plant)) is None:
            verdicts.append((plant, "not run", *["–"] * (len(gates) + 2)))
            continue
        marks = {gate["name"]: MARKS[gate["passed"]] for gate in row["gates"]}
        verdicts.append(
            (plant, row["verdict"], *(marks.get(name, "–") for name in gates), _gain(row), f"{row['seconds']:,}")
        )
    promoted = [plant for plant in NAMES if plant in rows and rows[plant]["verdict"] == "promoted"]
    fallback = sum(row["verdict"] == "fallback" for row in rows.values())
    kept = json.loads(simulator_gate.RESULTS.read_text()) if simulator_gate.RESULTS.exists() else {}
    certified = json.loads(certification.RESULTS.read_text()) if certification.RESULTS.exists() else []
    commits = {(row["date"], row["commit"][:7]) for row in rows.values()}
    return pages.study(
        "Every plant through the pipeline",
        "Which plants get a learned champion from a retraining with the shipped configuration on generated logs?",
        f"{len(promoted)} of {len(rows)} plants get one: {listed(promoted)}. On {fallback} plants the candidate fails "
        "a gate, and the certified fallback controller becomes champion.",
        "`make plants-pipeline` takes an hour; `python -m benchmarks.plants_pipeline --page` only writes this page.",
        COLUMNS,
        pages.table(("plant", "verdict", *gates, "gain", "seconds"), verdicts),
        f"Measured on {listed(' at commit '.join(each) for each in sorted(commits))}.",
        f"## Power of the simulator gate\n\n{GATE}\n\n{simulator_gate.table(kept)}" if kept else "",
        f"## Rare violations\n\n{certification.table(certified)}" if certified else "",
    )


def _gain(row: Mapping[str, Any]) -> str:
    """Return the gain and its interval from the text of the gate `rollouts`."""
    detail = next((gate["detail"] for gate in row["gates"] if gate["name"] == "rollouts"), "")
    found = re.search(r"([+-][0-9.e+]+), interval (\[.*?\])", detail)
    return " ".join(found.groups()) if found else "–"


COLUMNS = """For each plant, `neorl generate PLANT` makes logs and `neorl retrain configs/PLANT.yaml` retrains. Columns:

- *verdict*: *promoted* if the learned policy became champion, *fallback* if the fallback controller did
- *data* to *servability*: result of each gate; – if the gate did not run (*statistical* and *servability* run only if
  all gates before them pass)
- *gain*: the candidate's return per episode on the simulator minus the tuned controller's, with an interval
- *seconds*: duration of the retraining

All gate results are in `benchmarks/results/plants-pipeline.json`."""
GATE = wrap(
    """The simulator gate must pass logs of a true plant and refuse logs of a wrong plant. The module
    `benchmarks.plants_pipeline.simulator_gate` generates both. A true plant has constants of the operating domain; a
    wrong plant has one of the *constants* 5 % higher or lower. *logs* names the logged controller. *not always refused*
    names the wrong constants that the gate passed at least once."""
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plants", nargs="*", help="default: all plants")
    parser.add_argument("--configs", type=Path, default=ROOT / "configs", help="folder of the runs' YAML")
    parser.add_argument("--page", action="store_true", help="only write the page")
    options = parser.parse_args()
    rows: dict[str, dict[str, Any]] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if not options.page:
        try:
            at = commit(SOURCES)
        except BadInput as error:
            parser.error(str(error))
        with tempfile.TemporaryDirectory(prefix="neorl-pipeline-") as folder, own_home(Path(folder) / "home") as home:
            code, _, errors = neorl("up", "--no-worker")
            if code:
                raise SystemExit(f"plants-pipeline: neorl up exited with {code}:\n{errors[-3000:]}")
            for plant in options.plants or NAMES:
                today = datetime.now(UTC).date().isoformat()
                rows[plant] = run(plant, options.configs, home) | {"date": today, "commit": at}
                print(f"{plant}: {rows[plant]['verdict']} in {rows[plant]['seconds']:,} s", flush=True)
                RESULTS.write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n")
    PAGE.write_text(page(rows))


if __name__ == "__main__":
    main()
