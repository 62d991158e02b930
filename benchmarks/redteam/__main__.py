"""Attack copies of a finished home in every way that once went unnoticed, and write what came of each into the docs.

    python -m benchmarks.redteam [--home HOME] [--flips 60]

Needs a home with a champion, such as `make run` leaves behind; the home itself is only read. Each attack is played
twice: under a witness in the home, and under one that the attacker does not reach.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.redteam.attacks import ATTACKS, Attack
from benchmarks.redteam.people import PEOPLE
from benchmarks.redteam.stage import Stage
from benchmarks.redteam.witnessed import ORIGIN, pin_witnesses, witness_in
from benchmarks.tamper import copy_home, tamper
from configs.errors import NeoRLError
from configs.home import Home
from tasks.evidence.attempts import Inputs, draw_seed, lineage_of, open_attempt
from tasks.evidence.claims import LOCAL
from tasks.evidence.ledger.keys import open_keys
from tasks.evidence.ledger.ledger import Ledger
from tasks.evidence.witness.notes import SIGNATURE, Verifier
from tasks.evidence.witness.pinned import FILE
from tasks.evidence.witness.server import open_witness

PAGE = Path(__file__).resolve().parents[2] / "docs" / "studies" / "red-team.md"
BEGUN = "e" * 64
"""A composite of which an attempt was begun."""
BEGIN, END = "<!-- red team: begin -->", "<!-- red team: end -->"


HELD = ("refused", "found")


class Result(NamedTuple):
    """What came of an attack under a local and under an external witness."""

    number: str
    name: str
    power: str
    local: str
    external: str
    said: str
    """Under the external one."""

    @property
    def held(self) -> bool:
        """Whether it was refused or found where the witness is a second party."""
        return self.external in HELD


def attacked(attack: Attack, source: Home, plant: str, scratch: Path) -> Result:
    """Play an attack on copies of a home: under a witness in the home, and under one that is out of reach."""
    local, _ = _played(attack, under_local(copy_home(source, scratch / "local" / "home"), plant))
    external = under_external(copy_home(source, scratch / "external" / "home"), plant, scratch / "elsewhere")
    return Result(attack.number, attack.name, attack.power, local, *_played(attack, external))


def _played(attack: Attack, stage: Stage) -> tuple[str, str]:
    """The outcome, and what was said."""
    try:
        said = attack.play(stage)
    except NeoRLError as error:
        return "refused", str(error)
    return ("found" if said else "NOT FOUND"), said or ""


def under_local(home: Home, plant: str) -> Stage:
    """The home with the witness that it has of its own."""
    witness = open_witness(home.root / "witness", LOCAL, open_to_all=True)
    if not (home.root / FILE).exists():
        pin_witnesses(home, witness)
    return _begun(Stage(home, plant, witness))


def under_external(home: Home, plant: str, folder: Path) -> Stage:
    """The home with a witness in a folder that no attack reaches, to which the home's key was made known."""
    shutil.rmtree(home.root / "witness", ignore_errors=True)
    (home.root / "witnessed.head").unlink(missing_ok=True)
    witness = witness_in(folder, "witness.example/w1", open_to_all=False)
    pin_witnesses(home, witness)
    key, _ = open_keys(home, first_use=False)
    witness.add_log(Verifier.of(ORIGIN, SIGNATURE, key))
    return _begun(Stage(home, plant, witness))


def _begun(stage: Stage) -> Stage:
    """Have the witness know the ledger as it is: an attempt is opened and its seed drawn."""
    ledger, claim = stage.ledger(), stage.claim
    inputs = Inputs(lineage=lineage_of(claim), composite=BEGUN, dataset=BEGUN, config=BEGUN)
    draw_seed(ledger, open_attempt(ledger, inputs, claim))
    return stage


def tampered(source: Home, flips: int, scratch: Path) -> Iterator[Result]:
    """`make tamper` as rows: single bytes changed, the ledger signed again, truncated, restored."""
    for kind, count in tamper(source, flips, 0, scratch).items():
        outcome = "found" if count["found"] == count["tried"] else "NOT FOUND"
        name = kind if kind.startswith(("signed", "truncated", "restored")) else f"bytes of a {kind} flipped"
        yield Result("–", name, "home", outcome, outcome, f"{count['found']} of {count['tried']} named by the audit")


def plant_of(source: Home) -> str:
    """The first plant of a home that has had a champion."""
    promotions = Ledger.open(source, write=False).entries("promotion")
    if not promotions:
        raise SystemExit(f"expected a home with a champion at {source.root}, got none: run `make run` first.")
    return promotions[-1].plant


def table(results: list[Result]) -> str:
    """The results for readers."""
    rows = [f"| {r.number} | {r.name} | {r.power} | {r.local} | {r.external} |" for r in results]
    head = "| number | attack | access | local witness | external witness |\n|:--|:--|:--|:--|:--|"
    return f"{BEGIN}\n\n{head}\n" + "\n".join(rows) + f"\n\n{END}"


def main() -> int:
    """Play all attacks; 1 where one is neither refused nor found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, default=Home.locate().root, help="home to copy (default: the current one)")
    parser.add_argument("--flips", type=int, default=60)
    options = parser.parse_args()
    source = Home(options.home.resolve())
    plant, results = plant_of(source), []
    for attack in (*ATTACKS, *PEOPLE):
        with tempfile.TemporaryDirectory() as scratch:
            results.append(attacked(attack, source, plant, Path(scratch)))
        last = results[-1]
        print(f"{last.number:4s} {last.local:10s} {last.external:10s} {attack.name}: {last.said}", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        results += tampered(source, options.flips, Path(scratch))
    text = PAGE.read_text(encoding="utf-8")
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    PAGE.write_text(before + table(results) + after, encoding="utf-8")
    wrong = [result for result in results if not result.held]
    print(f"{len(results)} attacks, {len(wrong)} neither refused nor found")
    return int(bool(wrong))


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except NeoRLError as error:
        raise SystemExit(str(error)) from error
