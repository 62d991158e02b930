"""Fleet report: one HTML file that works offline, compares the sites and links to the report of each."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from configs.home import Home
from tasks.evidence.ledger.ledger import Ledger
from tasks.files.canonical import write_atomic
from tasks.fleet.compare import CUT, LEAST, MEASURES, RANKED_BY, outliers, ranked, shown
from tasks.fleet.records import Ranked, Standing
from tasks.report import TONES, environment

FOLDER = ("reports", "fleets")
"""Folder of fleet reports in the home."""
Tone = Literal["good", "bad", "wait", "none"]


class Page(NamedTuple):
    """A written fleet report with headline and outliers."""

    path: Path
    headline: str
    outliers: tuple[str, ...]


def write_page(
    home: Home, fleet: str, standings: Sequence[Standing], now: datetime, links: Mapping[str, str] | None = None
) -> Page:
    """Write the report of a fleet, replacing an earlier one.

    Args:
        home: home; the report is written to `reports/fleets/`.
        fleet: name of the fleet.
        standings: states of all sites.
        now: current time, UTC.
        links: addresses of further pages, by title.
    """
    sites = ranked(standings)
    head, outlier_lines, counts = headline(standings), outliers(sites), _counts(standings)
    folder = home.folder(*FOLDER)
    loader = environment()
    loader.filters |= {
        "tone": tone,
        "verdict": verdict,
        "in_force": in_force,
        "measured": lambda value, measure: shown(measure, value),
        "zed": lambda z: f"{z:+.1f}".replace("-", "−"),
        "relative": partial(_relative, folder),
    }
    ledger = Ledger.open(home, write=False) if Ledger.exists(home) else None
    at = ledger.head() if ledger else None
    text = loader.get_template("fleet.html.j2").render(
        fleet=fleet,
        headline=head,
        tone="bad" if not counts["decided"] else "wait" if counts["decided"] < len(sites) else "good",
        written=now.isoformat(sep=" ", timespec="minutes").removesuffix("+00:00") + " UTC",
        sites=sites,
        groups=_groups(sites),
        counts=counts,
        attention=(*_refusals(standings), *(f"{line}, outlier" for line in outlier_lines)),
        measures=MEASURES,
        ranked_by=next(measure.title for measure in MEASURES if measure.name == RANKED_BY),
        least=LEAST,
        cut=CUT,
        links=dict(links or {}),
        entries=at.size if at else 0,
        root=at.root if at else "–",
    )
    return Page(write_atomic(folder / f"{fleet}.html", text.encode()), head, outlier_lines)


def headline(standings: Sequence[Standing]) -> str:
    """Summarise the state of a fleet in one sentence."""
    states, parts = _counts(standings), []
    for name, words in (("trained", "a trained champion"), ("own", "a certified tuned controller")):
        parts += [f"{states[name]} with {words}"] if states[name] else []
    parts += [f"{states['shadow']} with a policy in shadow"] if states["shadow"] else []
    waits = f"; {states['waiting']} await approval" if states["waiting"] else ""
    refused = f"; {states['refused']} refused" if states["refused"] else ""
    new = f"; {states['new']} not retrained yet" if states["new"] else ""
    decided = f"{states['decided']} of {len(standings)} sites decided"
    return f"{decided}: {', '.join(parts) or 'none in force'}{waits}{refused}{new}."


def tone(standing: Standing) -> Tone:
    """Return the colour for a site's last retraining."""
    if standing.state != "decided" or standing.verdict is None:
        return {"refused": "bad", "crashed": "bad"}.get(standing.state, "none")  # type: ignore[return-value]
    return TONES.get(standing.verdict, "wait")


def verdict(standing: Standing) -> str:
    """Describe the result of a site's last retraining in a few words."""
    if standing.state != "decided" or standing.verdict is None:
        return {"new": "none yet"}.get(standing.state, standing.state)
    return {"refused": "candidate refused"}.get(standing.verdict, standing.verdict.replace("_", ", "))


def in_force(standing: Standing) -> str:
    """Describe the version in force at a site."""
    if standing.champion is not None:
        own = ", tuned controller" if standing.own else ""
        text = f"version {standing.champion.version}{own}"
    else:
        text = f"version {standing.shadow.version} in shadow" if standing.shadow else "no champion"
    return text + (f"; {', '.join(standing.waiting)} awaits approval" if standing.waiting else "")


def _counts(standings: Sequence[Standing]) -> dict[str, int]:
    states = Counter(standing.state for standing in standings)
    return {
        "decided": states["decided"],
        "refused": states["refused"] + states["crashed"],
        "new": states["new"],
        "trained": sum(1 for standing in standings if standing.champion and not standing.own),
        "own": sum(1 for standing in standings if standing.champion and standing.own),
        "shadow": sum(1 for standing in standings if standing.shadow),
        "waiting": sum(1 for standing in standings if standing.waiting),
    }


def _groups(sites: Sequence[Ranked]) -> list[tuple[str, list[Ranked]]]:
    kinds = dict.fromkeys(site.standing.kind for site in sites)
    return [(kind, [site for site in sites if site.standing.kind == kind]) for kind in kinds]


def _refusals(standings: Sequence[Standing]) -> list[str]:
    return [
        f"{standing.site} was {standing.state}: {standing.headline}"
        for standing in standings
        if standing.state in ("refused", "crashed")
    ]


def _relative(folder: Path, page: Path) -> str:
    """Return a relative link, so that the home can be moved."""
    return Path(os.path.relpath(page, folder)).as_posix()
