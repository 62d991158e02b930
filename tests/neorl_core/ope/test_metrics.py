"""Quality measures of estimates against SciPy and by hand."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from scipy.stats import spearmanr

from neorl_core.ope.metrics import coverage, rank_correlation, regret_at_k


def test_metrics() -> None:
    rng = np.random.default_rng(0)
    estimate, truth = np.round(rng.normal(size=(2, 12)), 1)
    # Source: SciPy's spearmanr, with ties.
    np.testing.assert_allclose(
        rank_correlation(jnp.asarray(estimate), jnp.asarray(truth)), spearmanr(estimate, truth)[0], atol=1e-6
    )
    # By hand: the two top-ranked policies have values 1 and 3, the best has 5.
    estimate, truth = jnp.asarray([4.0, 3.0, 2.0, 1.0]), jnp.asarray([1.0, 3.0, 5.0, 0.0])
    assert float(regret_at_k(estimate, truth, 1)) == 4
    assert float(regret_at_k(estimate, truth, 2)) == 2
    assert float(regret_at_k(estimate, truth, 3)) == 0
    assert float(coverage(jnp.asarray([0.0, 0.0]), jnp.asarray([1.0, 1.0]), jnp.asarray([0.5, 2.0]))) == 0.5
