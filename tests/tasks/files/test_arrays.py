"""npz archives: reproducible bytes, and safe reading of damaged and hostile files."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from configs.errors import BadInput
from tasks.files.arrays import npz_bytes, open_npz, read_npz
from tests.limited import read_limited

ARRAYS: dict[str, npt.NDArray[Any]] = {
    "a/b": np.arange(6, dtype=np.float32).reshape(2, 3),
    "count": np.asarray(7, np.int64),
    "none": np.zeros((0, 4)),
    "yes": np.asarray([True, False]),
}


def header(shape: tuple[int, ...], descr: str = "<f4") -> bytes:
    """An array's header alone."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": descr, "fortran_order": False, "shape": shape})
    return stream.getvalue()


def archive(path: Path, compression: int = zipfile.ZIP_DEFLATED, **members: bytes) -> Path:
    """A zip archive of raw members."""
    with zipfile.ZipFile(path, "w", compression, compresslevel=1) as file:
        for name, data in members.items():
            file.writestr(f"{name}.npy", data)
    return path


def zeros(path: Path) -> Path:
    """An honest archive of half a gigabyte of zeros, a thousandth of their size."""
    return archive(path, a=header((2**27,)) + bytes(2**29))


def understated(path: Path) -> Path:
    """A member of 256 MiB of zeros whose table of contents says 1 KiB, and its header too."""
    shape = ((1024 - len(header((1,)))) // 4,)
    archive(path, a=header(shape) + bytes(2**28))
    data = bytearray(path.read_bytes())
    for mark, offset in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        struct.pack_into("<L", data, data.index(mark) + offset, 1024)
    path.write_bytes(data)
    return path


def crowded(path: Path) -> Path:
    """A table of contents that names one member very many times."""
    archive(path, a=header((0,)))
    data = path.read_bytes()
    at, end = data.index(b"PK\x01\x02"), data.index(b"PK\x05\x06")
    table = data[at:end] * 500_000
    path.write_bytes(data[:at] + table + struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 1, 1, len(table), at, 0))
    return path


def test_round_trip_with_reproducible_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(npz_bytes(ARRAYS))
    assert path.read_bytes() == npz_bytes(dict(reversed(ARRAYS.items())))
    with np.load(path, allow_pickle=False) as file:
        assert sorted(file.files) == sorted(ARRAYS)
    for name, found in read_npz(path).items():
        assert found.dtype == ARRAYS[name].dtype
        np.testing.assert_array_equal(found, ARRAYS[name])
    with open_npz(path) as file:
        layout = {name: file.member(name) for name in file.names}
    assert {name: (member.shape, member.dtype) for name, member in layout.items()} == {
        name: (array.shape, array.dtype) for name, array in ARRAYS.items()
    }
    assert (layout["a/b"].width, layout["a/b"].size_bytes) == (3, 24)


def test_compressed_archives_of_numpy_are_read(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", **ARRAYS)
    assert all(np.array_equal(found, ARRAYS[name]) for name, found in read_npz(tmp_path / "a.npz").items())


def test_streaming_checks_the_checksum_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(npz_bytes(ARRAYS))
    with open_npz(path) as file, file.open(file.member("a/b")) as stream:
        assert np.frombuffer(stream.read(12), np.float32).tolist() == [0, 1, 2]
        assert np.frombuffer(stream.read(), np.float32).tolist() == [3, 4, 5]
    data = bytearray(path.read_bytes())
    data[data.index(ARRAYS["a/b"].tobytes())] ^= 1
    path.write_bytes(data)
    with pytest.raises(BadInput, match="CRC-32"):
        read_npz(path)


OBJECTS = header((1,), "|O") + b"\x80\x04N."
HOSTILE: dict[str, tuple[Callable[[Path], object], str]] = {
    "half a gigabyte of zeros": (zeros, "take 536870912 bytes, the limit is 268435456"),
    "an understated size": (understated, "is not a complete npz archive|896 bytes"),
    "a table of contents of millions": (crowded, "the table of contents has more than 1048576 bytes"),
    "missing rows": (lambda path: archive(path, a=header((20_000_000, 6)) + bytes(24)), "bytes can contain"),
    "missing rows, stored": (
        lambda path: archive(path, zipfile.ZIP_STORED, a=header((20_000_000,)) + bytes(24)),
        "bytes can contain",
    ),
    "more numbers than rows": (lambda path: archive(path, a=header((2,)) + bytes(24)), "has more data than"),
    "a shape that overflows": (lambda path: archive(path, a=header((2**40, 2**40))), "bytes can contain"),
    "a huge length": (lambda path: archive(path, a=header((10**300,))), "dimensions, each below"),
    "very many dimensions": (lambda path: archive(path, a=header((1,) * 40)), "at most 32 dimensions"),
    "objects": (lambda path: archive(path, a=OBJECTS), "pickled objects"),
    "text": (lambda path: archive(path, a=header((1,), "<U8") + bytes(32)), "'a' of .* must be numeric, got <U8"),
    "wide voids": (lambda path: archive(path, a=header((1,), "|V900000000")), "'a' of .* must be numeric"),
    "a header of 128 megabytes": (
        lambda path: archive(path, a=b"\x93NUMPY\x02\x00" + struct.pack("<L", 2**30) + bytes(2**27)),
        "is not a NumPy array",
    ),
    "a header of brackets": (
        lambda path: archive(path, a=b"\x93NUMPY\x01\x00" + struct.pack("<H", 9000) + b"(" * 9000),
        "is not a NumPy array",
    ),
    "bzip2": (lambda path: archive(path, zipfile.ZIP_BZIP2, a=header((2**25,)) + bytes(2**27)), "compression method"),
    "lzma": (lambda path: archive(path, zipfile.ZIP_LZMA, a=header((2**25,)) + bytes(2**27)), "compression method"),
    "no archive": (lambda path: path.write_bytes(b"PK\x05\x06 and so on"), "is not a complete npz archive"),
    "nothing": (lambda path: path.write_bytes(b""), "is not a complete npz archive"),
}


@pytest.mark.slow
def test_hostile_archives_are_refused_in_little_memory(tmp_path: Path) -> None:
    (tmp_path / "sound.npz").write_bytes(npz_bytes(ARRAYS))
    paths = [tmp_path / f"{i}.npz" for i in range(len(HOSTILE))]
    for path, (make, _) in zip(paths, HOSTILE.values(), strict=True):
        make(path)
    found = read_limited("tasks.files.arrays:read_npz", tmp_path / "sound.npz", paths, megabytes=64)
    for (kind, message), (name, (_, expected)) in zip(found, HOSTILE.items(), strict=True):
        assert kind == "BadInput", (name, kind, message)
        assert "\n" not in message
        with pytest.raises(BadInput, match=expected):
            raise BadInput(message)


def test_duplicate_names_and_missing_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a.npy", header((0,)))
        with pytest.warns(UserWarning, match="Duplicate"):
            file.writestr("a.npy", header((0,)))
    with pytest.raises(BadInput, match="have the same name"):
        read_npz(path)
    with pytest.raises(BadInput, match="is not a file"):
        read_npz(tmp_path)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.booleans(), st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_random_damage_raises_only_bad_input(tmp_path: Path, packed: bool, changes: list[tuple[float, int]]) -> None:
    path = tmp_path / "a.npz"
    if packed:
        np.savez_compressed(path, **ARRAYS)
    else:
        path.write_bytes(npz_bytes(ARRAYS))
    data = bytearray(path.read_bytes())
    for place, value in changes:
        data[int(place * (len(data) - 1))] = value
    path.write_bytes(data)
    with suppress(BadInput):
        assert sum(array.nbytes for array in read_npz(path).values()) < 2**20
