"""Malformed files raise BadInput or give accounted rows: no crash, no hang, bounded memory.

Hypothesis changes bytes, lengths, types, shapes and values. Hand-made files have circular links, arrays in other files,
and headers that declare more than the file contains.
"""

from __future__ import annotations

import io
import json
import re
import shutil
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.errors import BadInput
from tasks.data.formats.exports import export
from tasks.data.formats.hdf5 import isolated as hdf5_isolated
from tasks.data.formats.hdf5.isolated import read_isolated
from tasks.data.formats.sources import recognise, survey
from tasks.data.store.reader import StoredDataset
from tasks.data.store.row_checks import Quarantine, RowChecker
from tasks.data.store.schema import Rows
from tests.benchmark_files import walk, with_choices, write_d3rlpy, write_d3rlpy_1, write_d4rl, write_dsrl
from tests.tasks.data.formats.test_exports import spec_for, store

FORMATS = ("d3rlpy", "d3rlpy_1", "d4rl", "d4rl_made", "dsrl", "minari", "neorl", "neorl2", "packed", "shard")
MADE = ("d3rlpy", "d3rlpy_1", "d4rl_made")
"""Formats without the last next observation of a cut episode."""
MANY = settings(max_examples=60)
FEW = settings(max_examples=25)


def rows_of(n: int = 40) -> Rows:
    arrays = walk(n)
    arrays["timeouts"][-1] = True
    return {**arrays, "costs": np.zeros(n, np.float32), "constraint_costs": np.zeros((n, 1), np.float32)}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A valid small file of each format."""
    folder = tmp_path_factory.mktemp("sound")
    dataset: StoredDataset = store(folder / "store", spec_for(3, 1, 1), rows_of(), shard_bytes=10**6)
    for to in ("neorl", "neorl2"):
        export(dataset, to, folder / to)
    write_d4rl(folder / "d4rl", walk(40))
    write_d4rl(folder / "d4rl_made", walk(40), next_observations=None)
    write_dsrl(folder / "dsrl", walk(40))
    write_d3rlpy(folder / "d3rlpy", with_choices(walk(40)))
    write_d3rlpy_1(folder / "d3rlpy_1", with_choices(walk(40)))
    with np.load(folder / "neorl2") as file:
        np.savez_compressed(folder / "packed.npz", **dict(file))
    (folder / "packed.npz").rename(folder / "packed")
    shutil.copy(dataset.shard_path(dataset.manifest.shards[0]), folder / "shard")
    export(dataset, "minari", folder / "plant-v0")
    shutil.copy(folder / "plant-v0" / "data" / "main_data.hdf5", folder / "minari")
    return folder


def take(path: Path) -> tuple[Rows, int]:
    """Read a file as `neorl ingest` does; return the passed rows and the number of quarantined ones."""
    with tempfile.TemporaryDirectory() as name:
        try:
            source = recognise(path)
            spec = survey(source, "plant")
            quarantine = Quarantine(Path(name), spec)
            checker = RowChecker(spec, quarantine, "source")
            parts = [checker.push(block) for block in source.blocks()]
            if (last := checker.flush()) is not None:
                parts.append(last)
        except BadInput as error:
            if "\n" in str(error) or not re.search(r": .*\.$", str(error)):
                raise AssertionError(f"no problem and cure in one sentence: {error}") from error
            raise
    rows = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    passed = len(rows["rewards"])
    assert passed + quarantine.count == checker.seen == source.rows
    assert all(np.isfinite(rows[key]).all() for key in rows)
    return rows, quarantine.count


def changed(sound: Path, kind: str, folder: Path, change: Callable[[bytes], bytes]) -> Path:
    """Write a changed copy of a valid file; a Minari file stays in a folder."""
    data = change((sound / kind).read_bytes())
    if kind == "minari":
        shutil.copytree(sound / "plant-v0", folder / "plant-v0")
        (folder / "plant-v0" / "data" / "main_data.hdf5").write_bytes(data)
        return folder / "plant-v0"
    (folder / kind).write_bytes(data)
    return folder / kind


def test_valid_files_are_read(sound: Path) -> None:
    for kind in FORMATS:
        rows, quarantined = take(sound / ("plant-v0" if kind == "minari" else kind))
        assert len(rows["rewards"]) + quarantined == 40, kind
        assert (quarantined > 0) == (kind in MADE), kind


@MANY
@given(kind=st.sampled_from(FORMATS), data=st.data())
def test_flipped_bytes_and_cuts(sound: Path, kind: str, data: st.DataObject) -> None:
    size = (sound / kind).stat().st_size
    places = st.one_of(st.integers(0, size - 1), st.integers(0, min(size, 3000) - 1))
    flips = data.draw(st.lists(st.tuples(places, st.integers(0, 255)), max_size=8))
    length = data.draw(st.one_of(st.just(size), st.integers(0, size)))

    def change(whole: bytes) -> bytes:
        raw = bytearray(whole)
        for at, value in flips:
            raw[at] = value
        return bytes(raw[:length])

    with tempfile.TemporaryDirectory() as name:
        path = changed(sound, kind, Path(name), change)
        try:
            rows, _ = take(path)
        except BadInput:
            return
        if kind in ("neorl", "neorl2", "packed"):
            # Checksums cover every value, so readable values are unchanged.
            expected, _ = take(sound / kind)
            for key in expected:
                assert rows[key].tobytes() == expected[key].tobytes()


def wrong(draw: st.DataObject, arrays: dict[str, np.ndarray[Any, Any]], kinds: str) -> dict[str, Any]:
    """Replace one array by another type or shape, or by values that are not finite."""
    key = draw.draw(st.sampled_from(sorted(arrays)))
    how = draw.draw(st.sampled_from(kinds.split()))
    values = arrays[key]
    n = len(values)
    made = {
        "short": lambda: values[: n // 2],
        "empty": lambda: values[:0],
        "scalar": lambda: np.float32(1),
        "deep": lambda: np.zeros((n, 1, 1, 1), np.float32),
        "wide": lambda: np.zeros((n, 9), np.float32),
        "hollow": lambda: np.zeros((n, 0), np.float32),
        "text": lambda: np.full(n, b"no"),
        "complex": lambda: values.astype(np.complex64),
        "integer": lambda: values.astype(np.int8),
        "half": lambda: values.astype(np.float16),
        "double": lambda: values.astype(np.float64) * 1e300,
        "big-endian": lambda: values.astype(">f4"),
        "nan": lambda: np.full_like(values, np.nan, np.float32),
        "infinite": lambda: np.where(np.arange(n).reshape(-1, *[1] * (values.ndim - 1)) == n // 2, np.inf, values),
        "flags": lambda: np.full_like(values, 3),
    }[how]()
    return {**arrays, key: made}


KINDS = "short empty scalar deep wide hollow text complex integer half double big-endian nan infinite flags"


@FEW
@given(data=st.data())
def test_wrong_types_shapes_and_values_in_hdf5(data: st.DataObject) -> None:
    arrays = wrong(data, rows_of(), KINDS)
    layout = data.draw(st.sampled_from([None, "gzip", "lzf"]))
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "a.hdf5"
        with h5py.File(path, "w") as file:
            for key, values in arrays.items():
                packed = layout if np.size(values) and np.ndim(values) else None
                file.create_dataset(key, data=values, compression=packed)
        try:
            rows, _ = take(path)
        except BadInput:
            return
        assert len(rows["rewards"]) <= 40


@FEW
@given(data=st.data())
def test_wrong_types_shapes_and_values_in_npz(sound: Path, data: st.DataObject) -> None:
    with np.load(sound / data.draw(st.sampled_from(["neorl", "neorl2"]))) as file:
        arrays = wrong(data, dict(file), KINDS)
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "a.npz"
        np.savez(path, **arrays)
        try:
            rows, _ = take(path)
        except BadInput:
            return
        assert len(rows["rewards"]) <= 40


def links(file: h5py.File, there: Path) -> None:
    file["rewards"] = h5py.SoftLink("/actions")


def circle(file: h5py.File, there: Path) -> None:
    file["rewards"] = h5py.SoftLink("/next")
    file["next"] = h5py.SoftLink("/rewards")


def group_in_itself(file: h5py.File, there: Path) -> None:
    group = file.create_group("rewards")
    group["again"] = group


def elsewhere(file: h5py.File, there: Path) -> None:
    file["rewards"] = h5py.ExternalLink(str(there / "dsrl"), "/rewards")


def foreign_bytes(file: h5py.File, there: Path) -> None:
    file.create_dataset("rewards", (40,), np.float32, external=[(str(there / "dsrl"), 0, 160)])


def view(file: h5py.File, there: Path) -> None:
    layout = h5py.VirtualLayout((40,), np.float32)
    layout[:] = h5py.VirtualSource(str(there / "dsrl"), "rewards", (40,))
    file.create_virtual_dataset("rewards", layout)


def endless(file: h5py.File, there: Path) -> None:
    for key in ("observations", "actions", "rewards", "terminals"):
        if key in file:
            del file[key]
        tail = (1,) if key in ("observations", "actions") else ()
        file.create_dataset(key, (2**50, *tail), np.float32 if key != "terminals" else bool, chunks=(2**10, *tail))


def unwritten(file: h5py.File, there: Path) -> None:
    file.create_dataset("rewards", (40,), np.float32)


def one_huge_chunk(file: h5py.File, there: Path) -> None:
    file.create_dataset("rewards", (40,), np.float32, chunks=(2**27,), maxshape=(None,), compression="gzip")


def wide(file: h5py.File, there: Path) -> None:
    del file["observations"]
    file.create_dataset("observations", (40, 2**30), np.float32, chunks=(1, 2**10))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (links, "is a link to another name"),
        (circle, "is a link to another name"),
        (group_in_itself, "has no array 'rewards'"),
        (elsewhere, "is a link to another file"),
        (foreign_bytes, "takes its data from another file"),
        (view, "is a view of other files"),
        (endless, "but the file stores 0"),
        (unwritten, "'rewards' .* declares 160 bytes, but the file stores 0"),
        (one_huge_chunk, "has chunks of 536870912 bytes"),
        (wide, "a row of 'observations'"),
    ],
)
def test_hdf5_links_and_false_headers_are_refused(
    tmp_path: Path, sound: Path, spoil: Callable[[h5py.File, Path], None], message: str
) -> None:
    path = tmp_path / "a.hdf5"
    with h5py.File(path, "w", libver="latest") as file:
        for key, values in walk(40).items():
            if key != "rewards":
                file[key] = values
        spoil(file, sound)
    with pytest.raises(BadInput, match=message):
        take(path)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((2**40, 3), "compressed bytes can contain"),
        ((40, 2**40), "compressed bytes can contain"),
        ((1, 2**18 + 1), "rows of 'obs' .* have more than"),
        ((40, -3), "dimensions, each below|NumPy array"),
    ],
)
def test_npz_with_false_headers_is_refused(tmp_path: Path, sound: Path, shape: tuple[int, int], message: str) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": shape})
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(sound / "neorl2") as whole, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in whole.namelist():
            # A megabyte of zeros deflates to a kilobyte.
            promised = header.getvalue() + bytes(2**20 + 4)
            archive.writestr(name, promised if name == "obs.npy" else whole.read(name))
    assert path.stat().st_size < 20_000
    with pytest.raises(BadInput, match=message):
        take(path)


@pytest.mark.parametrize(
    "text", ["(" * 9000, "{'descr': " + "[" * 4000, "{'descr': 'O8'}", "{'shape': (3L,)", "\n", "{1: 2", "'" * 99]
)
def test_invalid_npz_headers(tmp_path: Path, sound: Path, text: str) -> None:
    body = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(sound / "neorl2") as whole, zipfile.ZipFile(path, "w") as archive:
        for name in whole.namelist():
            archive.writestr(name, body if name == "obs.npy" else whole.read(name))
    with pytest.raises(BadInput, match="is not a NumPy array"):
        take(path)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"total_steps": 2**60}, "steps, but 40"),
        ({"total_steps": 39}, "declare 39 steps"),
        ({"total_episodes": 2**60, "total_steps": 2**61}, "has no group episode_"),
        ({"total_episodes": -1}, "total_episodes .* must be between 1 and total_steps"),
        ({"total_episodes": "many"}, "total_episodes .* must be between 1 and total_steps"),
        ({"data_format": "arrow"}, "data_format .* is 'arrow', not hdf5"),
        ([], "data_format .* is 'no object', not hdf5"),
    ],
)
def test_false_minari_metadata_are_refused(tmp_path: Path, sound: Path, metadata: Any, message: str) -> None:
    folder = tmp_path / "plant-v0"
    shutil.copytree(sound / "plant-v0", folder)
    path = folder / "data" / "metadata.json"
    held = json.loads(path.read_text())
    path.write_text(json.dumps({**held, **metadata} if metadata else metadata))
    with pytest.raises(BadInput, match=message):
        take(folder)
    path.write_text("[" * 100_000)
    with pytest.raises(BadInput, match="is not valid JSON"):
        take(folder)


def test_rows_with_nan_are_quarantined(tmp_path: Path) -> None:
    arrays = walk(40)
    arrays["rewards"][[3, 4, 20]] = np.nan, np.inf, -np.inf
    arrays["observations"][30, 1] = np.nan
    rows, quarantined = take(write_d4rl(tmp_path / "a.hdf5", arrays))
    assert quarantined >= 4
    assert not np.isin(np.float32(arrays["rewards"][30]), rows["rewards"])
    np.testing.assert_array_equal(rows["rewards"][:3], arrays["rewards"][:3])


def test_views_of_missing_or_altered_shards_are_refused(tmp_path: Path) -> None:
    dataset = store(tmp_path / "store", spec_for(3, 1, 1), rows_of(), shard_bytes=1000)
    shard = dataset.shard_path(dataset.manifest.shards[1])
    take(dataset.view_path)
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    with pytest.raises(BadInput, match="does not match the SHA-256 in its name"):
        take(dataset.view_path)
    shard.unlink()
    with pytest.raises(BadInput, match="is missing or does not match"):
        take(dataset.view_path)


def test_a_killed_worker_raises_bad_input_and_is_replaced(tmp_path: Path, sound: Path) -> None:
    # More data than a pipe buffers, so that the worker is still reading when it is killed.
    many = {key: np.zeros((300_000, *values.shape[1:]), values.dtype) for key, values in walk(40).items()}
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        for key, values in many.items():
            file[key] = values
    blocks = read_isolated(tmp_path / "a.hdf5").blocks()
    server = psutil.Process(hdf5_isolated._idle[-1].process.pid)
    next(blocks)
    for child in server.children():
        child.kill()
    with pytest.raises(BadInput, match=r"a.hdf5 is not a complete HDF5 file \(reading crashed or took too long\)"):
        list(blocks)
    read_isolated(sound / "dsrl")
    server = psutil.Process(hdf5_isolated._idle[-1].process.pid)
    server.kill()
    server.wait()
    assert sum(len(rows["rewards"]) for rows in read_isolated(sound / "dsrl").blocks()) == 40
