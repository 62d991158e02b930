"""What results are filed under: digests of sources and packages that change with them and with nothing else."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from tasks.adapters import provenance
from tasks.adapters.canonical import file_sha256

PROJECT = Path(__file__).parents[1]
PACKAGES = ("neorl_core", "tasks", "configs")
NAMES = ("core_digest", "plants_digest", "code_digest", "lock_digest")


def _elsewhere(root: Path) -> dict[str, str]:
    """The digests in a process of its own that imports the copy at `root`."""
    code = (
        f"import sys; sys.path.insert(0, {str(root)!r})\n"
        "from tasks.adapters import provenance as p\n"
        f"assert p.__file__.startswith({str(root)!r}), p.__file__\n"
        f"print(*(getattr(p, name)() for name in {NAMES!r}))\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    return dict(zip(NAMES, done.stdout.split(), strict=True))


def test_digests_are_of_the_sources_wherever_they_lie(tmp_path: Path) -> None:
    for name in PACKAGES:
        shutil.copytree(PROJECT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PROJECT / "requirements.lock", tmp_path)
    first = _elsewhere(tmp_path)
    assert len(set(first.values())) == 4
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in first.values())
    # What is not a source does not count.
    (tmp_path / "neorl_core" / "notes.txt").write_text("notes")
    assert _elsewhere(tmp_path) == first

    with (tmp_path / "tasks" / "gates.py").open("a") as file:
        file.write("# a comment\n")
    changed = _elsewhere(tmp_path)
    assert {name for name in NAMES if changed[name] != first[name]} == {"code_digest"}

    (tmp_path / "neorl_core" / "plants" / "another.py").write_text("")
    changed = _elsewhere(tmp_path)
    assert {name for name in NAMES if changed[name] != first[name]} == {"code_digest", "core_digest", "plants_digest"}

    (tmp_path / "requirements.lock").write_text("")
    assert _elsewhere(tmp_path)["lock_digest"] != first["lock_digest"]
    # A wheel is installed without the lock: the installed versions stand in.
    (tmp_path / "requirements.lock").unlink()
    assert re.fullmatch("[0-9a-f]{64}", _elsewhere(tmp_path)["lock_digest"])


def test_the_lock_is_named_by_its_file() -> None:
    assert provenance.lock_digest() == file_sha256(PROJECT / "requirements.lock")


def test_the_processor_class_names_system_machine_and_vectors() -> None:
    assert re.fullmatch(r"[a-z]+-[a-z0-9_]+-(avx512f|avx2|asimd|scalar)", provenance.processor_class())
