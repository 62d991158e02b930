"""Digests of sources and packages that cached results depend on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jaxlib
import pytest

from configs.home import Home
from tasks.data.synthetic.episodes import generate
from tasks.files import provenance
from tasks.files.canonical import file_sha256

PROJECT = Path(__file__).parents[3]
TRAIN = ("tasks.training.train", "neorl_core.algorithms.td3_bc", "neorl_core.plants.power_grid")
CALLS = {
    "code": "p.code_digest()",
    "lock": "p.lock_digest()",
    "train": f"p.sources_digest(*{TRAIN!r})",
    "plant": "p.sources_digest('neorl_core.plants.power_grid')",
    "gates": "p.sources_digest('tasks.gates')",
}


def _elsewhere(root: Path) -> dict[str, str]:
    """Digests from a new process that imports the copy at `root`."""
    code = (
        f"import sys; sys.path.insert(0, {str(root)!r})\n"
        "from tasks.files import provenance as p\n"
        f"assert p.__file__.startswith({str(root)!r}), p.__file__\n"
        f"print({', '.join(CALLS.values())})\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    return dict(zip(CALLS, done.stdout.split(), strict=True))


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the packages and the lock."""
    for name in provenance.PACKAGES:
        shutil.copytree(PROJECT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PROJECT / "requirements.lock", tmp_path)
    return tmp_path


def test_digests_do_not_depend_on_the_folder(copy: Path) -> None:
    first = _elsewhere(copy)
    assert len(set(first.values())) == len(CALLS)
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in first.values())
    # Other files do not count.
    (copy / "neorl_core" / "notes.txt").write_text("notes")
    assert _elsewhere(copy) == first


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "digests"),
    [
        pytest.param("flows/cli/plants.py", {"code"}, marks=pytest.mark.slow),
        ("tasks/gates.py", {"code", "gates"}),
        pytest.param("tasks/report.py", {"code"}, marks=pytest.mark.slow),
        # Other algorithms and plants do not matter to a training; modules that its algorithm imports do.
        ("neorl_core/algorithms/iql.py", {"code"}),
        ("neorl_core/algorithms/losses.py", {"code", "train"}),
        pytest.param("neorl_core/plants/supply_chain.py", {"code"}, marks=pytest.mark.slow),
        # A module of a sub-package, imported through two others.
        pytest.param("neorl_core/plants/power_grid/feeder33.py", {"code", "train", "plant"}, marks=pytest.mark.slow),
        pytest.param("neorl_core/training/loop.py", {"code", "train"}, marks=pytest.mark.slow),
        ("requirements.lock", {"lock"}),
    ],
)
def test_a_change_alters_only_digests_that_use_the_module(copy: Path, changed: str, digests: set[str]) -> None:
    first = _elsewhere(copy)
    with (copy / changed).open("a") as file:
        file.write("# a comment\n")
    second = _elsewhere(copy)
    assert {name for name in CALLS if second[name] != first[name]} == digests


def test_without_a_lock_file_installed_versions_are_digested(copy: Path) -> None:
    (copy / "requirements.lock").unlink()
    assert re.fullmatch("[0-9a-f]{64}", _elsewhere(copy)["lock"])


def test_modules_moved_into_a_new_package_are_still_found(copy: Path) -> None:
    grid = copy / "neorl_core" / "plants" / "power_grid"
    package = grid / "lines"
    package.mkdir()
    (package / "__init__.py").write_text("")
    shutil.move(grid / "feeder33.py", package / "feeder33.py")
    for path in grid.glob("*.py"):
        moved = path.read_text().replace("power_grid.feeder33", "power_grid.lines.feeder33")
        path.write_text(moved.replace("power_grid import feeder33", "power_grid.lines import feeder33"))
    first = _elsewhere(copy)
    with (package / "feeder33.py").open("a") as file:
        file.write("# a comment\n")
    second = _elsewhere(copy)
    assert {name for name in CALLS if second[name] != first[name]} == {"code", "train", "plant"}


def test_unknown_module_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'tasks\.nothing' is not a module of neorl_core, "):
        provenance.sources_digest("tasks.nothing")


def test_lock_digest_is_that_of_the_file() -> None:
    assert provenance.lock_digest() == file_sha256(PROJECT / "requirements.lock")


def test_the_processor_class_names_system_machine_and_vectors() -> None:
    assert re.fullmatch(r"[a-z]+-[a-z0-9_]+-(avx512f|avx2|asimd|scalar)", provenance.processor_class())


def test_compiled_programs_are_kept_by_version_and_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = provenance.compiled_programs(Home(tmp_path))
    assert here.name == f"{jaxlib.__version__}-{provenance.processor_class()}"
    monkeypatch.setattr(provenance, "processor_class", lambda: "linux-x86_64-scalar")
    assert provenance.compiled_programs(Home(tmp_path)) == here.with_name(f"{jaxlib.__version__}-linux-x86_64-scalar")


@pytest.mark.slow
def test_a_second_training_compiles_nothing(tmp_path: Path) -> None:
    file = tmp_path / "log.hdf5"
    generate("double_mass", "pid", 3, 0, file)
    clean = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")} | {"NEORL_HOME": str(tmp_path / "home")}
    kept = []
    for out in ("one", "two"):
        command = [sys.executable, "-m", "flows", "train", str(file), "--plant", "double_mass", "--algorithm", "td3_bc"]
        command += ["--updates", "200", "--out", str(tmp_path / out)]
        subprocess.run(command, cwd=PROJECT, env=clean, check=True, capture_output=True)
        folder = provenance.compiled_programs(Home(tmp_path / "home"))
        kept.append({path.name for path in folder.iterdir() if not path.name.endswith("-atime")})
    assert kept[0]
    assert kept[0] == kept[1]
