"""Epsilon of both accountants equals dp-accounting's and closed forms."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from neorl_core.federated.accountant import Mechanism, loss_epsilon, renyi_divergence, renyi_epsilon

CONFIG = json.loads(str(np.load(Path(__file__).parents[2] / "golden" / "federated.npz")["config"]))


@pytest.mark.slow
@pytest.mark.parametrize("known", CONFIG["epsilons"], ids=lambda x: f"{x['noise']}-{x['rate']:.3g}-{x['rounds']}")
def test_equals_dp_accounting(known: dict[str, float]) -> None:
    mechanism = Mechanism(known["noise"], known["rate"], int(known["rounds"]))
    if known["rate"] != 0.5:  # there dp-accounting skips orders, because its series diverges
        assert renyi_epsilon(mechanism, CONFIG["delta"]) == pytest.approx(known["renyi"], abs=1e-3)
    assert loss_epsilon(mechanism, CONFIG["delta"]) == pytest.approx(known["loss"], abs=1e-3)


def test_published_values() -> None:
    """DP-SGD on 60,000 rows with customary settings, and a second case, to three places."""
    assert renyi_epsilon(Mechanism(1.1, 256 / 60000, 14062), 1e-5) == pytest.approx(2.5966, abs=1e-3)
    assert loss_epsilon(Mechanism(1.1, 256 / 60000, 14062), 1e-5) == pytest.approx(2.3817, abs=1e-3)
    assert renyi_epsilon(Mechanism(1.1, 0.01, 10_000), 1e-5) == pytest.approx(5.632, abs=1e-3)
    assert loss_epsilon(Mechanism(1.1, 0.01, 10_000), 1e-5) == pytest.approx(5.193, abs=1e-3)


def test_gaussian_mechanism_without_sampling() -> None:
    """Balle & Wang 2018 (arXiv 1805.06530), theorem 8: T rounds are one with the noise over sqrt(T)."""
    noise, rounds, delta = 5.0, 100, 1e-5
    mu = math.sqrt(rounds) / noise

    def spent(epsilon: float) -> float:
        return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)) - delta

    exact = brentq(spent, 0, 100)
    assert loss_epsilon(Mechanism(noise, 1.0, rounds), delta) == pytest.approx(exact, abs=1e-4)
    assert renyi_divergence(noise, 1.0, 7.3) == pytest.approx(7.3 / (2 * noise**2), rel=1e-9)


def test_zero_rate_spends_nothing_and_zero_noise_everything() -> None:
    assert loss_epsilon(Mechanism(1.0, 0.0, 5), 1e-5) == 0.0
    assert renyi_epsilon(Mechanism(0.0, 0.1, 5), 1e-5) == loss_epsilon(Mechanism(0.0, 0.1, 5), 1e-5) == math.inf
    assert loss_epsilon(Mechanism(0.05, 1.0, 1), 1e-5) == math.inf
    with pytest.raises(ValueError, match="noise must be at least 0"):
        loss_epsilon(Mechanism(1.0, 1.5, 5), 1e-5)
