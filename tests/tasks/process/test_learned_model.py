"""A learned model is used only as its reference names it: its weights, and the errors that a drift is held against."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from configs.errors import BadInput, Refused
from neorl_core.plants import PLANTS
from tasks.process.learned_model import load_model
from tasks.references import LearnedModel
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
    with pytest.raises(Refused, match=r"expected the learned model .*, got another: retrain"):
        load_model(model, SPEC)
