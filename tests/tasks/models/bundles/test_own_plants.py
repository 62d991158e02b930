"""Bundles of a user's own plant: loaded with the code that they were made with, which they do not name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from configs.code import UserCode
from configs.errors import Refused
from neorl_core.safety.composite import make_composite
from tasks.evaluation.servability import serve_check
from tasks.files.canonical import canonical_json, digest_json
from tasks.models.bundles.bundle import is_current, load_bundle, save_bundle
from tasks.models.bundles.manifest import MANIFEST, stored_digest
from tasks.models.plants.known import plant_of_code
from tasks.models.user_code.loading import find_code

OWN = Path(__file__).parents[3] / "own_project"


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path, str, UserCode]:
    """(project, bundle, its digest, the plant's code)."""
    monkeypatch.setenv("NEORL_HOME", str(tmp_path / "home"))
    project = Path(shutil.copytree(OWN, tmp_path / "project", ignore=shutil.ignore_patterns("__pycache__")))
    code = find_code("plants/tank.py", project)
    known = plant_of_code(code)
    folder = tmp_path / "bundle"
    return project, folder, save_bundle(folder, make_composite(known.simulator()), known), code


def rewritten(folder: Path, **changed: str) -> None:
    """The manifest with other values, consistent in itself."""
    manifest = json.loads((folder / MANIFEST).read_bytes())
    del manifest["sha256"]
    manifest |= changed
    (folder / MANIFEST).write_bytes(canonical_json(manifest | {"sha256": digest_json(manifest)}))


def test_a_bundle_is_loaded_and_served_with_the_code_that_it_was_made_with(
    saved: tuple[Path, Path, str, UserCode],
) -> None:
    _, folder, digest, code = saved
    plant, _ = load_bundle(folder, digest, code)
    assert plant.spec.name == "tank"
    assert stored_digest(folder) == digest
    assert is_current(folder, plant_of_code(code))
    found = serve_check(folder, digest, code, calls=5, budget_us=1e9)
    assert found.reasons == ()
    assert found.answers == 16


@pytest.mark.parametrize("file", ["plants/tank.py", pytest.param("plants/physics/outflow.py", marks=pytest.mark.slow)])
def test_changed_code_is_refused_before_it_is_executed(saved: tuple[Path, Path, str, UserCode], file: str) -> None:
    project, folder, digest, code = saved
    path = project / file
    path.write_text(path.read_text() + "\nraise RuntimeError('executed')\n")
    now = find_code("plants/tank.py", project)
    with pytest.raises(
        Refused, match=f"code of plant tank has digest {now.digest}, must be {code.digest}: restore the original"
    ):
        load_bundle(folder, digest, now)
    # A fresh process that was told the digest of before finds the change as well.
    found = serve_check(folder, digest, code, calls=1)
    assert len(found.reasons) == 1
    assert f"has digest {now.digest}" in found.reasons[0]


def test_a_bundle_names_no_code(saved: tuple[Path, Path, str, UserCode], monkeypatch: pytest.MonkeyPatch) -> None:
    project, folder, digest, code = saved
    monkeypatch.chdir(project)
    text = (folder / MANIFEST).read_text()
    assert str(project) not in text
    assert "plants" not in text
    with pytest.raises(Refused, match=r"the code of plant 'tank', which .* needs, is missing: name its file"):
        load_bundle(folder, digest)
    # One that says it was made with other code does not choose what is executed, nor passes for the certified one.
    path = project / "plants" / "evil.py"
    path.write_text("raise RuntimeError('executed')\n")
    rewritten(folder, code=find_code("plants/evil.py", project).digest)
    with pytest.raises(Refused, match="code of plant tank has digest"):
        load_bundle(folder, digest, code)
    rewritten(folder, code="plants/evil.py")
    with pytest.raises(Refused, match="code of plant tank has digest"):
        load_bundle(folder, None, code)
    rewritten(folder, source="plants/evil.py", code=code.digest)
    with pytest.raises(Refused, match="is malformed"):
        load_bundle(folder, digest, code)


def test_the_digest_of_a_composite_covers_the_code(saved: tuple[Path, Path, str, UserCode], tmp_path: Path) -> None:
    project, _, digest, _ = saved
    path = project / "plants" / "physics" / "outflow.py"
    path.write_text(path.read_text() + "# Nothing that changes a number.\n")
    known = plant_of_code(find_code("plants/tank.py", project))
    assert save_bundle(tmp_path / "other", make_composite(known.simulator()), known) != digest
