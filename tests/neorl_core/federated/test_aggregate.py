"""Aggregates equal Flower's, and withstand hostile sites."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neorl_core.federated.aggregate import Aggregate, krum, median, trimmed_mean, weighted_mean

GOLDEN = np.load(Path(__file__).parents[2] / "golden" / "federated.npz")
CONFIG = json.loads(str(GOLDEN["config"]))
OURS: dict[str, Aggregate] = {
    "mean": weighted_mean,
    "median": median,
    "trimmed": trimmed_mean(CONFIG["trimmed"]),
    "krum": krum(CONFIG["hostile"]),
    "multi_krum": krum(CONFIG["hostile"], CONFIG["kept"]),
}


def stacked() -> tuple[Any, Any]:
    weights = GOLDEN["examples"] / GOLDEN["examples"].sum()
    return {"weights": jnp.asarray(GOLDEN["weights"]), "bias": jnp.asarray(GOLDEN["bias"])}, jnp.asarray(weights)


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("theirs", ["", "older_"])
def test_equals_flower(name: str, theirs: str) -> None:
    with jax.enable_x64(True):
        found = OURS[name](*stacked())
        for part, value in found.items():
            np.testing.assert_allclose(value, GOLDEN[f"{theirs}{name}_{part}"], rtol=0, atol=1e-7)


@pytest.mark.parametrize("lie", [-1e6, np.nan, np.inf])
@pytest.mark.parametrize("name", ["median", "trimmed", "krum", "multi_krum"])
def test_two_hostile_sites_do_not_move_a_robust_aggregate_far(name: str, lie: float) -> None:
    honest = 1.0 + 0.01 * jax.random.normal(jax.random.key(0), (12, 5))
    lying = honest.at[jnp.array([2, 9])].set(lie)
    weights = jnp.full(12, 1 / 12)
    assert abs(OURS[name](lying, weights) - 1.0).max() < 0.03
    assert not abs(weighted_mean(lying, weights) - 1.0).max() < 1e5


@pytest.mark.parametrize("log_weight", [120.0, 1e6, np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("name", ["median", "trimmed", "krum", "multi_krum"])
def test_a_hostile_weight_does_not_move_a_robust_aggregate_far(name: str, log_weight: float) -> None:
    """A weight that makes those of all others 0 in float32, or without a finite sum."""
    honest = 1.0 + 0.01 * jax.random.normal(jax.random.key(0), (12, 5))
    lying = honest.at[2].set(1e3)
    weights = jax.nn.softmax(jnp.full(12, 4.1).at[2].set(log_weight))
    assert abs(OURS[name](lying, weights) - 1.0).max() < 0.03


def test_krum_weights_sites_equally_without_a_sum() -> None:
    x = jnp.asarray([[0.0], [1.0], [2.0], [3.0], [100.0]])
    assert krum(0, 2)(x, jnp.asarray([0.0, 0.0, 0.0, 0.0, 1.0])) == 1.5


def test_a_hand_worked_trimmed_mean_and_krum() -> None:
    x = jnp.asarray([[0.0], [1.0], [2.0], [3.0], [100.0]])
    assert trimmed_mean(0.2)(x, jnp.full(5, 0.2)) == 2.0
    # Without a hostile site a score sums the three nearest of four: 1 + 4 + 9, 1 + 1 + 4, 1 + 1 + 4, 9 + 4 + 1, ...
    assert krum(0)(x, jnp.full(5, 0.2)) == 1.0
    assert krum(0, 2)(x, jnp.asarray([0.2, 0.1, 0.3, 0.2, 0.2])) == pytest.approx(1.75)


def test_invalid_settings_are_rejected() -> None:
    with pytest.raises(ValueError, match="krum with hostile 2 needs more than 6 sites"):
        krum(2)(jnp.zeros((6, 1)), jnp.full(6, 1 / 6))
    with pytest.raises(ValueError, match="trimmed share must be in"):
        trimmed_mean(0.5)
