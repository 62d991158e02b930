"""The sparse file in memory behaves like an ordinary file."""

from __future__ import annotations

import io

import h5py
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tasks.data.store.shards import SparseFile

PLACES = st.integers(0, 60)
STEPS = st.one_of(
    st.tuples(st.just("write"), PLACES, st.binary(max_size=20)),
    st.tuples(st.just("truncate"), PLACES, st.just(b"")),
    st.tuples(st.just("read"), PLACES, st.binary(max_size=30)),
)


@given(st.lists(STEPS, max_size=12))
def test_same_results_as_an_ordinary_file(tmp_path_factory, steps: list[tuple[str, int, bytes]]) -> None:
    sparse = SparseFile()
    with (tmp_path_factory.getbasetemp() / "ordinary").open("wb+") as ordinary:
        for action, place, data in steps:
            for file in (sparse, ordinary):
                file.seek(place)
            if action == "write":
                assert sparse.write(data) == ordinary.write(data)
            elif action == "truncate":
                assert sparse.truncate() == ordinary.truncate()
            else:
                assert sparse.read(len(data)) == ordinary.read(len(data))
            assert sparse.tell() == ordinary.tell()
        whole = (ordinary.seek(0), ordinary.read())[1]
    assert sparse.seek(0, io.SEEK_END) == len(whole)
    assert sparse.stretch(0, len(whole) + 3) == whole + bytes(3)


def test_hdf5_allocates_a_terabyte_in_a_sparse_file() -> None:
    image = SparseFile()
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plan.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    plan.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    with h5py.File(image, "w") as file:
        space = h5py.h5s.create_simple((10**12,))
        place = h5py.h5d.create(file.id, b"large", h5py.h5t.NATIVE_UINT8, space, plan).get_offset()
        file["small"] = np.arange(3)
    image.seek(place + 5 * 10**11)
    image.write(b"\7")
    with h5py.File(image) as file:
        assert file["large"][5 * 10**11 - 1 : 5 * 10**11 + 2].tolist() == [0, 7, 0]
        assert file["small"][:].tolist() == [0, 1, 2]
