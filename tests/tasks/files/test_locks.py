"""A file's lock is held by one at a time."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tasks.files.locks import exclusive


def test_exclusive_is_exclusive(tmp_path: Path) -> None:
    order: list[str] = []

    def second() -> None:
        with exclusive(tmp_path / "folder" / "lock"):
            order.append("second")

    with exclusive(tmp_path / "folder" / "lock"):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(0.2)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_whoever_finds_the_lock_held_is_asked_and_may_refuse(tmp_path: Path) -> None:
    asked: list[str] = []

    def refuse() -> None:
        asked.append("held")
        raise RuntimeError("held")

    with exclusive(tmp_path / "lock", refuse), pytest.raises(RuntimeError), exclusive(tmp_path / "lock", refuse):
        pass
    with exclusive(tmp_path / "lock", refuse):
        assert asked == ["held"]
    assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o600
