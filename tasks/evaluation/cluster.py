"""Distribute work to a Dask cluster, with results in order and identical to those of one process.

Workers with different source code, pinned packages or processor class are refused, because their results might differ
in the last bits.

Dask workers execute all code that they receive. Therefore the scheduler must be on this machine, or use TLS with
certificates of both sides.
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
"""Tasks submitted per thread of the cluster: one runs while the next waits."""
CALL = "10s"


def scheduler() -> str:
    """Return the address in NEORL_DASK_SCHEDULER; empty if it is unset.

    Raises:
        BadInput: if the address is malformed, or on another machine without TLS.
    """
    address = setting(DASK)
    if address and urlsplit(address).scheme != "tls" and not is_loopback(f"{urlsplit(address).hostname}:0"):
        raise BadInput(
            f"{DASK} must begin with tls:// for a scheduler on another machine, got {address}: start scheduler and "
            "workers with certificates (docs/how-to/scale-out.md)"
        )
    return address


@contextmanager
def cluster() -> Iterator[Client | None]:
    """Connect to the cluster in NEORL_DASK_SCHEDULER; yield None if the variable is unset, or in a task of the cluster.

    A task must not wait for other tasks of the cluster, because all workers could then wait for each other.

    Raises:
        BadInput: as `scheduler`.
        ServiceMissing: if no scheduler answers, or it has no workers.
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
            f"no Dask scheduler answers at {address}, got '{error}': start a scheduler there, or unset {DASK}"
        ) from error
    with client:
        if not client.nthreads():  # type: ignore[no-untyped-call]
            raise ServiceMissing(f"the Dask scheduler {address} has no workers: start a worker")
        yield client


def in_order(
    client: Client, function: Callable[..., Result], arguments: Iterable[Argument], *data: object
) -> Generator[Result | None, None, None]:
    """Run a function on the cluster for each argument, and yield the results in the order of the arguments.

    Args:
        function: function of one argument and the data; sent to the workers.
        arguments: possibly endless; read when workers become free.
        data: NumPy data that all tasks need, sent to each worker once.

    Yields:
        The result, or None if the task crashed every worker that ran the task.

    Raises:
        Refused: if a worker has different sources, packages or processor class.
        ServiceMissing: if the cluster is lost.
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
                # pure=False, because Dask would run tasks with equal arguments only once.
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
    """Check that all workers would give the same results as this machine. Call this before other code submits tasks.

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
            f"the Dask cluster of {DASK} was lost, got '{error}': start it again, then repeat the command"
        ) from error


def identity() -> Identity:
    """Return what may change the last bits of a result: digests of sources and packages, and the processor class."""
    return code_digest(), lock_digest(), processor_class()


def _with_identity(function: Callable[..., Result], *arguments: object) -> tuple[Identity, Result]:
    return identity(), function(*arguments)


def _refuse_another(ours: Identity, theirs: Identity) -> None:
    names = ("sources", "lock file", "processor")
    if differences := [name for name, one, other in zip(names, ours, theirs, strict=True) if one != other]:
        raise Refused(
            f"Dask workers differ from this machine in {', '.join(differences)}: start them from the same image"
        )


def _in_a_worker() -> bool:
    """Return whether this code runs in a task of a Dask worker."""
    from distributed import get_worker

    try:
        get_worker()
    except ValueError:
        return False
    return True
