"""Connections from the coordinator to its sites: by Flower, or within this process."""

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
from tasks.federation.transport import flower_process
from tasks.federation.transport.frames import NOTHING, Arrays, Frame, Pipe

if TYPE_CHECKING:
    from collections.abc import Iterator

HELLO = "hello"
"""Message to which a site without a key answers with the site's name."""
LEEWAY = 10.0
"""Seconds by which Flower's time-out is longer than this module's, so that this module reports late sites."""
POLL = 0.5
"""Seconds between checks for new sites."""


class Message(NamedTuple):
    """A question or answer: JSON, and arrays by name."""

    text: str
    arrays: Arrays = NOTHING


class MissingAnswer(NamedTuple):
    why: Literal["absent", "late", "failed"]
    """Not connected, no answer in time, or an error at the site."""
    detail: str = ""


class Transport(Protocol):
    """A connection to the sites."""

    def exchange(self, questions: Mapping[str, Message], seconds: float) -> dict[str, Message | MissingAnswer]:
        """Send questions and wait for the answers.

        Returns:
            Answer by site, or the reason why it is missing.
        """

    def wait_for_sites(self, seconds: float) -> None:
        """Wait until all sites are connected or the time is over."""


Answer = Callable[[Message], Message]
"""Function by which a site answers a message. If the function raises an error, the coordinator gets the text."""


class InProcess:
    """Sites in this process, asked in turn, for studies."""

    def __init__(self, sites: Mapping[str, Answer]) -> None:
        self._sites = sites

    def exchange(self, questions: Mapping[str, Message], seconds: float) -> dict[str, Message | MissingAnswer]:
        answers: dict[str, Message | MissingAnswer] = {}
        for name, message in questions.items():
            try:
                answers[name] = self._sites[name](message)
            except NeoRLError as error:
                answers[name] = MissingAnswer("failed", str(error))
        return answers

    def wait_for_sites(self, seconds: float) -> None:
        """Return at once."""


class FlowerTransport:
    """Sites that connect to a SuperLink. A site is identified by its key or, without keys, by the name it states."""

    def __init__(self, pipe: Pipe, nodes: Mapping[str, int], names: frozenset[str]) -> None:
        self._pipe, self._names = pipe, names
        self._known, self._nodes = bool(nodes), dict(nodes)
        self._numbers = count(1)

    def exchange(self, questions: Mapping[str, Message], seconds: float) -> dict[str, Message | MissingAnswer]:
        ends, here = time.monotonic() + seconds, self._connected()
        sent = {name: Frame("ask", *message, node=here[name]) for name, message in questions.items() if name in here}
        answers = self._ask(sent, ends)
        late, absent = (
            MissingAnswer("late", f"no answer within {seconds:g} s"),
            MissingAnswer("absent", "it is not connected"),
        )
        return {name: answers.get(name, late if name in here else absent) for name in questions}

    def wait_for_sites(self, seconds: float) -> None:
        ends = time.monotonic() + seconds
        while len(self._connected()) < len(self._names) and time.monotonic() < ends:
            time.sleep(POLL)

    def _connected(self) -> dict[str, int]:
        self._pipe.send(Frame("nodes"))
        frame = self._next("nodes", time.monotonic() + flower_process.STARTS)
        online = set(json.loads(frame.text)) if frame else set()
        if not self._known:
            self._nodes = {name: node for name, node in self._nodes.items() if node in online}
            unknown = sorted(online - set(self._nodes.values()))
            names = self._ask({str(node): Frame("ask", HELLO, node=node) for node in unknown}, time.monotonic() + 10)
            for number, answer in names.items():
                if isinstance(answer, Message) and answer.text in self._names:
                    self._nodes[answer.text] = int(number)
        return {name: node for name, node in self._nodes.items() if node in online}

    def _ask(self, sent: Mapping[str, Frame], ends: float) -> dict[str, Message | MissingAnswer]:
        waiting, answers = dict[int, str](), dict[str, Message | MissingAnswer]()
        for name, frame in sent.items():
            number = next(self._numbers)
            waiting[number] = name
            left = max(ends - time.monotonic(), 0.0)
            self._pipe.send(frame._replace(number=number, seconds=left + LEEWAY))
        while waiting and (reply := self._next("answer", ends)):
            # Late answers to earlier rounds are dropped.
            if reply.number in waiting:
                answer = (
                    Message(reply.text, reply.arrays) if reply.kind == "answer" else MissingAnswer("failed", reply.text)
                )
                answers[waiting.pop(reply.number)] = answer
        return answers

    def _next(self, kind: Literal["nodes", "answer"], ends: float) -> Frame | None:
        """Return the next frame of a kind and drop other frames. A failure counts as an answer."""
        kinds = ("nodes",) if kind == "nodes" else ("answer", "failed")
        while (left := ends - time.monotonic()) > 0:
            try:
                frame = self._pipe.receive(left)
            except EOFError as error:
                raise Refused(f"the SuperLink ended while waiting for '{kind}': see its log, and run again") from error
            if frame and frame.kind in kinds:
                return frame
        return None


@contextmanager
def flower_transport(federation: Federation, folder: Path, beside: Path) -> Iterator[FlowerTransport]:
    """Run a SuperLink inside the context, and provide the connection to the sites.

    Args:
        beside: folder that paths in the file are relative to.

    Raises:
        ServiceMissing: if Flower is not installed.
        BadInput: if the SuperLink does not start.
    """
    network = federation.network
    control = f"{flower_process.HOST}:{flower_process.free_port()}"
    arguments = [f"--fleet-api-address={network.address}", f"--control-api-address={control}"]
    arguments += ["--disable-runtime-dependency-installation"]
    authority, keys = "", dict[str, str]()
    if network.tls is None:
        arguments.append("--insecure")
    else:
        from tasks.federation.transport.credentials import AUTHORITY, public_pem

        arguments += _certificates(network, beside)
        authority = (beside / network.tls / AUTHORITY).read_text()
        keys = {name: public_pem(site.key) for name, site in federation.sites.items() if site.key}
    link = flower_process.start(
        "superlink",
        folder,
        arguments,
        app="--serverappio-api-address",
        control_address=control,
        authority=authority,
        keys=keys,
    )
    try:
        yield FlowerTransport(link.pipe, _ready(link), frozenset(federation.sites))
    finally:
        link.stop()


def _certificates(network: Network, beside: Path) -> list[str]:
    from tasks.federation.transport.credentials import AUTHORITY, CERTIFICATE, KEY

    assert network.tls is not None
    named = {"--ssl-certfile": CERTIFICATE, "--ssl-keyfile": KEY, "--ssl-ca-certfile": AUTHORITY}
    paths = {option: beside / network.tls / name for option, name in named.items()}
    for path in paths.values():
        if not path.is_file():
            raise Refused(f"{path} is missing: run 'neorl federate certificate {path.parent}'")
    return [*(f"{option}={path}" for option, path in paths.items()), "--enable-supernode-auth"]


def _ready(link: flower_process.Flower) -> dict[str, int]:
    try:
        frame = link.pipe.receive(flower_process.STARTS)
    except EOFError as error:
        raise link.failure() from error
    if frame is None:
        raise link.failure()
    nodes: dict[str, int] = json.loads(frame.text)
    return nodes
