"""Policy files: plain arrays that anyone can evaluate, bit for bit what was saved, and noticed when altered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.errors import BadInput, NeoRLError, Refused
from neorl_core.history import stacked_spec
from neorl_core.networks import Normaliser, Policy, actor_init, policy_act
from neorl_core.plants import PLANTS
from neorl_core.recurrent import Recurrence
from neorl_core.types import History
from tasks.models.bundles.policy_file import MadeBy, load_policy, save_policy

SPEC = PLANTS["double_mass"].spec
MADE_BY = MadeBy(algorithm="td3_bc", seed=3, hyperparameters={"alpha": 2.5, "hidden": [8, 8]})


def policy(seed: int = 0) -> Policy:
    rng = np.random.default_rng(seed)
    sizes = SPEC.observation.size, SPEC.action.size
    arrays = [jnp.asarray(rng.uniform(0.5, 2, sizes[i // 2]), jnp.float32) for i in range(4)]
    return Policy(actor_init(jax.random.key(seed), *sizes, (8, 8)), Normaliser(*arrays))


def by_numpy(path: Path, observation: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What the file says a policy is, without JAX: normalise, ReLU layers, tanh, physical action."""
    with np.load(path, allow_pickle=False) as file:
        n = {name: file[f"normaliser/{name}"] for name in Normaliser._fields[:4]}
        x = (observation - n["mean"]) / n["scale"]
        layers = sum(name.endswith("/kernel") for name in file.files)
        for i in range(layers):
            x = x @ file[f"params/Dense_{i}/kernel"] + file[f"params/Dense_{i}/bias"]
            x = np.tanh(x) if i == layers - 1 else np.maximum(x, 0)
    return n["action_centre"] + n["action_half_range"] * x


def test_what_comes_back_is_what_was_saved(tmp_path: Path) -> None:
    saved = policy()
    digest = save_policy(tmp_path / "a.npz", saved, SPEC, MADE_BY)
    found, spec, made_by = load_policy(tmp_path / "a.npz")
    assert (spec, made_by) == (SPEC, MADE_BY)
    assert jax.tree.structure(found) == jax.tree.structure(saved)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(saved), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    x = np.random.default_rng(1).normal(size=(50, SPEC.observation.size)).astype(np.float32)
    np.testing.assert_array_equal(policy_act(found, x), policy_act(saved, x))
    np.testing.assert_allclose(by_numpy(tmp_path / "a.npz", x), policy_act(saved, x), atol=1e-5)
    assert save_policy(tmp_path / "b.npz", saved, SPEC, MADE_BY) == digest
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    assert save_policy(tmp_path / "b.npz", policy(1), SPEC, MADE_BY) != digest
    assert save_policy(tmp_path / "b.npz", saved, SPEC._replace(dt=0.3), MADE_BY) != digest


def test_a_recurrent_policy_comes_back_with_the_history_that_it_reads(tmp_path: Path) -> None:
    seen = stacked_spec(SPEC, History((3,) + (0,) * (SPEC.observation.size - 1), (1,) * SPEC.action.size))
    assert seen.history is not None
    sizes = seen.observation.size, seen.action.size
    actor = actor_init(jax.random.key(0), *sizes, (8,), Recurrence(seen.history, 4))
    saved = Policy(actor, Normaliser(*(jnp.ones(sizes[i // 2]) for i in range(4))))
    save_policy(tmp_path / "a.npz", saved, seen, MADE_BY)
    found = load_policy(tmp_path / "a.npz").policy
    assert jax.tree.structure(found) == jax.tree.structure(saved)
    x = np.random.default_rng(1).normal(size=(9, seen.observation.size)).astype(np.float32)
    np.testing.assert_array_equal(policy_act(found, x), policy_act(saved, x))
    save_policy(tmp_path / "b.npz", saved, seen._replace(history=None), MADE_BY)
    with pytest.raises(BadInput, match="a network for different signals"):
        load_policy(tmp_path / "b.npz")


def altered(path: Path, **changes: Any) -> Path:
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    for name, change in changes.items():
        arrays[name.replace("__", "/")] = change(arrays[name.replace("__", "/")])
    np.savez(path.with_name("altered.npz"), **arrays)
    return path.with_name("altered.npz")


def test_an_altered_file_is_refused(tmp_path: Path) -> None:
    save_policy(tmp_path / "a.npz", policy(), SPEC, MADE_BY)

    def wider(about: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        held = json.loads(about.tobytes())
        held["spec"]["action"]["high"][0] = 99.0
        return np.frombuffer(json.dumps(held).encode(), np.uint8)

    for change in (
        {"normaliser__mean": lambda x: np.nextafter(x, np.float32(9))},
        {"params__Dense_0__kernel": lambda x: x.T},
        {"about": wider},
    ):
        with pytest.raises(Refused, match="was altered"):
            load_policy(altered(tmp_path / "a.npz", **change))
    data = bytearray((tmp_path / "a.npz").read_bytes())
    data[data.index(np.asarray(policy().normaliser.mean).tobytes()) + 1] ^= 1
    (tmp_path / "flipped.npz").write_bytes(data)
    with pytest.raises(NeoRLError):
        load_policy(tmp_path / "flipped.npz")


def test_what_is_no_policy_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="there is no policy file"):
        load_policy(tmp_path / "none.npz")
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    (tmp_path / "text.npz").write_text("no archive")
    bomb = np.empty(1, object)
    bomb[0] = {"a": 1}
    np.savez(tmp_path / "pickle.npz", about=bomb)
    for name in ("other", "text", "pickle"):
        with pytest.raises(BadInput, match=rf"{name}\.npz is no policy file, got") as caught:
            load_policy(tmp_path / f"{name}.npz")
        assert "\n" not in str(caught.value)
