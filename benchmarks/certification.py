"""`make certification`: certify every plant for small violation probabilities, and measure the time.

    python -m benchmarks.certification                        # every plant's tuned controller
    python -m benchmarks.certification --home .neorl          # champions of this home, if there are some
    python -m benchmarks.certification --plants hvac_control  # only these

The claim is that an episode violates a limit with a probability below p0. The command starts at p0 = 1e-3 with 99 %
confidence. After a failure it tries the next larger p0, as a new attempt with its own share of the error probability.
The reactor's composite is then certified from p0 = 1e-5 with 95 % confidence, as attempt 2 of the lineage.
"""

from __future__ import annotations

import argparse
import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import pages
from benchmarks.pages import wrap
from configs.home import Home
from neorl_core.plants import NAMES, PLANTS
from neorl_core.safety.bounds import betting_episodes
from neorl_core.safety.certify import BATCH, CertificationCounts, certify_batches
from neorl_core.safety.composite import Composite, composite_controller, make_composite
from neorl_core.types import Plant
from tasks.evaluation.guarded import SECONDS, guarded
from tasks.evidence.attempts import attempt_alpha
from tasks.evidence.decisions.champions import champion
from tasks.evidence.ledger.ledger import Ledger
from tasks.files.canonical import write_json
from tasks.models.bundles.bundle import load_bundle

RESULTS = Path(__file__).resolve().parent / "results" / "certification.json"
ROOM = 10
SELDOM = (1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1)
RARE = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3)
RARE_PLANT = "chemical_reactor"


class Shown(NamedTuple):
    """The smallest certified p0 of a list, and the time that was needed."""

    plant: str
    composite: str
    p0: float | None
    confidence: float
    attempt: int
    episodes: int
    violations: int
    seconds: float
    """Time of all attempts, with compilation."""
    episodes_per_second: float
    """Speed after the first batch, in which the program is compiled."""


def show(
    plant: Plant, composite: Composite, name: str, ladder: Sequence[float], confidence: float, first: int
) -> Shown:
    """Make one attempt for each p0 until a certificate passes.

    Args:
        plant: simulator with the default domain.
        composite: composite to certify.
        name: label of the composite.
        ladder: values of p0, smallest first.
        confidence: confidence of the whole lineage, which the attempts share.
        first: number of the first attempt in the lineage.
    """
    began, warm, counted = time.perf_counter(), 0.0, 0
    for attempt, p0 in enumerate(ladder, start=first):
        counts, seconds = _attempt(plant, composite, p0, attempt_alpha(confidence, attempt))
        warm, counted = warm + seconds, counted + max(counts.episodes - BATCH, 0)
        if counts.certified:
            break
    return Shown(
        plant.spec.name,
        name,
        p0 if counts.certified else None,
        confidence,
        attempt,
        counts.episodes,
        counts.violations,
        round(time.perf_counter() - began, 2),
        round(counted / warm) if warm else 0,
    )


def _attempt(plant: Plant, composite: Composite, p0: float, alpha: float) -> tuple[CertificationCounts, float]:
    """Return the counts of an attempt, and its seconds without the first batch."""
    batches = certify_batches(
        plant,
        composite_controller(plant),
        composite,
        plant.domain,
        secrets.token_bytes(32),
        p0=p0,
        alpha=alpha,
        max_episodes=betting_episodes(p0, ROOM, alpha),
        run=guarded(SECONDS),
    )
    first = next(batches)
    began = time.perf_counter()
    return [first, *batches][-1], time.perf_counter() - began


def composite_of(plant: Plant, home: Home | None) -> tuple[Composite, str]:
    """Return the champion of a home, or the plant's tuned controller."""
    name = plant.spec.name
    if home is not None and Ledger.exists(home):
        now = champion(Ledger.open(home, write=False).entries(), name)
        if now is not None:
            digest = str(now.body["composite"])
            return load_bundle(home.root / "bundles" / name / digest[:24], digest)[1], f"champion {digest[:12]}"
    return make_composite(plant), "tuned controller"


def line(found: Shown) -> str:
    """Return a result as one line for the terminal."""
    p0 = "none" if found.p0 is None else f"{found.p0:g}"
    return (
        f"{found.plant:22s} {found.composite:22s} p0 {p0:6s} at {100 * found.confidence:g} %, attempt {found.attempt}: "
        f"{found.violations} in {found.episodes:,} episodes, {found.seconds:.1f} s, {found.episodes_per_second:,.0f}/s"
    )


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the kept results as a paragraph and a table."""
    cells = []
    for row in rows:
        found = Shown(**row)
        p0 = "none" if found.p0 is None else f"{found.p0:g}"
        composite = found.composite.split()[0] if found.composite.startswith("champion") else found.composite
        counts = (found.attempt, found.violations, f"{found.episodes:,}")
        times = (f"{found.seconds:.1f}", f"{found.episodes_per_second:,}")
        cells.append((found.plant, composite, p0, f"{100 * found.confidence:g} %", *counts, *times))
    about = wrap(
        "p0 is the claimed largest probability of an episode that violates a limit. `make certification` first tries "
        f"p0 = {SELDOM[0]:g}. If an attempt fails, it tries the next larger p0. For {RARE_PLANT}, a second series "
        f"begins at p0 = {RARE[0]:g} with attempt 2. *Attempt* is the number of the last attempt. *Violations* and "
        "*episodes* are its counts. *Seconds* is "
        "the time of all attempts with compilation, *episodes/s* the speed without compilation."
    )
    head = ("plant", "composite", "p0", "confidence", "attempt", "violations", "episodes", "seconds", "episodes/s")
    return f"{about}\n\n{pages.table(head, cells)}"


def main() -> None:
    """Certify, print and keep the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, help="certify the champions of this home")
    parser.add_argument("--plants", nargs="+", choices=NAMES, default=NAMES)
    options = parser.parse_args()
    home, rows = Home(options.home.resolve()) if options.home else None, list[Shown]()
    for name in options.plants:
        plant = PLANTS[name]
        composite, label = composite_of(plant, home)
        ladders = [(SELDOM, 0.99, 1), *([(RARE, 0.95, 2)] if name == RARE_PLANT else [])]
        for ladder, confidence, first in ladders:
            rows.append(show(plant, composite, label, ladder, confidence, first))
            print(line(rows[-1]), flush=True)
    if options.plants == NAMES:
        write_json(RESULTS, [row._asdict() for row in rows])


if __name__ == "__main__":
    main()
