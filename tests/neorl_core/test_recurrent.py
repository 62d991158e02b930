"""The GRU over a history equals torch, and learns from earlier observations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neorl_core.algorithms.bc import BC
from neorl_core.fit import FitResult, fit
from neorl_core.history import parse_history, stacked_size, stacked_spec, stacked_transitions
from neorl_core.networks import actor_apply, actor_init, policy_act
from neorl_core.plants import PLANTS
from neorl_core.recurrent import Recurrence, _sequence, gru_apply, gru_init, make_recurrence
from neorl_core.training.population import configure
from neorl_core.types import History, Transition

GOLDEN = Path(__file__).parents[1] / "golden" / "torch.npz"
PLANT = PLANTS["industrial_benchmark"]
BACK = 3
"""Steps after which the logged controller of these tests answers a signal."""


def test_the_steps_of_a_history_by_hand() -> None:
    """Two signals, two earlier values of the second, and three of the action: o0 o1 | o1' o1'' | a' a'' a'''."""
    assert _sequence(History((0, 2), (3,))).tolist() == [[3, 6], [2, 5], [1, 4]]
    # Signals with a shorter history repeat their oldest value.
    assert _sequence(History((1, 3), (0,))).tolist() == [[2, 5], [2, 4], [2, 3], [0, 1]]
    assert _sequence(History((0, 0), (2,))).tolist() == [[3], [2]]


def test_state_equals_torch() -> None:
    with np.load(GOLDEN) as golden:
        found = {name: golden[name] for name in golden.files}
    steps, rows, read = found["given"].shape
    # Three signals with equally many earlier values, newest first, and one without.
    history = History((*[steps - 1] * read, 0), ())
    past = found["given"][:-1][::-1].transpose(1, 2, 0).reshape(rows, -1)
    x = np.concatenate([found["given"][-1], np.full((rows, 1), 7.0, np.float32), past], axis=1)
    params = {
        "history": history._replace(action=(0,)),
        "input": {"kernel": found["input_kernel"], "bias": found["input_bias"]},
        "state": {"kernel": found["state_kernel"], "bias": found["state_bias"]},
    }
    after = gru_apply(params, jnp.asarray(x))
    np.testing.assert_array_equal(after[:, : read + 1], x[:, : read + 1])
    np.testing.assert_allclose(after[:, read + 1 :], found["state"], atol=1e-6)


def test_initial_weights() -> None:
    fresh = gru_init(jax.random.key(0), Recurrence(History((2, 0), (1,)), 16))
    assert fresh["input"]["kernel"].shape == (2, 48)
    for square in np.split(np.asarray(fresh["state"]["kernel"]), 3, axis=1):
        np.testing.assert_allclose(square @ square.T, np.eye(16), atol=1e-5)
    assert not np.any(fresh["state"]["bias"])
    assert not np.any(fresh["input"]["bias"])


def delayed(steps: int) -> tuple[Transition, History]:
    """An episode with actions that respond to the observation `BACK` steps before."""
    rng, spec = np.random.default_rng(0), PLANT.spec
    low, high = (np.float32(x) for x in (spec.observation.low, spec.observation.high))
    seen = rng.uniform(low, high, (steps + 1, spec.observation.size)).astype(np.float32)
    velocity = spec.observation.names.index("velocity")
    told = (seen[:, velocity] - low[velocity]) / (high - low)[velocity] * 2 - 1
    answer = np.concatenate([np.zeros(BACK, np.float32), told[:-BACK]])[:steps]
    nothing = np.zeros(steps, np.float32)
    actions = np.repeat(answer[:, None], spec.action.size, axis=1) * np.float32(spec.action.high) * 0.9
    rows = Transition(seen[:-1], actions, nothing, nothing, seen[1:], nothing)
    history = parse_history({"velocity": BACK + 2}, spec)
    assert history is not None
    return rows, history


def learned(rows: Transition, history: History, algorithm: str, updates: int, chunk: int = 700) -> FitResult:
    stacked = stacked_transitions(history, rows, np.array([0]), rows.action[:1])
    own: dict[str, Any] = {"gru": 12, "hidden": [16], "actor_lr": 3e-3}
    if algorithm == "bptt":
        own |= {"model_hidden": [8], "horizon": 3, "starts": 8, "warm_up_updates": updates // 2}
    return fit(stacked, stacked_spec(PLANT.spec, history), algorithm, updates=updates, overrides=own, chunk=chunk)


def test_cloning_learns_from_history() -> None:
    rows, history = delayed(1_000)
    policy = learned(rows, history, "bc", 700).policies[0]
    stacked = stacked_transitions(history, rows, np.array([0]), rows.action[:1])
    half = (np.float32(PLANT.spec.action.high) - np.float32(PLANT.spec.action.low)) / 2
    error = (policy_act(policy, jnp.asarray(stacked.observation)) - rows.action) / half
    assert np.mean(error**2) < 0.05 * np.mean((rows.action / half) ** 2)
    # The outputs do not depend on the batch size.
    one = policy_act(policy, jnp.asarray(stacked.observation[7]))
    np.testing.assert_allclose(one, policy_act(policy, jnp.asarray(stacked.observation))[7], atol=1e-5)


@pytest.mark.parametrize("algorithm", ["td3_bc", *(pytest.param(x, marks=pytest.mark.slow) for x in ("iql", "bptt"))])
def test_learners_train_every_weight_and_resume_exactly(algorithm: str) -> None:
    rows, history = delayed(400)
    once, cut = (learned(rows, history, algorithm, 24, chunk).policies[0] for chunk in (24, 8))
    fresh = actor_init(jax.random.key(0), stacked_size(history), PLANT.spec.action.size, (16,), Recurrence(history, 12))
    assert jax.tree.structure(once.params) == jax.tree.structure(fresh)
    for ours, theirs in zip(jax.tree.leaves(once.params), jax.tree.leaves(cut.params), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert all(np.any(leaf) for leaf in jax.tree.leaves(once.params["gru"]))


def test_recurrence_needs_a_history() -> None:
    with pytest.raises(ValueError, match="gru: 8 needs a history"):
        make_recurrence(PLANT.spec, 8)
    assert make_recurrence(PLANT.spec, 0) is None


def test_batch_equals_single_rows() -> None:
    history = History((2, 0, 0, 0, 1, 0), (1, 0, 0))
    params = actor_init(jax.random.key(1), stacked_size(history), 3, (8,), Recurrence(history, 4))
    x = jax.random.normal(jax.random.key(2), (2, 5, stacked_size(history)))
    each = jax.vmap(jax.vmap(lambda row: actor_apply(params, row)))(x)
    np.testing.assert_allclose(actor_apply(params, x), each, atol=1e-6)


def test_full_configuration_round_trip() -> None:
    """A policy file contains all settings of its algorithm, `gru: 0` among them."""
    every = BC.Config()._asdict()
    assert configure(BC, every) == BC.Config()
    with pytest.raises(ValueError, match="gru of bc must be a value such as 0, got -1"):
        configure(BC, {**every, "gru": -1})
