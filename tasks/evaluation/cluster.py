"""Work that the workers of a Dask cluster share, and that comes back in the order in which one process would do it.

Nothing depends on who does what: a task is a function of its arguments alone, and a worker whose sources, pinned
packages or kind of processor differ from this machine's is refused, for its last bits might differ.

Dask's own protocol executes what it is sent, so that a scheduler is reached over TLS with certificates of both sides,
or on this machine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from configs.environment import DASK, setting
from configs.errors import BadInput, Refused, ServiceMissing
from configs.federation import is_loopback
from tasks.files.provenance import code_digest, lock_digest, processor_class

if TYPE_CHECKING:
    from distributed import Client

Argument = TypeVar("Argument")
Result = TypeVar("Result")
Identity = tuple[str, str, str]
AHEAD = 2
"""Tasks that are handed out for each thread of the cluster: one is computed while the next one waits."""
CALL = "10s"
"""How long to wait for the scheduler."""


def scheduler() -> str:
    """The address that NEORL_DASK_SCHEDULER names; empty where it names none.

    Raises:
        BadInput: when the address is none, or that of another machine without TLS.
    """
    address = setting(DASK)
    if address and urlsplit(address).scheme != "tls" and not is_loopback(f"{urlsplit(address).hostname}:0"):
        raise BadInput(
            f"expected {DASK} to begin with tls:// where the scheduler is on another machine, got {address}: "
            "start scheduler and workers with certificates (docs/how-to/scale-out.md)."
        )
    return address


@contextmanager
def cluster() -> Iterator[Client | None]:
    """The cluster that NEORL_DASK_SCHEDULER names; None where it names none, or in one of its own tasks.

    A site of a fleet is retrained by a task of the cluster: were it to wait there for further tasks, all workers could
    come to wait, and nobody would work.

    Raises:
        BadInput: as `scheduler`.
        ServiceMissing: when no scheduler answers, or it has no workers.
    """
    address = scheduler()
    if not address or _in_a_worker():
        yield None
        return
    from distributed import Client

    try:
        client = Client(address, timeout=CALL)  # type: ignore[no-untyped-call]
    except (OSError, ValueError) as error:
        raise ServiceMissing(
            f"expected a Dask scheduler at {address} ({DASK}), got '{error}': start it, or unset the variable."
        ) from error
    with client:
        if not client.nthreads():  # type: ignore[no-untyped-call]
            raise ServiceMissing(f"expected workers at the Dask scheduler {address}, got none: start some.")
        yield client


def in_order(
    client: Client, function: Callable[..., Result], arguments: Iterable[Argument], *data: object
) -> Generator[Result | None, None, None]:
    """The function's results in the order of its arguments, which may have no end.

    Args:
        client: of the cluster.
        function: of one argument, the data, and nothing else; it is sent to the workers.
        arguments: taken as they are needed; the tasks that were handed out too many are given up at the end.
        data: what all tasks need, in arrays of NumPy, which is sent to a worker once.

    Yields:
        Results; None of a task that killed every worker which took it.

    Raises:
        Refused: when a worker has other sources, packages or another kind of processor.
        ServiceMissing: when the cluster is lost.
    """
    from distributed import KilledWorker

    ours, left, futures = identity(), iter(arguments), deque[Any]()
    none_left = object()
    with _while_it_lasts():
        kept = client.scatter(list(data), hash=False) if data else []  # type: ignore[no-untyped-call]
        most = AHEAD * max(sum(client.nthreads().values()), 1)  # type: ignore[no-untyped-call]
    try:
        while True:
            while len(futures) < most and (argument := next(left, none_left)) is not none_left:
                # Each is a task of its own, also where the same was asked for before.
                futures.append(client.submit(_with_identity, function, argument, *kept, pure=False))
            if not futures:
                return
            try:
                with _while_it_lasts():
                    theirs, result = futures[0].result()
            except KilledWorker:
                theirs, result = ours, None
            futures.popleft()
            _refuse_another(ours, theirs)
            yield result
    finally:
        client.cancel(list(futures), force=True)  # type: ignore[no-untyped-call]


def check_workers(client: Client) -> None:
    """Refuse a cluster that has a worker now whose results might differ, for tasks that others hand out.

    Args:
        client: of the cluster.

    Raises:
        Refused, ServiceMissing: as `in_order`.
    """
    ours = identity()
    with _while_it_lasts():
        found = client.run(identity)
    for theirs in found.values():
        _refuse_another(ours, theirs)


@contextmanager
def _while_it_lasts() -> Iterator[None]:
    from distributed.client import FutureCancelledError
    from distributed.comm.core import CommClosedError

    try:
        yield
    except (FutureCancelledError, CommClosedError, TimeoutError, OSError) as error:
        raise ServiceMissing(
            f"expected the Dask cluster of {DASK} to go on, got '{error}': start it again, then run the "
            "same command again."
        ) from error


def identity() -> Identity:
    """What the last bits of a result may depend on besides its arguments."""
    return code_digest(), lock_digest(), processor_class()


def _with_identity(function: Callable[..., Result], *arguments: object) -> tuple[Identity, Result]:
    return identity(), function(*arguments)


def _refuse_another(ours: Identity, theirs: Identity) -> None:
    names = ("sources", "lock file", "processor")
    if differences := [name for name, one, other in zip(names, ours, theirs, strict=True) if one != other]:
        raise Refused(
            "expected Dask workers with this machine's sources, pinned packages and kind of processor, got "
            f"others ({', '.join(differences)}): start the workers from the same image."
        )


def _in_a_worker() -> bool:
    """Whether this is a task of a Dask worker's."""
    from distributed import get_worker

    try:
        get_worker()
    except ValueError:
        return False
    return True
