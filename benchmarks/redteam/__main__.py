"""`make redteam`: make attacks on copies of a finished home, and write the table of docs/studies/red-team.md.

    python -m benchmarks.redteam [--home HOME] [--flips 60]

The home must have a champion; `make run` makes one. The command only reads this home. Each attack is made twice: with
the home's witness, and with a witness that the attacker cannot reach.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.redteam.archives import RESTORED, plant_run, restore_mutated
from benchmarks.redteam.attacks import ATTACKS, Attack
from benchmarks.redteam.people import PEOPLE
from benchmarks.redteam.plants import ASK, HIDE, NOTICE, certify_plant, hide, noticing
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
"""Invented digest of the composite of an open attempt."""
BEGIN, END = "<!-- red team: begin -->", "<!-- red team: end -->"


HELD = ("refused", "found")


class Result(NamedTuple):
    """Outcomes of an attack: with a local and with an external witness."""

    number: str
    name: str
    power: str
    local: str
    external: str
    message: str
    """Message of the refusal or finding with the external witness."""

    @property
    def held(self) -> bool:
        """Whether the attack is refused or found with the external witness."""
        return self.external in HELD


PLANTS = (
    *(
        Attack(f"12.{number}", f"a plant that looks at: {name}", "home", certify_plant(noticing(statement)))
        for number, (name, statement) in enumerate(NOTICE.items(), 1)
    ),
    *(
        Attack(f"13.{number}", f"a plant that calls the host: {name}", "home", certify_plant(statement))
        for number, (name, statement) in enumerate(ASK.items(), 1)
    ),
    *(
        Attack(f"16.{number}", f"a plant that hides violations: {name}", "home", hide(changes))
        for number, (name, changes) in enumerate(HIDE.items(), 1)
    ),
)


ARCHIVES = (
    *(
        Attack(f"14.{number}", f"a backup with: {kind}", "home", restore_mutated(kind))
        for number, kind in enumerate(RESTORED, 1)
    ),
    Attack("15", "a run planted in the Prefect database of a backup", "home", plant_run),
)


def attacked(attack: Attack, source: Home, plant: str, scratch: Path) -> Result:
    """Make an attack on two copies of a home, with a local and with an external witness."""
    local, _ = _played(attack, under_local(copy_home(source, scratch / "local" / "home"), plant))
    external = under_external(copy_home(source, scratch / "external" / "home"), plant, scratch / "elsewhere")
    return Result(attack.number, attack.name, attack.power, local, *_played(attack, external))


def _played(attack: Attack, stage: Stage) -> tuple[str, str]:
    """Make an attack on one copy; return the outcome and the message."""
    try:
        message = attack.play(stage)
    except NeoRLError as error:
        return "refused", str(error)
    return ("found" if message else "NOT FOUND"), message or ""


def under_local(home: Home, plant: str) -> Stage:
    """Return a stage with the home's own witness."""
    witness = open_witness(home.root / "witness", LOCAL, open_to_all=True)
    if not (home.root / FILE).exists():
        pin_witnesses(home, witness)
    return _begun(Stage(home, plant, witness))


def under_external(home: Home, plant: str, folder: Path) -> Stage:
    """Return a stage with a witness that no attack can change and that knows the home's key."""
    shutil.rmtree(home.root / "witness", ignore_errors=True)
    (home.root / "witnessed.head").unlink(missing_ok=True)
    witness = witness_in(folder, "witness.example/w1", open_to_all=False)
    pin_witnesses(home, witness)
    key, _ = open_keys(home, first_use=False)
    witness.add_log(Verifier.of(ORIGIN, SIGNATURE, key))
    return _begun(Stage(home, plant, witness))


def _begun(stage: Stage) -> Stage:
    """Open an attempt and draw the seed, so that the witness knows the ledger."""
    ledger, claim = stage.ledger(), stage.claim
    inputs = Inputs(lineage=lineage_of(claim), composite=BEGUN, dataset=BEGUN, config=BEGUN)
    draw_seed(ledger, open_attempt(ledger, inputs, claim))
    return stage


def tampered(source: Home, flips: int, scratch: Path) -> Iterator[Result]:
    """Yield the results of `make tamper`."""
    for kind, count in tamper(source, flips, 0, scratch).items():
        outcome = "found" if count["found"] == count["tried"] else "NOT FOUND"
        name = kind if kind.split()[0] in ("sign", "truncate", "restore", "flip") else f"flip bytes of a {kind}"
        yield Result("–", name, "home", outcome, outcome, f"{count['found']} of {count['tried']} named by the audit")


def plant_of(source: Home) -> str:
    """Return the first plant with a champion."""
    promotions = Ledger.open(source, write=False).entries("promotion")
    if not promotions:
        raise SystemExit(f"no champion in the home {source.root}: run `make run` first.")
    return promotions[-1].plant


def table(results: list[Result]) -> str:
    """Return the table."""
    rows = [f"| {r.number} | {r.name} | {r.power} | {r.local} | {r.external} |" for r in results]
    head = "| number | attack | access | local witness | external witness |\n|:--|:--|:--|:--|:--|"
    return f"{BEGIN}\n\n{head}\n" + "\n".join(rows) + f"\n\n{END}"


def main() -> int:
    """Make all attacks; return 1 if any attack is neither refused nor found with the external witness."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, default=Home.locate().root, help="home to copy (default: the current one)")
    parser.add_argument("--flips", type=int, default=60)
    options = parser.parse_args()
    source = Home(options.home.resolve())
    plant, results = plant_of(source), []
    for attack in (*ATTACKS, *PEOPLE, *PLANTS, *ARCHIVES):
        with tempfile.TemporaryDirectory() as scratch:
            results.append(attacked(attack, source, plant, Path(scratch)))
        last = results[-1]
        print(f"{last.number:4s} {last.local:10s} {last.external:10s} {attack.name}: {last.message}", flush=True)
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
