"""The setting of a benchmark: the commit of the sources, and a separate home."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from configs.errors import BadInput
from configs.home import Home

ROOT = Path(__file__).resolve().parents[1]


def commit(sources: Sequence[str]) -> str:
    """Return the last commit that changed the sources.

    Args:
        sources: files and folders that a result depends on.

    Raises:
        BadInput: if they differ from that commit.
    """

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()

    if changed := git("status", "--porcelain", "--", *sources):
        raise BadInput(f"{changed.split()[1]} has uncommitted changes: commit or discard them first.")
    return git("log", "-1", "--format=%H", "--", *sources)


def when(result: Mapping[str, Any]) -> str:
    """Return day, commit and machine of a measurement, as far as known."""
    at = f" at {result['commit'][:7]}" if "commit" in result else ""
    return f"on {result['date']}{at}, {result['machine']}, JAX {result['jax']}"


@contextmanager
def own_home(folder: Path) -> Iterator[Home]:
    """Yield a home in a folder for this process and child processes; stop the home's servers afterwards.

    Decisions of a benchmark must not be written to the ledger of a home that is in use.

    Args:
        folder: folder of the home; an existing home is continued.
    """
    from flows.services.servers import down

    home, before = Home(folder.resolve()), os.environ.get("NEORL_HOME")
    os.environ["NEORL_HOME"] = str(home.root)
    try:
        yield home
    finally:
        if home.root.exists():
            down(home)
        if before is None:
            del os.environ["NEORL_HOME"]
        else:
            os.environ["NEORL_HOME"] = before
