"""Settings of benchmarks: the commit of their sources, and a home of their own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from benchmarks import setting
from configs.errors import BadInput
from configs.home import Home


def git(folder: Path, *words: str) -> str:
    known = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", *known, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_commit_is_the_last_change_of_the_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setting, "ROOT", tmp_path)
    git(tmp_path, "init", "-q")
    for name in ("core", "page"):
        (tmp_path / name).write_text("one")
        git(tmp_path, "add", name)
        git(tmp_path, "commit", "-qm", name)
    of_core, of_page = git(tmp_path, "rev-parse", "HEAD~1"), git(tmp_path, "rev-parse", "HEAD")
    assert setting.commit(["core"]) == of_core
    assert setting.commit(["core", "page"]) == of_page
    (tmp_path / "page").write_text("two")
    assert setting.commit(["core"]) == of_core
    with pytest.raises(BadInput, match="page has uncommitted changes: commit or discard them first"):
        setting.commit(["core", "page"])


@pytest.mark.parametrize("before", [None, "/elsewhere"])
def test_own_home_restores_the_environment(before: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if before is None:
        monkeypatch.delenv("NEORL_HOME", raising=False)
    else:
        monkeypatch.setenv("NEORL_HOME", before)

    def decide() -> None:
        with setting.own_home(tmp_path / "home") as home:
            assert Home.locate() == home
            home.folder("locks")
            raise BadInput("expected")

    with pytest.raises(BadInput, match="expected"):
        decide()
    assert os.environ.get("NEORL_HOME") == before
