"""Concurrent writing of Data Docs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tasks.data.store.expectations import _replace


def test_concurrent_validations_leave_one_complete_page(tmp_path: Path) -> None:
    folder, pages = tmp_path / "docs", [str(number) * 1000 for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(50):
            assert set(pool.map(lambda page: _replace(folder, page), pages)) == {folder / "index.html"}
            assert (folder / "index.html").read_text() in pages
            assert list(tmp_path.iterdir()) == [folder]
