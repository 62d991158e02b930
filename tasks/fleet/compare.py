"""Sites beside each other: their ranks, and those that stand out, by median and median absolute deviation.

Iglewicz and Hoaglin, How to Detect and Handle Outliers (1993): the modified z-value of x_i is
0.6745 (x_i - median) / MAD, and above 3.5 in size it is an outlier; where more than half of the values are the same, so
that the MAD is zero, the mean absolute deviation takes its place, (x_i - median) / (1.253314 MeanAD).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tasks.fleet.records import Compared, Ranked, Standing

CUT = 3.5
"""Size of a robust z-value above which a site stands out."""
LEAST = 5
"""Sites that are compared at least: the median of fewer says little of what is usual."""


class Measure(NamedTuple):
    """Something by which sites are compared."""

    name: str
    title: str
    about: str
    percent: bool = False


MEASURES = (
    Measure(
        "gain",
        "gain",
        "return per episode of the last trained candidate over the site's own controller, on its simulator; of a "
        "process over the logged controller",
    ),
    Measure(
        "simulator",
        "simulator error",
        "prediction error of the site's simulator on its held-out logs, of its worst signal, as a share of what is "
        "allowed",
        percent=True,
    ),
    Measure("fallback", "by fallback", "share of steps on the simulator that the fallback decided", percent=True),
    Measure("handovers", "hand-overs", "hand-overs from policy to fallback per episode of the certificate's test"),
    Measure("lost", "rows lost", "share of the site's rows that are in quarantine", percent=True),
)
RANKED_BY = "gain"


def robust_z(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Modified z-values of a sample.

    Args:
        values: (N,), finite.

    Returns:
        (N,); all zero where all values are equal.

    Example:
        >>> robust_z(np.array([1.0, 2.0, 3.0, 4.0, 100.0])).round(4).tolist()
        [-1.349, -0.6745, 0.0, 0.6745, 65.4265]
    """
    away = values - np.median(values)
    spread = np.median(np.abs(away)) / 0.6745
    if spread == 0:
        spread = 1.253314 * np.mean(np.abs(away))
    return away / spread if spread > 0 else np.zeros_like(away)


def ranked(standings: Sequence[Standing]) -> tuple[Ranked, ...]:
    """Sites with their ranks and z-values, the best first; those of different plants are not compared.

    Args:
        standings: of a fleet's sites.
    """
    found: list[Ranked] = []
    for kind in dict.fromkeys(standing.kind for standing in standings):
        sites = [standing for standing in standings if standing.kind == kind]
        compared = {measure.name: _compared(sites, measure.name) for measure in MEASURES}
        best = sorted(
            (site for site in sites if RANKED_BY in compared and site.site in compared[RANKED_BY]),
            key=lambda site: -site.measures[RANKED_BY],
        )
        rank = {site.site: place for place, site in enumerate(best, 1)}
        for site in [*best, *(site for site in sites if site.site not in rank)]:
            own = {name: values[site.site] for name, values in compared.items() if site.site in values}
            found.append(Ranked(standing=site, rank=rank.get(site.site), compared=own))
    return tuple(found)


def outliers(sites: Iterable[Ranked]) -> tuple[str, ...]:
    """What stands out, in a sentence each, the farthest first."""
    titles: Mapping[str, Measure] = {measure.name: measure for measure in MEASURES}
    out = [
        (abs(each.z or 0.0), site.standing.site, titles[name], each)
        for site in sites
        for name, each in site.compared.items()
        if each.outlier
    ]
    return tuple(
        f"{site}: {measure.title} {shown(measure, each.value)}, robust z {each.z:+.1f}".replace("z -", "z −")
        for _, site, measure, each in sorted(out, key=lambda row: (-row[0], row[1]))
    )


def shown(measure: Measure, value: float) -> str:
    """A value for people."""
    return (f"{100 * value:.3g} %" if measure.percent else f"{value:.4g}").replace("-", "−")


def _compared(sites: Sequence[Standing], name: str) -> dict[str, Compared]:
    """By site, those that have a finite value."""
    values = {site.site: site.measures[name] for site in sites if math.isfinite(site.measures.get(name, math.nan))}
    if len(values) < LEAST:
        return {site: Compared(value=value, z=None, outlier=False) for site, value in values.items()}
    z = robust_z(np.array(list(values.values())))
    return {
        site: Compared(value=value, z=float(far), outlier=bool(abs(far) > CUT))
        for (site, value), far in zip(values.items(), z, strict=True)
    }
