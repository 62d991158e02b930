"""ReBRAC against NumPy with layer norm, and in the limits of TD3 and TD3+BC."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from neorl_core.algorithms import REBRAC, TD3_BC, losses, rebrac, td3_bc
from neorl_core.networks import critics_apply
from neorl_core.training.preparation import next_actions, prepare
from neorl_core.types import Transition
from tests.by_hand import batch_of, forward, layers_of, spec, start


def state_apart(**overrides: Any) -> td3_bc.State:
    """A state with targets that differ from the online networks, as after an update."""
    state = start(REBRAC, REBRAC.Config(hidden=(5, 4), **overrides))
    return state._replace(
        actor_target=jax.tree.map(lambda x: x + 0.1, state.actor),
        critics_target=jax.tree.map(lambda x: x - 0.1, state.critics),
    )


def test_target_is_penalised_away_from_next_logged_action() -> None:
    q, action, logged = jnp.array([3.0, 2.0]), jnp.array([0.5, -0.5]), jnp.array([0.0, 0.5])
    given = (jnp.float32(1.0), jnp.float32(0.5))
    target = losses.penalised_td_target(*given, jnp.float32(0.0), q, jnp.float32(0.2), action, logged)
    assert float(target) == pytest.approx(1.0 + 0.5 * (2.0 - 0.2 * 1.25))
    assert float(losses.penalised_td_target(*given, jnp.float32(1.0), q, jnp.float32(0.2), action, logged)) == 1.0
    unknown = losses.penalised_td_target(
        *given, jnp.float32(0.0), q, jnp.float32(0.2), action, jnp.full_like(logged, jnp.inf)
    )
    assert float(unknown) == 2.0
    loss = losses.rebrac_actor_loss(jnp.float32(3.0), jnp.float32(2.0), jnp.float32(0.1), action, logged)
    assert float(loss) == pytest.approx(-6.0 + 0.125)


def normed_forward(params: dict[str, Any], x: np.ndarray) -> np.ndarray:
    """Dense, ReLU, then layer norm (as the authors order them), in NumPy."""
    layers = layers_of({k: v for k, v in params.items() if k.startswith("Dense")})
    for i, (kernel, bias) in enumerate(layers[:-1]):
        x = np.maximum(x @ kernel + bias, 0.0)
        x = (x - x.mean(axis=1, keepdims=True)) / np.sqrt(x.var(axis=1, keepdims=True) + 1e-6)
        scale = params[f"LayerNorm_{i}"]
        x = x * np.asarray(scale["scale"]) + np.asarray(scale["bias"])
    return np.asarray((x @ layers[-1][0] + layers[-1][1])[:, 0])


def test_targets_equal_the_numpy_derivation() -> None:
    with jax.enable_x64(True):
        state = state_apart(critic_penalty=0.3, discount=0.9, noise=0.4)
        batch, key = batch_of(np.random.default_rng(2), 16), jax.random.key(5)
        batch = batch._replace(next_action=batch.next_action.at[3].set(jnp.inf))
        o2, b2 = np.asarray(batch.next_observation), np.asarray(batch.next_action)
        noise = np.clip(0.4 * np.asarray(jax.random.normal(key, (16, 2))), -0.5, 0.5)
        a2 = np.clip(np.tanh(forward(layers_of(state.actor_target), o2)[0]) + noise, -1, 1)
        q2 = np.min([normed_forward(c, np.concatenate([o2, a2], axis=1)) for c in state.critics_target], axis=0)
        penalty = np.where(np.isinf(b2).any(axis=1), 0.0, np.sum((a2 - b2) ** 2, axis=1))
        assert penalty[3] == 0.0
        y = np.asarray(batch.reward) + 0.9 * (1 - np.asarray(batch.terminated)) * (q2 - 0.3 * penalty)
        np.testing.assert_allclose(jax.jit(rebrac.targets)(state, batch, key), y, rtol=1e-9)


@pytest.mark.slow
def test_gradients_agree_with_finite_differences() -> None:
    with jax.enable_x64(True):
        state, batch = state_apart(), batch_of(np.random.default_rng(2), 8)
        penalty = jnp.asarray(0.3)
        action = REBRAC.act(state, batch.observation)
        weight = 1.0 / jnp.mean(jnp.abs(jnp.min(critics_apply(state.critics, batch.observation, action), axis=0)))

        def fixed(actor: Any) -> jax.Array:
            action = REBRAC.act(state._replace(actor=actor), batch.observation)
            q = jnp.min(critics_apply(state.critics, batch.observation, action), axis=0)
            return jnp.mean(penalty * jnp.sum((action - batch.action) ** 2, axis=1) - weight * q)

        check_grads(jax.jit(fixed), (state.actor,), order=1, modes="rev", rtol=1e-5)
        ours = jax.jit(jax.grad(rebrac.actor_loss))(state.actor, state.critics, batch, penalty)
        for one, other in zip(
            jax.tree.leaves(ours), jax.tree.leaves(jax.jit(jax.grad(fixed))(state.actor)), strict=True
        ):
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)
        y = jnp.asarray(np.random.default_rng(3).normal(size=8))
        loss = jax.jit(lambda c: td3_bc.critic_loss(c, batch, y))
        check_grads(loss, (state.critics,), order=1, modes="rev", rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("actor_penalty", "alpha"), [(0.0, 1e9), (0.25, 2.0)])
def test_without_critic_penalty_it_is_td3_bc(actor_penalty: float, alpha: float) -> None:
    """A loss of `-lambda Q + beta A |.|^2 / A` equals TD3+BC's with alpha = 1 / (beta A), up to a factor.

    Without either penalty it is TD3, the limit of a large alpha. Adam ignores the factor. TD3+BC itself is compared
    with NumPy.
    """
    with jax.enable_x64(True):
        rates = {"actor_lr": 0.01, "critic_lr": 0.02, "tau": 0.1}
        state = state_apart(actor_penalty=actor_penalty, critic_penalty=0.0, critics=3, **rates)
        batches = batch_of(np.random.default_rng(4), 2, 16)
        hyper = start(TD3_BC, TD3_BC.Config(alpha=alpha, **rates)).hyper
        ours, _ = jax.jit(REBRAC.update)(state, batches, jax.random.key(1))
        theirs, _ = jax.jit(TD3_BC.update)(state._replace(hyper=hyper), batches, jax.random.key(1))
        for name in ("actor", "critics", "actor_target", "critics_target"):
            pairs = zip(jax.tree.leaves(getattr(ours, name)), jax.tree.leaves(getattr(theirs, name)), strict=True)
            for one, other in pairs:
                np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6, err_msg=name)
        # In other implementations the target follows the actor before its step and lags by one.
        groups = map(jax.tree.leaves, (ours.actor_target, state.actor_target, ours.actor))
        for target, before, new in zip(*groups, strict=True):
            np.testing.assert_allclose(target, 0.9 * before + 0.1 * new, rtol=1e-12)
        assert "LayerNorm_1" in state.critics[0]
        assert "LayerNorm_0" not in state.actor


def test_next_action_comes_from_the_continuing_row() -> None:
    observation = np.float32([[0, 0], [1, 0], [2, 0], [7, 0], [8, 0], [9, 9]])
    after = np.float32([[1, 0], [2, 0], [3, 0], [8, 0], [9, 0], [9, 9]])
    action = np.float32([[0.0], [1.0], [2.0], [3.0], [4.0], [5.0]])
    zeros = np.zeros(6, np.float32)
    # Rows 0 to 2 and 3 to 4 are episodes; row 5 does not continue row 4 and has no successor.
    raw = Transition(observation, action, zeros, zeros, after, zeros)
    found = np.float32([1, 2, np.inf, 4, np.inf, np.inf])
    np.testing.assert_array_equal(next_actions(raw)[:, 0], found)
    normaliser, data = prepare(raw, spec(2, 1)._replace(action=spec(2, 1).action._replace(low=(-10.0,), high=(10.0,))))
    half, centre = float(normaliser.action_half_range[0]), float(normaliser.action_centre[0])
    np.testing.assert_allclose(data.next_action[:, 0], (found - centre) / half, rtol=1e-6)
    given = raw._replace(next_action=action + 1)
    np.testing.assert_array_equal(next_actions(given), action + 1)


def test_missing_next_actions_are_rejected() -> None:
    batches = batch_of(np.random.default_rng(4), 2, 16)._replace(next_action=None)
    with pytest.raises(ValueError, match="rebrac needs transitions with next_action, got next_action=None"):
        jax.eval_shape(REBRAC.update, start(REBRAC, REBRAC.Config(hidden=(5, 4))), batches, jax.random.key(1))
