"""How a coordinator reaches its sites: over Flower, or within this process, which is the same to all above."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from configs.errors import NeoRLError, Refused
from configs.federation import Federation, Network
from tasks.federation.transport import environment
from tasks.federation.transport.frames import NOTHING, Arrays, Frame, Pipe

if TYPE_CHECKING:
    from collections.abc import Iterator

HELLO = "hello"
"""What a site answers with its name, where no key says who it is."""
LEEWAY = 10.0
"""Seconds that Flower keeps a message beyond the time that an answer is waited for: who is late is said here."""
LOOK = 0.5
"""Seconds between two looks for sites that have joined."""


class Message(NamedTuple):
    """What is asked or answered: JSON, and arrays by name."""

    text: str
    arrays: Arrays = NOTHING


class Lost(NamedTuple):
    """Why a site's answer is missing."""

    why: Literal["absent", "late", "failed"]
    """It was not connected; it did not answer in time; it answered that it would or could not."""
    detail: str = ""


class Reach(Protocol):
    """A way to the sites."""

    def exchange(self, asked: Mapping[str, Message], seconds: float) -> dict[str, Message | Lost]:
        """Ask sites and wait for their answers.

        Args:
            asked: what each is asked, by its name.
            seconds: how long answers are waited for.

        Returns:
            An answer of each, or why there is none.
        """

    def joined(self, seconds: float) -> None:
        """Wait until all sites are connected, or so long."""


Answer = Callable[[Message], Message]
"""What a site does with a message; an error is told to the coordinator as one sentence."""


class Within:
    """Sites within this process, asked one after the other: a federation as a study."""

    def __init__(self, sites: Mapping[str, Answer]) -> None:
        self._sites = sites

    def exchange(self, asked: Mapping[str, Message], seconds: float) -> dict[str, Message | Lost]:
        """As `Reach.exchange`; nobody is late."""
        found: dict[str, Message | Lost] = {}
        for name, message in asked.items():
            try:
                found[name] = self._sites[name](message)
            except NeoRLError as error:
                found[name] = Lost("failed", str(error))
        return found

    def joined(self, seconds: float) -> None:
        """They are."""


class OverFlower:
    """Sites behind a SuperLink; a key says who a node is, or where there is none, its own word."""

    def __init__(self, pipe: Pipe, nodes: Mapping[str, int], names: frozenset[str]) -> None:
        self._pipe, self._names = pipe, names
        self._known, self._nodes = bool(nodes), dict(nodes)
        self._numbers = count(1)

    def exchange(self, asked: Mapping[str, Message], seconds: float) -> dict[str, Message | Lost]:
        """As `Reach.exchange`."""
        ends, here = time.monotonic() + seconds, self._connected()
        sent = {name: Frame("ask", *message, node=here[name]) for name, message in asked.items() if name in here}
        answers = self._ask(sent, ends)
        late, absent = Lost("late", f"no answer within {seconds:g} s"), Lost("absent", "it is not connected")
        return {name: answers.get(name, late if name in here else absent) for name in asked}

    def joined(self, seconds: float) -> None:
        """As `Reach.joined`."""
        ends = time.monotonic() + seconds
        while len(self._connected()) < len(self._names) and time.monotonic() < ends:
            time.sleep(LOOK)

    def _connected(self) -> dict[str, int]:
        """Nodes of the sites that are connected, by name."""
        self._pipe.send(Frame("nodes"))
        frame = self._next("nodes", time.monotonic() + environment.STARTS)
        online = set(json.loads(frame.text)) if frame else set()
        if not self._known:
            self._nodes = {name: node for name, node in self._nodes.items() if node in online}
            strange = sorted(online - set(self._nodes.values()))
            told = self._ask({str(node): Frame("ask", HELLO, node=node) for node in strange}, time.monotonic() + 10)
            for number, answer in told.items():
                if isinstance(answer, Message) and answer.text in self._names:
                    self._nodes[answer.text] = int(number)
        return {name: node for name, node in self._nodes.items() if node in online}

    def _ask(self, sent: Mapping[str, Frame], ends: float) -> dict[str, Message | Lost]:
        waiting, found = dict[int, str](), dict[str, Message | Lost]()
        for name, frame in sent.items():
            number = next(self._numbers)
            waiting[number] = name
            left = max(ends - time.monotonic(), 0.0)
            self._pipe.send(frame._replace(number=number, seconds=left + LEEWAY))
        while waiting and (came := self._next("answer", ends)):
            # What is not waited for any more comes from a round that went on without it.
            if came.number in waiting:
                answer = Message(came.text, came.arrays) if came.kind == "answer" else Lost("failed", came.text)
                found[waiting.pop(came.number)] = answer
        return found

    def _next(self, kind: Literal["nodes", "answer"], ends: float) -> Frame | None:
        """The next frame of a kind, or a failure where an answer was expected; what belongs to nobody is dropped."""
        kinds = ("nodes",) if kind == "nodes" else ("answer", "failed")
        while (left := ends - time.monotonic()) > 0:
            try:
                frame = self._pipe.receive(left)
            except EOFError as error:
                raise Refused("expected the SuperLink to run, got its end: see its log, and run again.") from error
            if frame and frame.kind in kinds:
                return frame
        return None


@contextmanager
def over_flower(asked: Federation, folder: Path, beside: Path) -> Iterator[OverFlower]:
    """Run a SuperLink for as long as the context lasts.

    Args:
        asked: its network and sites.
        folder: for Flower's log and files.
        beside: the folder that paths in the file are relative to.

    Raises:
        ServiceMissing: when Flower is not installed.
        BadInput: when it does not start.
    """
    network = asked.network
    control = f"{environment.HOST}:{environment.free_port()}"
    arguments = [f"--fleet-api-address={network.address}", f"--control-api-address={control}"]
    arguments += ["--disable-runtime-dependency-installation"]
    authority, keys = "", dict[str, str]()
    if network.tls is None:
        arguments.append("--insecure")
    else:
        from tasks.federation.transport.credentials import AUTHORITY, public_pem

        arguments += _certificates(network, beside)
        authority = (beside / network.tls / AUTHORITY).read_text()
        keys = {name: public_pem(site.key) for name, site in asked.sites.items() if site.key}
    link = environment.start(
        "superlink",
        folder,
        arguments,
        app="--serverappio-api-address",
        control_address=control,
        authority=authority,
        keys=keys,
    )
    try:
        yield OverFlower(link.pipe, _ready(link), frozenset(asked.sites))
    finally:
        link.stop()


def _certificates(network: Network, beside: Path) -> list[str]:
    from tasks.federation.transport.credentials import AUTHORITY, CERTIFICATE, KEY

    assert network.tls is not None
    named = {"--ssl-certfile": CERTIFICATE, "--ssl-keyfile": KEY, "--ssl-ca-certfile": AUTHORITY}
    paths = {option: beside / network.tls / name for option, name in named.items()}
    for path in paths.values():
        if not path.is_file():
            raise Refused(f"expected {path.name} in {path.parent}, got none: run 'neorl federate certificate'.")
    return [*(f"{option}={path}" for option, path in paths.items()), "--enable-supernode-auth"]


def _ready(link: environment.Flower) -> dict[str, int]:
    try:
        frame = link.pipe.receive(environment.STARTS)
    except EOFError as error:
        raise link.failure() from error
    if frame is None:
        raise link.failure()
    found: dict[str, int] = json.loads(frame.text)
    return found
