"""`make certification`: how rare a violation can be shown to be, for every plant, and how long that takes.

    python -m benchmarks.certification                        # every plant's tuned controller, the reactor at 1e-5
    python -m benchmarks.certification --home .neorl          # champions of this home where it has some
    python -m benchmarks.certification --plants hvac_control  # only these

p0 = 1e-3 at 99 %, and where that is not certified the next p0 that is: each try is an attempt of its own, at its share
of the error probability. The reactor's composite is then certified at p0 = 1e-5 and 95 %, as attempt 2 of its lineage,
or at the next p0 of its ladder that certifies.
"""

from __future__ import annotations

import argparse
import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

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
    """The first p0 of a ladder that was certified, and what it took."""

    plant: str
    composite: str
    p0: float | None
    confidence: float
    attempt: int
    episodes: int
    violations: int
    seconds: float
    """Of all attempts, compilation included."""
    episodes_per_second: float
    """Without the first batch, which is compiled."""


def show(
    plant: Plant, composite: Composite, name: str, ladder: Sequence[float], confidence: float, first: int
) -> Shown:
    """Try one p0 after the other, each as the next attempt of a lineage, until one is certified.

    Args:
        plant: the simulator, with its own domain.
        composite: what is certified.
        name: of the composite, for readers.
        ladder: values of p0, the smallest first.
        confidence: of the lineage.
        first: number of the first attempt.
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
    """The counts, and the seconds after the first batch."""
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
    """The champion of a home, or the plant's own controller."""
    name = plant.spec.name
    if home is not None and Ledger.exists(home):
        now = champion(Ledger.open(home, write=False).entries(), name)
        if now is not None:
            digest = str(now.body["composite"])
            return load_bundle(home.root / "bundles" / name / digest[:24], digest)[1], f"champion {digest[:12]}"
    return make_composite(plant), "tuned controller"


def line(found: Shown) -> str:
    """A row for readers."""
    p0 = "none" if found.p0 is None else f"{found.p0:g}"
    return (
        f"{found.plant:22s} {found.composite:22s} p0 {p0:6s} at {100 * found.confidence:g} %, attempt {found.attempt}: "
        f"{found.violations} in {found.episodes:,} episodes, {found.seconds:.1f} s, {found.episodes_per_second:,.0f}/s"
    )


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What is kept, as lines of Markdown."""
    lines = [
        "Made by `make certification` with the champions of a home, and the tuned controllers of plants without one "
        f"there: the first p0 that was certified of a ladder that begins at {SELDOM[0]:g}, and for {RARE_PLANT} of a "
        f"second one that begins at {RARE[0]:g}; nothing below a ladder's beginning was tried. Each try is an attempt "
        "of its own; seconds are of all attempts with compilation, episodes per second without.",
        "",
        "| plant | what | p0 | confidence | attempt | violations | episodes | seconds | episodes/s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        found = Shown(**row)
        p0 = "none" if found.p0 is None else f"{found.p0:g}"
        lines.append(
            f"| {found.plant} | {found.composite} | {p0} | {100 * found.confidence:g} % | {found.attempt} "
            f"| {found.violations} | {found.episodes:,} | {found.seconds:.1f} | {found.episodes_per_second:,} |"
        )
    return lines


def main() -> None:
    """Certify, print, and keep the numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, help="home whose champions are certified")
    parser.add_argument("--plants", nargs="+", choices=NAMES, default=NAMES)
    options = parser.parse_args()
    home, rows = Home(options.home.resolve()) if options.home else None, list[Shown]()
    for name in options.plants:
        plant = PLANTS[name]
        composite, said = composite_of(plant, home)
        ladders = [(SELDOM, 0.99, 1), *([(RARE, 0.95, 2)] if name == RARE_PLANT else [])]
        for ladder, confidence, first in ladders:
            rows.append(show(plant, composite, said, ladder, confidence, first))
            print(line(rows[-1]), flush=True)
    if options.plants == NAMES:
        write_json(RESULTS, [row._asdict() for row in rows])


if __name__ == "__main__":
    main()
