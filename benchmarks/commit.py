"""The commit that a study is run at, which its results name."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from configs.errors import BadInput

ROOT = Path(__file__).resolve().parents[1]


def commit(sources: Sequence[str]) -> str:
    """The commit that the sources are at.

    Args:
        sources: files and folders that a result depends on.

    Raises:
        BadInput: when they differ from it.
    """

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()

    if changed := git("status", "--porcelain", "--", *sources):
        raise BadInput(
            f"expected sources as committed, got changes in {changed.split()[1]}: commit or drop them first."
        )
    return git("rev-parse", "HEAD")
