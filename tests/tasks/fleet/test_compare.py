"""Ranks and outliers, against SciPy's median absolute deviation and a case worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from tasks.fleet.compare import CUT, outliers, ranked, robust_z
from tasks.fleet.records import Standing


def standing(site: str, kind: str = "chemical_reactor", **measures: float) -> Standing:
    return Standing(site=site, plant=f"reactors_{site}", kind=kind, state="decided", measures=measures)


def test_robust_z_agrees_with_scipy() -> None:
    values = np.random.default_rng(0).standard_t(2, 31)
    # SciPy scales by the normal's quantile 0.6744897..., which Iglewicz and Hoaglin round to 0.6745.
    theirs = (values - np.median(values)) / stats.median_abs_deviation(values, scale="normal")
    assert robust_z(values) == pytest.approx(theirs, rel=1e-4)


def test_robust_z_uses_mean_deviation_if_mad_is_zero() -> None:
    # Median 2, MAD 0, mean absolute deviation 10 / 5 = 2: z of the last is 10 / (1.253314 * 2).
    assert robust_z(np.array([2.0, 2.0, 2.0, 2.0, 12.0])) == pytest.approx([0, 0, 0, 0, 10 / 2.506628])
    assert robust_z(np.full(6, 3.0)).tolist() == [0.0] * 6


def test_best_gain_ranks_first_and_outlier_is_named() -> None:
    gains = [1.0, 1.1, 0.9, 1.05, 0.95, -3.0]
    sites = ranked([standing(f"s{i}", gain=gain, lost=0.0) for i, gain in enumerate(gains)])
    assert [site.standing.site for site in sites] == ["s1", "s3", "s0", "s4", "s2", "s5"]
    assert [site.rank for site in sites] == [1, 2, 3, 4, 5, 6]
    # Median 0.975; |x - 0.975| is 0.025 and 0.075 twice each, 0.125, 3.975: MAD 0.075, z = 0.6745 * 3.975 / 0.075.
    assert sites[-1].compared["gain"].z == pytest.approx(-0.6745 * 53.0)
    assert outliers(sites) == ("s5: gain −3, robust z −35.7",)
    assert abs(sites[0].compared["gain"].z or 0.0) < CUT


def test_few_sites_are_ranked_without_z_scores() -> None:
    sites = ranked([standing(f"s{i}", gain=float(gain)) for i, gain in enumerate((1, 1, 1, 900))])
    assert sites[0].standing.site == "s3"
    assert all(site.compared["gain"].z is None for site in sites)
    assert outliers(sites) == ()


def test_plants_are_ranked_separately_and_unknown_gains_have_no_rank() -> None:
    sites = ranked(
        [standing("a", gain=1.0), standing("b", kind="double_mass", gain=5.0), standing("c"), standing("d", gain=2.0)]
    )
    assert [(site.standing.site, site.rank) for site in sites] == [("d", 1), ("a", 2), ("c", None), ("b", 1)]
    assert [site.rank for site in ranked([standing("a", gain=float("nan")), standing("b", gain=0.0)])] == [1, None]
