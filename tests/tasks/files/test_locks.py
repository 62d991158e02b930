"""File locks."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tasks.files.canonical import exclusive


def test_second_holder_waits_for_the_first(tmp_path: Path) -> None:
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


def test_on_held_may_refuse_to_wait(tmp_path: Path) -> None:
    calls: list[str] = []

    def refuse() -> None:
        calls.append("held")
        raise RuntimeError("held")

    with exclusive(tmp_path / "lock", refuse), pytest.raises(RuntimeError), exclusive(tmp_path / "lock", refuse):
        pass
    with exclusive(tmp_path / "lock", refuse):
        assert calls == ["held"]
    assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o600
