"""A plant's code is found in the project, digested before it is executed, and refused where it leaves either."""

from __future__ import annotations

import hashlib
import importlib
import json
import py_compile
import shutil
import sys
from pathlib import Path

import pytest

from configs.errors import BadInput, Refused
from tasks.models.plants.known import plant_named
from tasks.models.plants.opening import open_run
from tasks.models.user_code.loading import find_code, import_code, project_of
from tests.installed_plant import install

FILES = ("plants/physics/outflow.py", "plants/tank.py")


def put(project: Path, name: str, text: str) -> Path:
    path = project / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_file_and_a_module_name_the_same_code_and_nothing_runs_to_find_it(project: Path) -> None:
    put(project, "plants/tank.py", "raise RuntimeError('executed')\nfrom plants.physics import outflow\n")
    found = find_code("plants/tank.py", project)
    assert found == find_code("plants.tank:PLANT", project) == find_code("plants/tank.py:PLANT", project)
    assert (found.module, found.attribute, found.project) == ("plants.tank", "PLANT", project)
    other = find_code("plants/tank.py:OTHER", project)
    assert (other.attribute, other.digest != found.digest) == ("OTHER", True)
    sources = {
        file.removesuffix(".py").replace("/", "."): hashlib.sha256((project / file).read_bytes()).hexdigest()
        for file in FILES
    }
    # The digest by hand: canonical JSON of the plant's name, the modules' names and the SHA-256 of their files.
    text = json.dumps({"code": "plants.tank:PLANT", "sources": sources}, sort_keys=True, separators=(",", ":"))
    assert found.digest == hashlib.sha256(text.encode()).hexdigest()
    with pytest.raises(BadInput, match=r"tank\.py .*, got RuntimeError 'executed': fix it"):
        import_code(found)


@pytest.mark.parametrize("helper", ["plants/physics/outflow.py", "plants/physics/__init__.py", "plants/tank.py"])
def test_a_change_of_any_module_that_is_imported_changes_the_digest(project: Path, helper: str) -> None:
    before = find_code("plants/tank.py", project)
    put(project, helper, (project / helper).read_text() + "\n# changed\n" if (project / helper).exists() else "")
    assert find_code("plants/tank.py", project).digest != before.digest
    with pytest.raises(Refused, match=f"must be {before.digest}: restore the original"):
        import_code(before)


def test_what_is_not_imported_changes_nothing(project: Path) -> None:
    before = find_code("plants/tank.py", project)
    put(project, "plants/other.py", "x = 1\n")
    put(project, "notes.txt", "notes\n")
    assert find_code("plants/tank.py", project) == before


def test_relative_imports_and_imports_inside_functions_count(project: Path) -> None:
    put(project, "plants/deep/__init__.py", "from . import one\n")
    put(project, "plants/deep/one.py", "def late():\n    from ..physics import outflow\n    return outflow\n")
    put(project, "plants/own.py", "from plants.deep import one\nPLANT = one.late()\n")
    before = find_code("plants/own.py", project)
    assert import_code(before).PLANT.GRAVITY == 9.81
    put(project, "plants/physics/outflow.py", "GRAVITY = 1.62\n")
    after = find_code("plants/own.py", project)
    assert after.digest != before.digest
    assert import_code(after).PLANT.GRAVITY == 1.62


@pytest.mark.parametrize("reference", ["../outside.py", "/etc/outside.py", "plants/../../outside.py", "plants/link.py"])
def test_a_path_that_leaves_the_project_is_refused(project: Path, reference: str) -> None:
    outside = put(project.parent, "outside.py", "raise RuntimeError\n")
    (project / "plants" / "link.py").symlink_to(outside)
    with pytest.raises(BadInput, match=r"is outside the project .*: move the file there"):
        find_code(reference, project)


def test_a_helper_behind_a_link_out_of_the_project_is_not_imported(project: Path) -> None:
    outside = put(project.parent, "outside.py", "GRAVITY = 0\n")
    (project / "plants" / "link.py").symlink_to(outside)
    put(project, "plants/own.py", "from plants.link import GRAVITY\n")
    with pytest.raises(BadInput, match=r"ModuleNotFoundError 'No module named .plants\.link'"):
        import_code(find_code("plants/own.py", project))


@pytest.mark.parametrize("reference", [":X", "..:X", "/:X", "plants\0.py", "./:PLANT"])
def test_what_names_no_module_is_refused(project: Path, reference: str) -> None:
    with pytest.raises(BadInput, match=r"write the code of a plant as 'folder/file\.py' or"):
        find_code(reference, project)


def test_what_a_process_had_imported_before_is_imported_anew(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook that has the helper of before must not have it stand behind the digest of the new one."""
    helper = put(project, "plain_helper.py", "VALUE = 1\n")
    put(project, "plants/first.py", "PLANT = 0\n")
    put(project, "plants/second.py", "from plain_helper import VALUE\n")
    monkeypatch.syspath_prepend(str(project))
    importlib.import_module("plain_helper")
    import_code(find_code("plants/first.py", project))
    helper.write_text("VALUE = 2\n")
    assert import_code(find_code("plants/second.py", project)).VALUE == 2


@pytest.mark.parametrize("reference", ["plants/none.py", "plants.none:PLANT", "json:PLANT", "tasks.stages:PLANT"])
def test_what_is_not_in_the_project_is_refused(project: Path, reference: str) -> None:
    with pytest.raises(BadInput, match="has no module"):
        find_code(reference, project)


def test_code_in_the_home_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEORL_HOME", str(project / "state"))
    put(project, "state/datasets/tank.py", "raise RuntimeError\n")
    with pytest.raises(BadInput, match=r"the code of a plant .*datasets.* is inside the home"):
        find_code("state/datasets/tank.py", project)


def test_code_that_is_no_python_is_refused(project: Path) -> None:
    put(project, "plants/tank.py", "def (:\n")
    with pytest.raises(BadInput, match=r"'plants/tank\.py' or an import of it is not valid Python"):
        find_code("plants/tank.py", project)


def test_a_module_by_a_computed_name_is_not_executed(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(project, "plants/secret.py", "raise RuntimeError('executed')\n")
    put(project, "plants/own.py", "import importlib\nimportlib.import_module('plants.' + 'secret')\n")
    monkeypatch.syspath_prepend(str(project))
    with pytest.raises(BadInput, match=r"No module named .plants\.secret."):
        import_code(find_code("plants/own.py", project))
    # At the top level Python's own path may find it: then it is refused, also where a step of the plant asks for it.
    put(project, "secret.py", "raise RuntimeError('executed')\n")
    late = "import importlib\n\ndef step() -> None:\n    importlib.import_module('sec' + 'ret')\n"
    put(project, "plants/own.py", late)
    module = import_code(find_code("plants/own.py", project))
    with pytest.raises(Refused, match=r"'secret' of .* is imported by a computed name"):
        module.step()
    put(project, "plants/own.py", f"{late}\nstep()\n")
    with pytest.raises(Refused, match=r"'secret' of .* is imported by a computed name"):
        import_code(find_code("plants/own.py", project))


def test_a_compiled_file_beside_the_source_is_not_read(project: Path) -> None:
    source = put(project, "plants/own.py", "PLANT = 'evil'\n")
    compiled = py_compile.compile(str(source), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    put(project, "plants/own.py", "PLANT = 'good'\n")
    assert Path(str(compiled)).is_file()
    assert import_code(find_code("plants/own.py", project)).PLANT == "good"


def test_a_module_with_the_name_of_an_installed_package_is_refused(project: Path) -> None:
    put(project, "numpy.py", "PLANT = 1\n")
    with pytest.raises(BadInput, match=r"'numpy' in .* is also an installed package"):
        import_code(find_code("numpy.py", project))


def test_two_projects_with_the_same_names_do_not_mix(project: Path) -> None:
    other = Path(shutil.copytree(project, project.parent / "other"))
    put(other, "plants/physics/outflow.py", (project / FILES[0]).read_text().replace("9.81", "1.62"))
    ours = import_code(find_code("plants/tank.py", project))
    theirs = import_code(find_code("plants/tank.py", other))
    assert float(ours.velocity(0.5)) == pytest.approx(9.81**0.5)
    assert float(theirs.velocity(0.5)) == pytest.approx(1.62**0.5)


def test_the_project_is_the_folder_of_the_runs_file_or_the_one_above_configs(project: Path) -> None:
    below = put(project, "configs/tank.yaml", "plant: plants/tank.py\n")
    assert project_of(below) == project_of(project / "tank.yaml") == project
    assert open_run(below).source == open_run(project / "tank.yaml").source == find_code("plants/tank.py", project)


@pytest.fixture
def installed(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that offers the tank as an entry point, on the path with its metadata."""
    site = install(project.parent / "site")
    monkeypatch.syspath_prepend(str(site))
    for name in [name for name in sys.modules if name.partition(".")[0] == "tank_package"]:
        monkeypatch.delitem(sys.modules, name)
    return site


def test_an_installed_package_offers_a_plant_and_its_sources_are_digested(installed: Path, project: Path) -> None:
    run = open_run(put(project, "run.yaml", "plant: tank\n"))
    known = plant_named("tank")
    assert (run.plant, run.source) == ("tank", known.source)
    assert known.spec.horizon == 40
    put(installed, "tank_package/physics/outflow.py", "raise RuntimeError\n")
    assert open_run(project / "run.yaml").source != run.source


def test_an_entry_point_whose_plant_has_another_name_is_refused(installed: Path) -> None:
    put(installed, "tank_package-1.dist-info/entry_points.txt", "[neorl.plants]\nbasin = tank_package.tank:PLANT\n")
    with pytest.raises(BadInput, match=r"plant basin of .* has the name 'tank' in its spec"):
        plant_named("basin")
