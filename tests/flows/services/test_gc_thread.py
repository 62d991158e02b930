"""Freeing a cursor of a busy connection while the event loop has the lock that the connection needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LOOP = """
import asyncio, sqlite3, sys, threading, weakref
from flows.services.asgi.gc_thread import collect_in_thread

def connect(seconds):
    return sqlite3.connect(sys.argv[1], isolation_level=None, check_same_thread=False, timeout=seconds)

class Ring:
    pass

async def main():
    holder, waiter = connect(0), connect(0)
    holder.execute("PRAGMA journal_mode=WAL")
    holder.execute("CREATE TABLE noted (number INTEGER)")
    if sys.argv[2] == "beside":
        collect_in_thread()
    holder.execute("BEGIN IMMEDIATE")
    try:
        refused = waiter.cursor()
        refused.execute("INSERT INTO noted VALUES (1)")
    except sqlite3.OperationalError:
        pass
    waiter.execute(f"PRAGMA busy_timeout = {sys.argv[3]}")
    begun = threading.Event()
    waiting = asyncio.get_running_loop().run_in_executor(None, lambda: begun.set() or waiter.execute("BEGIN IMMEDIATE"))
    begun.wait()
    await asyncio.sleep(1)
    ring = Ring()
    ring.items = [refused, ring]
    gone = weakref.ref(ring)
    del refused, ring
    kept = [[] for _ in range(100_000)]
    await asyncio.sleep(0.5)
    holder.execute("ROLLBACK")
    await waiting
    while gone() is not None:
        await asyncio.sleep(0.1)

asyncio.run(main())
"""


@pytest.mark.parametrize(("who", "milliseconds", "said"), [("beside", 60_000, ""), ("loop", 3_000, "is locked")])
def test_garbage_that_waits_for_a_lock_does_not_stop_the_loop(
    tmp_path: Path, who: str, milliseconds: int, said: str
) -> None:
    words = [sys.executable, "-c", LOOP, str(tmp_path / "a.db"), who, str(milliseconds)]
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, timeout=120, cwd=Path(__file__).parents[3]
    )
    assert done.returncode == bool(said), done.stderr
    assert said in done.stderr
