"""Frames between NeoRL and a Flower process: exact numbers, allowed types, and closed connections."""

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


def test_frame_arrives_as_sent(sockets: tuple[socket.socket, socket.socket]) -> None:
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


def test_time_out_gives_none_and_close_is_noticed(sockets: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = map(Pipe, sockets)
    assert theirs.receive(0.01) is None
    assert not theirs.ended
    ours.send(Frame("nodes"))
    ours.close()
    assert not theirs.ended, "a frame is still unread"
    assert theirs.receive(1) is not None
    assert theirs.ended
    with pytest.raises(EOFError):
        theirs.receive(1)


@pytest.mark.parametrize(
    ("sent", "sentence"),
    [
        (LENGTH.pack(2**30), "a header may have at most"),
        (LENGTH.pack(4) + b"[1,2", "the frame cannot be read"),
        (raw({"kind": "ask", "arrays": [["x", "|O", [1]]]}), "array type .* is not allowed"),
        (raw({"kind": "ask", "arrays": [["x", "<f4", [-1]]]}), "arrays may have at most"),
        (raw({"kind": "ask", "arrays": [["x", "<f8", [MAX_BYTES]]]}), "arrays may have at most"),
        (raw({"kind": "ask", "arrays": [], "odd": 1}), "the frame cannot be read"),
    ],
)
def test_invalid_frames_are_refused(sockets: tuple[socket.socket, socket.socket], sent: bytes, sentence: str) -> None:
    sockets[0].sendall(sent)
    with pytest.raises(BadInput, match=sentence):
        Pipe(sockets[1]).receive(1)
