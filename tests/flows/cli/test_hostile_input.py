"""Hostile files in commands: exit code, one sentence, no traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from neorl_core.plants import PLANTS
from neorl_core.safety.composite import make_composite
from tasks.files.arrays import npz_bytes
from tasks.models.bundles.bundle import save_bundle
from tasks.models.bundles.manifest import ARRAYS, MANIFEST
from tests.configs.test_hostile import LAUGHS

PROJECT = Path(__file__).parents[3]
NEORL = "import sys; from flows.cli.main import main; main()"
DEEP = "[" * 200_000
MAPPED = "plant: chemical_reactor\ndata: {mapping: mapping.yaml}\n"


def outcome(*command: str) -> tuple[int, str]:
    """Return the exit code and the error output."""
    done = subprocess.run(
        [sys.executable, *command], cwd=PROJECT, capture_output=True, text=True, timeout=120, check=False
    )
    assert "Traceback" not in done.stderr + done.stdout
    return done.returncode, done.stderr.strip()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("run", "mapping", "said"),
    [
        (LAUGHS, "", "an alias"),
        ("train: " + DEEP, "", "nested more than 20 levels deep"),
        ("plant: double_mass\nseed: " + "9" * 4000, "", "the limit is 40"),
        ("plant: !!python/name:os.system\n", "", "a tag"),
        ("#" * 2**20, "", "more than 262,144 bytes"),
        ("{[a]: b}", "", "a key that is a list"),
        (MAPPED, LAUGHS, "an alias"),
        (MAPPED, "tags: " + DEEP, "nested more than 20 levels deep"),
    ],
    ids=["aliases", "deep", "digits", "tag", "long", "key", "mapping of aliases", "deep mapping"],
)
def test_hostile_configuration(home: Path, tmp_path: Path, run: str, mapping: str, said: str) -> None:
    (tmp_path / "run.yaml").write_text(run)
    (tmp_path / "mapping.yaml").write_text(mapping)
    (tmp_path / "log.csv").write_text("time,tag,value\n")
    code, error = outcome("-c", NEORL, "retrain", str(tmp_path / "run.yaml"), "--data", str(tmp_path / "log.csv"))
    assert (code, len(error.splitlines())) == (2, 1)
    assert error.startswith(f"neorl: {tmp_path}")
    assert said in error


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (MANIFEST, DEEP.encode(), "was altered"),
        (MANIFEST, b"{}", "was altered"),
        (MANIFEST, b" " * 2**23, "at most 4194304 are read"),
        (ARRAYS, npz_bytes({}), "has SHA-256"),
    ],
    ids=["deep", "empty", "long", "arrays"],
)
def test_hostile_bundles(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    save_bundle(tmp_path, make_composite(PLANTS["chemical_reactor"]), "chemical_reactor")
    (tmp_path / name).write_bytes(content)
    code, error = outcome("-m", "tasks.evaluation.servability", str(tmp_path), "", "1", "20000")
    assert (code, len(error.splitlines())) == (1, 1)
    assert said in error
