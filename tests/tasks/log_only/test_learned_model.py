"""A learned model is used only as its reference names it: its weights, and the errors that a drift is held against."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.errors import BadInput, Refused
from configs.home import Home
from neorl_core.networks import Normaliser
from neorl_core.plants import PLANTS
from neorl_core.training.optimisers import Recipe
from neorl_core.types import Transition
from neorl_core.world_model import dynamics
from tasks.data.store.episodes import Logs
from tasks.log_only.learned_model import HIDDEN, MEMBERS, FittedModel, keep_model, load_model
from tasks.references import LearnedModel
from tests.evidence import judged_record
from tests.judged import process_evidence

SPEC = PLANTS["double_mass"].spec


@pytest.mark.parametrize("altered", ["weights", "residuals"])
def test_neither_weights_nor_errors_may_be_others(altered: str, tmp_path: Path) -> None:
    files = {name: tmp_path / f"{name}.npz" for name in ("weights", "residuals")}
    for name, path in files.items():
        path.write_bytes(name.encode())
    parts = [hashlib.sha256(name.encode()).hexdigest() for name in files]
    digest = hashlib.sha256(json.dumps(parts, separators=(",", ":")).encode()).hexdigest()
    model = LearnedModel(digest=digest, **files, prediction=process_evidence().model)
    # The digests hold, so that the files are opened: they are no archives.
    with pytest.raises(BadInput):
        load_model(model, SPEC)
    files[altered].write_bytes(b"other")
    with pytest.raises(Refused, match=r"does not have the digest .*: retrain"):
        load_model(model, SPEC)


def test_a_model_is_found_in_a_home_that_moved_and_missed_in_a_sentence(tmp_path: Path) -> None:
    before, now = tmp_path / "old", tmp_path / "new"
    model = LearnedModel(
        digest="0" * 64,
        weights=before / "runs" / "vessel" / "models" / "abc" / "model.npz",
        residuals=before / "runs" / "vessel" / "models" / "abc" / "residuals.npz",
        prediction=process_evidence().model,
    )
    known = judged_record("vessel", "0" * 64, process_evidence(), model=model)
    found = known.model_copy(update={"dataset": known.dataset.at(before / "datasets" / "vessel")}).at(now)
    assert found.dataset.store == now / "datasets" / "vessel"
    moved = found.model
    assert moved is not None
    assert moved.weights == now / "runs" / "vessel" / "models" / "abc" / "model.npz"
    assert moved.residuals == now / "runs" / "vessel" / "models" / "abc" / "residuals.npz"
    with pytest.raises(Refused, match=r"model\.npz of the learned model 000000000000 is missing in .*: restore"):
        load_model(moved, SPEC)


@pytest.mark.slow
def test_a_model_that_is_kept_is_never_written_over_by_another(tmp_path: Path) -> None:
    o, a = SPEC.observation.size, SPEC.action.size
    model = dynamics.init(jax.random.key(0), o, a, HIDDEN, MEMBERS, Recipe(schedule="cosine", steps=1))
    scale = Normaliser(jnp.zeros(o), jnp.ones(o), jnp.zeros(a), jnp.ones(a))
    first = FittedModel(model, scale, (0.0, 1.0), np.ones(o), np.zeros(a, np.float32))
    x, u, zero = np.zeros((2, o), np.float32), np.zeros((2, a), np.float32), np.zeros(2, np.float32)
    held_out = Logs(Transition(x, u, zero, zero, x, zero), np.zeros(2, np.int64), np.zeros(1, np.int64), zero > 0)
    prediction = process_evidence().model

    def kept(found: FittedModel) -> LearnedModel:
        return keep_model(Home(tmp_path), SPEC.name, found, held_out, prediction)

    # The same run on the same data, as another processor or a changed version of this code would fit it.
    one, other = kept(first), kept(first._replace(rewards=(1.0, 1.0)))
    assert (load_model(one, SPEC).rewards, load_model(other, SPEC).rewards) == ((0.0, 1.0), (1.0, 1.0))
    assert kept(first) == one
