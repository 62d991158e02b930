"""The home's folders belong to their owner alone, and a home that cannot be made is one sentence."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from configs.errors import BadInput
from configs.home import Home

PROJECT = Path(__file__).parents[2]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_folders_are_their_owners_alone(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        found = Home(tmp_path / "a" / "home").folder("datasets", "double_mass")
    finally:
        os.umask(before)
    assert [mode(path) for path in (found, found.parent, tmp_path / "a" / "home")] == [0o700] * 3
    assert mode(tmp_path / "a") == 0o755


def test_a_folder_of_an_earlier_version_is_closed_and_the_users_own_left_alone(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    for path in (tmp_path, tmp_path / "logs"):
        path.chmod(0o755)
    assert mode(Home(tmp_path).folder("logs")) == 0o700
    assert mode(tmp_path) == 0o755


def test_a_home_that_cannot_be_made_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.touch()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for named in (file, file / "below", tmp_path / "loop", "~nobody-of-this-name/x"):
        monkeypatch.setenv("NEORL_HOME", str(named))
        with pytest.raises(BadInput, match="point NEORL_HOME to a folder that you may write to"):
            Home.locate()
    # Nobody, root included, makes a folder under /proc.
    with pytest.raises(BadInput, match="cannot use the folder /proc/neorl"):
        Home(Path("/proc/neorl")).folder("logs")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "logs").touch()
    with pytest.raises(BadInput, match=r"cannot use the folder .*logs"):
        Home(tmp_path / "home").folder("logs", "today")


CLOSED = """
import os, sys
from flows.cli.main import run

# Imports all that it needs, which may lie where the other account does not look.
os.environ["NEORL_HOME"] = f"{sys.argv[1]}/none"
run(["status"])
os.environ["NEORL_HOME"] = f"{sys.argv[1]}/home"
# Nothing is closed to the superuser.
if os.getuid() == 0:
    os.setuid(65534)
sys.exit(run(["status"]))
"""


@pytest.mark.parametrize(
    ("closed", "sentence"),
    [
        ("", "neorl: this account may not read the home {}: run the command as its owner"),
        ("services.json", "neorl: cannot access {} (Permission denied): change its owner or mode"),
    ],
)
def test_what_is_somebody_elses_in_a_home_is_one_sentence(closed: str, sentence: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "home", closed).resolve()
        path.parent.mkdir(exist_ok=True)
        path.touch() if closed else path.mkdir()
        for each, mode in ((Path(folder), 0o755), (path.parent, 0o755), (path, 0o000)):
            each.chmod(mode)
        command = [sys.executable, "-c", CLOSED, folder]
        done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
        path.chmod(0o700)
    assert done.returncode == 2
    assert done.stderr.startswith(sentence.format(path))
    assert done.stderr.count("\n") == 1
