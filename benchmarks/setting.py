"""What a benchmark is run at: the commit of its sources, which results name, and a home of its own."""

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
    """The last commit that changed the sources: others since then change no result.

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
    return git("log", "-1", "--format=%H", "--", *sources)


def when(result: Mapping[str, Any]) -> str:
    """On which day, at which commit and on what a part was measured, as far as it is known."""
    at = f" at {result['commit'][:7]}" if "commit" in result else ""
    return f"on {result['date']}{at}, {result['machine']}, JAX {result['jax']}"


@contextmanager
def own_home(folder: Path) -> Iterator[Home]:
    """A home in a folder, for this process and those that it starts, whose servers end with it.

    What a benchmark decides must not stand in the ledger of a home that is in use.

    Args:
        folder: of the home; what it holds already is gone on with.
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
