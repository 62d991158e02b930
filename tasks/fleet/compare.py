"""Comparison of a fleet's sites: ranks, and outliers by median and median absolute deviation (MAD).

Iglewicz and Hoaglin, How to Detect and Handle Outliers (1993): the modified z-score of site i's value x_i is
0.6745 (x_i - median) / MAD. A value is an outlier if its z-score is above 3.5 in magnitude. If most values are equal,
the MAD is zero, and the z-score uses the mean absolute deviation (MeanAD): (x_i - median) / (1.253314 MeanAD).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tasks.fleet.records import Compared, Ranked, Standing

CUT = 3.5
"""Magnitude of the robust z-score above which a site is an outlier."""
LEAST = 5
"""Smallest number of sites for which z-scores are computed, because the median of fewer sites is unreliable."""


class Measure(NamedTuple):
    """A quantity by which sites are compared."""

    name: str
    title: str
    about: str
    percent: bool = False


MEASURES = (
    Measure(
        "gain",
        "gain",
        "return per episode of the last trained candidate minus that of the site's tuned controller, on the simulator; "
        "for a log-only plant, minus that of the logged controller",
    ),
    Measure(
        "simulator",
        "simulator error",
        "prediction error of the site's simulator on held-out logs, for the worst signal, as a share of the limit",
        percent=True,
    ),
    Measure("fallback", "by fallback", "share of steps on the simulator that the fallback controlled", percent=True),
    Measure("handovers", "hand-overs", "hand-overs from policy to fallback per episode of the certificate's test"),
    Measure("lost", "rows lost", "share of the site's rows that are in quarantine", percent=True),
)
RANKED_BY = "gain"


def robust_z(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the modified z-scores of a sample.

    Args:
        values: finite values, (N,).

    Returns:
        z-scores, (N,); all zero if all values are equal.

    Example:
        >>> robust_z(np.array([1.0, 2.0, 3.0, 4.0, 100.0])).round(4).tolist()
        [-1.349, -0.6745, 0.0, 0.6745, 65.4265]
    """
    deviation = values - np.median(values)
    spread = np.median(np.abs(deviation)) / 0.6745
    if spread == 0:
        spread = 1.253314 * np.mean(np.abs(deviation))
    return deviation / spread if spread > 0 else np.zeros_like(deviation)


def ranked(standings: Sequence[Standing]) -> tuple[Ranked, ...]:
    """Rank the sites of a fleet, best first within each plant; sites of different plants are not compared."""
    result: list[Ranked] = []
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
            result.append(Ranked(standing=site, rank=rank.get(site.site), compared=own))
    return tuple(result)


def outliers(sites: Iterable[Ranked]) -> tuple[str, ...]:
    """Describe the outliers, one line each, largest z-score first."""
    titles: Mapping[str, Measure] = {measure.name: measure for measure in MEASURES}
    rows = [
        (abs(each.z or 0.0), site.standing.site, titles[name], each)
        for site in sites
        for name, each in site.compared.items()
        if each.outlier
    ]
    return tuple(
        f"{site}: {measure.title} {shown(measure, each.value)}, robust z {each.z:+.1f}".replace("z -", "z −")
        for _, site, measure, each in sorted(rows, key=lambda row: (-row[0], row[1]))
    )


def shown(measure: Measure, value: float) -> str:
    """Format a value of a measure."""
    return (f"{100 * value:.3g} %" if measure.percent else f"{value:.4g}").replace("-", "−")


def _compared(sites: Sequence[Standing], name: str) -> dict[str, Compared]:
    """Return each site's value and z-score of one measure; sites without a finite value are left out."""
    values = {site.site: site.measures[name] for site in sites if math.isfinite(site.measures.get(name, math.nan))}
    if len(values) < LEAST:
        return {site: Compared(value=value, z=None, outlier=False) for site, value in values.items()}
    z = robust_z(np.array(list(values.values())))
    return {
        site: Compared(value=value, z=float(score), outlier=bool(abs(score) > CUT))
        for (site, value), score in zip(values.items(), z, strict=True)
    }
