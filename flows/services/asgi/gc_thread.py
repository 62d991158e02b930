"""Garbage collection in a separate thread, so that a blocking finaliser cannot stop a server's event loop.

When SQLite refuses a write, the cursor keeps the statement. Freeing the cursor waits until the connection is idle. If
the garbage collector frees the cursor in the event loop's thread, the loop stops as long as another thread waits for a
lock on the connection. The holder of the lock cannot release the lock without the loop, so everything stops until a
time limit of a minute. In a separate thread the collector may wait: the loop continues, and the lock is released.

Source: CPython 3.11's `Modules/_sqlite/cursor.c` (`cursor_clear`); seen in Prefect 3.8.8 with aiosqlite on SQLite.
"""

from __future__ import annotations

import gc
import threading
import time
from itertools import count

TICK = 0.1
"""Seconds between collections of generation 0."""
MIDDLE, OLDEST = 10, 600
"""Ticks between collections of generations 1 and 2."""


def collect_in_thread() -> None:
    """Replace automatic garbage collection by a thread. Objects that exist now are never collected."""
    gc.disable()
    gc.collect()
    gc.freeze()
    threading.Thread(target=_collect, name="garbage", daemon=True).start()


def _collect() -> None:
    for tick in count(1):
        time.sleep(TICK)
        gc.collect(2 if tick % OLDEST == 0 else 1 if tick % MIDDLE == 0 else 0)
