"""Frames between NeoRL and a Flower process: exact numbers, plain types alone, and an end that both sides notice."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import numpy as np
import pytest

from configs.errors import BadInput
from tasks.federation.transport.frames import LENGTH, MAX_BYTES, Frame, Pipe


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    yield one, other
    one.close()
    other.close()


def raw(header: object, data: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return LENGTH.pack(len(text)) + text + data


def test_a_frame_arrives_as_it_was_sent(sockets: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = map(Pipe, sockets)
    arrays = {
        "weights": np.arange(6, dtype=np.float32).reshape(2, 3),
        "by_column": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "big_endian": np.arange(3, dtype=">i4"),
        "scalar": np.float64(np.pi),
        "nothing": np.zeros((0, 4), np.uint32),
        "flags": np.array([True, False]),
    }
    ours.send(Frame("ask", "{}", arrays, number=7, node=2**63 + 5, seconds=1.5))
    frame = theirs.receive(10)
    assert frame is not None
    assert (frame.kind, frame.text, frame.number, frame.node, frame.seconds) == ("ask", "{}", 7, 2**63 + 5, 1.5)
    assert list(frame.arrays) == list(arrays)
    for name, array in arrays.items():
        assert frame.arrays[name].shape == np.shape(array)
        np.testing.assert_array_equal(frame.arrays[name], array)


def test_no_frame_in_time_is_none_and_an_end_is_told(sockets: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = map(Pipe, sockets)
    assert theirs.receive(0.01) is None
    assert not theirs.ended
    ours.send(Frame("nodes"))
    ours.close()
    assert not theirs.ended, "what was sent before is still to be read"
    assert theirs.receive(1) is not None
    assert theirs.ended
    with pytest.raises(EOFError):
        theirs.receive(1)


@pytest.mark.parametrize(
    ("sent", "sentence"),
    [
        (LENGTH.pack(2**30), "header of at most"),
        (LENGTH.pack(4) + b"[1,2", "expected a frame"),
        (raw({"kind": "ask", "arrays": [["x", "|O", [1]]]}), "an array of type"),
        (raw({"kind": "ask", "arrays": [["x", "<f4", [-1]]]}), "arrays of at most"),
        (raw({"kind": "ask", "arrays": [["x", "<f8", [MAX_BYTES]]]}), "arrays of at most"),
        (raw({"kind": "ask", "arrays": [], "odd": 1}), "expected a frame"),
    ],
)
def test_what_is_no_frame_is_refused(sockets: tuple[socket.socket, socket.socket], sent: bytes, sentence: str) -> None:
    sockets[0].sendall(sent)
    with pytest.raises(BadInput, match=sentence):
        Pipe(sockets[1]).receive(1)
