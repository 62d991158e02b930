"""Planning by gradients through a model, against minimisers in closed form."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neorl_core.control.mpc import RecedingParams, receding


def test_plan_equals_finite_horizon_regulator() -> None:
    # x⁺ = 0.9 x + u, cost Σ x⁺² + u²: backward Riccati, p_H = 0, gains k = 0.9 (1 + p) / (2 + p).
    horizon, a, start, p = 8, 0.9, 2.0, 0.0
    gains: list[float] = []
    for _ in range(horizon):
        k = a * (1 + p) / (2 + p)
        p = (1 + p) * (a - k) ** 2 + k**2
        gains.insert(0, k)
    x, best = start, []
    for k in gains:
        best.append(-k * x)
        x = a * x - k * x

    def predict(seen: jax.Array, action: jax.Array) -> tuple[jax.Array, jax.Array]:
        return a * seen + action, jnp.zeros(0)

    def cost(seen: jax.Array, action: jax.Array, following: jax.Array, margins: jax.Array) -> jax.Array:
        return jnp.sum(following**2 + action**2)

    controller = receding(predict, cost, horizon, steps=4000)
    seen = jnp.asarray([start])
    for low in (-3.0, -0.5):
        params = RecedingParams(rate=0.01, low=(low,), high=(1.0,))
        plan, action = jax.jit(controller.act)(params, controller.init(params, seen), seen, jnp.zeros(1))
        if low == -3.0:
            assert float(action[0]) == pytest.approx(best[0], abs=2e-3)
            # The rest of the plan is shifted by one step.
            np.testing.assert_allclose(low + 4.0 * plan[:-1, 0], best[1:], atol=2e-3)
        else:
            assert float(action[0]) == pytest.approx(low, abs=1e-6)
