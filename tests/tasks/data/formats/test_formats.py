"""Import of NeoRL-2 archives, and refusal of other files."""

from __future__ import annotations

import os
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs.errors import BadInput
from neorl_core.plants import LOGGED, PLANTS
from tasks.data.formats.neorl_npz import read_archive
from tasks.data.formats.sources import for_plant, recognise
from tasks.data.store.schema import Rows

SPEC = PLANTS["double_mass"].spec


def arrays(n: int = 10) -> dict[str, np.ndarray[Any, Any]]:
    """Arrays of a valid archive: random values, two episodes, the first terminated."""
    rng = np.random.default_rng(0)
    path = rng.uniform(-1, 1, (n + 1, 6)).astype(np.float32)
    flags = np.zeros((2, n), np.float32)
    flags[0, n // 2] = flags[1, -1] = 1
    return {
        "obs": path[:-1],
        "action": rng.uniform(-1, 1, (n, 2)).astype(np.float32),
        "next_obs": path[1:],
        "reward": rng.normal(size=n).astype(np.float32),
        "done": flags[0],
        "truncated": flags[1],
    }


def save(path: Path, **changed: Any) -> Path:
    held = {key: value for key, value in (arrays() | changed).items() if value is not None}
    np.savez_compressed(path, **held)
    return path


def read(path: Path, block_rows: int = 65536) -> Rows:
    source = recognise(path)
    widths = {"obs": source.observations, "action": source.actions, "next_obs": source.observations}
    widths |= {"reward": 1, "done": 1, "truncated": 1}
    cut = source._replace(blocks=lambda: read_archive(path, widths, block_rows))
    blocks = list(for_plant(cut, SPEC, LOGGED["double_mass"])())
    return {key: np.concatenate([block[key] for block in blocks]) for key in blocks[0]}


@pytest.mark.parametrize("column", [False, True])
@pytest.mark.parametrize("block_rows", [3, 65536])
def test_round_trip_in_any_block_size(tmp_path: Path, column: bool, block_rows: int) -> None:
    held = arrays()
    shaped = {key: held[key][:, None] if column else held[key] for key in ("reward", "done", "truncated")}
    rows = read(save(tmp_path / "a.npz", **shaped), block_rows)
    names = {"observations": "obs", "actions": "action", "rewards": "reward", "next_observations": "next_obs"}
    for key, name in (names | {"terminals": "done", "timeouts": "truncated"}).items():
        np.testing.assert_array_equal(rows[key], held[name])


def test_costs_are_the_excess_over_each_limit(tmp_path: Path) -> None:
    following = arrays()["next_obs"].copy()
    following[3, :2] = (3.0, -2.9)  # the travel of each mass ends at 2.8 m
    rows = read(save(tmp_path / "a.npz", next_obs=following))
    np.testing.assert_allclose(rows["constraint_costs"][3], [0.2, 0.1], atol=1e-6)
    assert rows["costs"].tolist() == [float(i == 3) for i in range(10)]
    assert rows["constraint_costs"].sum() == pytest.approx(0.3, abs=1e-6)


def test_pickled_objects_are_refused_and_never_loaded(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "ran",))

    bomb = np.empty(10, object)
    bomb[:] = [Bomb() for _ in range(10)]
    path = save(tmp_path / "a.npz", reward=bomb)
    with pytest.raises(BadInput, match="pickled objects"):
        read(path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"action": None}, "has no array 'action'"),
        ({"action": np.zeros((10, 3), np.float32)}, "double_mass has 2 actions, a.npz has 3"),
        ({"reward": np.zeros((10, 2), np.float32)}, r"'reward' .* \(10,\) or \(10, 1\), got \(10, 2\)"),
        ({"next_obs": np.zeros((9, 6), np.float32)}, r"shape \(10, 6\), got \(9, 6\)"),
        ({"obs": np.float32(1)}, "has 6 observations, a.npz has 1"),
        ({"done": np.array(["no"] * 10)}, "'done' of a.npz must be numeric"),
        ({"obs": np.asfortranarray(arrays()["obs"])}, "Fortran order"),
        ({key: value[:0] for key, value in arrays().items()}, "has no rows"),
    ],
)
def test_invalid_files_are_refused(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message) as error:
        read(save(tmp_path / "a.npz", **changed))
    assert "\n" not in str(error.value)


def test_missing_truncated_and_other_files(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"none\.npz does not exist"):
        read(tmp_path / "none.npz")
    whole = save(tmp_path / "a.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BadInput, match="not a complete npz archive"):
        read(tmp_path / "cut.npz")
    (tmp_path / "text.npz").write_text("obs,action\n")
    with pytest.raises(BadInput, match=r"starts with b.obs,acti"):
        read(tmp_path / "text.npz")


@pytest.mark.parametrize(("offset", "value"), [(6, 1), (8, 99)])
def test_encrypted_and_unknown_compression(tmp_path: Path, offset: int, value: int) -> None:
    # Local header (PK 3 4) and central directory (PK 1 2, two bytes later): APPNOTE 4.3.7 and 4.3.12.
    path = save(tmp_path / "a.npz")
    data = bytearray(path.read_bytes())
    for mark, shift in ((b"PK\x03\x04", 0), (b"PK\x01\x02", 2)):
        at = data.find(mark)
        while at >= 0:
            data[at + offset + shift] = value
            at = data.find(mark, at + 4)
    path.write_bytes(bytes(data))
    with pytest.raises(BadInput, match=r"(NumPy cannot read a\.npz|uses compression method) .*: save it again"):
        read(path)


def test_a_changed_byte_fails_the_checksum(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, **arrays())
    data = bytearray(path.read_bytes())
    data[data.index(arrays()["action"].tobytes()) + 5] ^= 1
    path.write_bytes(data)
    with pytest.raises(BadInput, match="CRC-32"):
        read(path)


def test_values_beyond_float32_become_infinite(tmp_path: Path) -> None:
    rewards = np.zeros(10)
    rewards[4] = 1e300
    assert np.isinf(read(save(tmp_path / "a.npz", reward=rewards))["rewards"][4])


def test_official_rewards_match_the_plants_formula(dmsd_train: Path) -> None:
    # The equations reproduce the official rewards to 9.5e-7.
    rows = read(dmsd_train)
    assert len(rows["rewards"]) == 100_000
    assert int(rows["timeouts"].sum()) == 1000
    got = LOGGED["double_mass"].reward(*(rows[key] for key in ("observations", "actions", "next_observations")))
    np.testing.assert_allclose(np.asarray(got), rows["rewards"], atol=5e-6)


def test_false_headers_take_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, values in arrays().items():
            shape = (20_000_000, *values.shape[1:])
            with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                header = {"descr": "<f4", "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(stream, header)
                stream.write(values.tobytes())
    tracemalloc.start()
    with pytest.raises(BadInput, match=r"'obs' in a\.npz declares .* bytes"):
        read(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10_000_000


def test_other_files_are_refused_with_a_reason(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("hour,load\n1,2\n")
    (tmp_path / "b.bin").write_bytes(b"\x00" * 64)
    (tmp_path / "c.npz").write_bytes(b"")
    (tmp_path / "d").mkdir()
    np.savez(tmp_path / "e.npz", states=np.zeros((4, 2)), actions=np.zeros((4, 1)))
    os.mkfifo(tmp_path / "f.hdf5")
    for name, message in (
        ("a.csv", "a.csv is a table, which needs a mapping"),
        ("b.bin", r"b.bin starts with .* no known format: export it as D4RL, .*d3rlpy.* \(npz\)"),
        ("c.npz", "c.npz starts with b''"),
        ("d", "is not a Minari dataset"),
        ("e.npz", "A recorded simulation can only"),
        ("f.hdf5", "does not exist"),
        ("none", "does not exist"),
    ):
        with pytest.raises(BadInput, match=message):
            recognise(tmp_path / name)
