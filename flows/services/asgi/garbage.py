"""Garbage collection by a thread of its own, so that no finaliser which waits can hold up a server's event loop.

A cursor of SQLite whose write was refused keeps its statement, and resets it when it is freed, for which it waits until
its connection is idle. Where the collector comes to such a cursor on the event loop's thread, while another thread
waits for a lock on the same connection, the loop stands still until that wait ends, after a minute by Prefect's
setting; and who holds the lock waits for the loop. A thread that collects may wait: the loop goes on, the lock comes
free, and so does the thread, until when no other garbage is collected.

Finalisers run on that thread, as they run on any thread that allocates otherwise.

Source: CPython 3.11's `Modules/_sqlite/cursor.c` (`cursor_clear`); seen so in Prefect 3.8.8 with aiosqlite on SQLite.
"""

from __future__ import annotations

import gc
import threading
import time
from itertools import count

TICK = 0.1
"""Seconds between collections of the youngest objects."""
MIDDLE, OLDEST = 10, 600
"""Ticks between collections that take in those which have lasted through one or two."""


def collect_beside() -> None:
    """Take garbage collection over from the threads that allocate, once; what is there by now is kept."""
    gc.disable()
    gc.collect()
    gc.freeze()
    threading.Thread(target=_collect, name="garbage", daemon=True).start()


def _collect() -> None:
    for tick in count(1):
        time.sleep(TICK)
        gc.collect(2 if tick % OLDEST == 0 else 1 if tick % MIDDLE == 0 else 0)
