"""Garbage collection in a separate thread, so that a blocking finaliser cannot stop a server's event loop.

When SQLite refuses a write, the cursor keeps the statement. Freeing the cursor resets the statement, and waits until
the connection is idle. If the collector frees it in the event loop's thread while another thread waits for a lock on
the connection, the loop stops until that wait ends after a minute (Prefect's setting), because the holder of the lock
needs the loop. In a separate thread the collector may wait: the loop continues and the lock is released.

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
    """Disable automatic garbage collection and collect in a thread; objects that exist now are never collected."""
    gc.disable()
    gc.collect()
    gc.freeze()
    threading.Thread(target=_collect, name="garbage", daemon=True).start()


def _collect() -> None:
    for tick in count(1):
        time.sleep(TICK)
        gc.collect(2 if tick % OLDEST == 0 else 1 if tick % MIDDLE == 0 else 0)
