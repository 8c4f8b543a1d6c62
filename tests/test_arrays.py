"""All tensors of a file as arrays at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import squish_core as squish

DATA = Path(__file__).parent / "data"


@pytest.mark.parametrize("name", ["sample.gguf", "sample.safetensors", "sample.zt"])
def test_arrays_are_those_of_the_tensors_and_read_only(name: str) -> None:
    with squish.open(DATA / name) as file:
        arrays = file.numpy()
        assert list(arrays) == list(file)
        for key, tensor in file.items():
            np.testing.assert_array_equal(arrays[key], tensor.numpy())
            assert not arrays[key].flags.writeable


@pytest.mark.parametrize("name", ["sample.gguf", "sample.safetensors", "sample.zt"])
def test_copies_are_writable_and_outlive_the_file(name: str) -> None:
    with squish.open(DATA / name) as file:
        arrays, views = file.numpy(copy=True), file.numpy()
    for key, array in arrays.items():
        np.testing.assert_array_equal(array, views[key])
        assert array.flags.writeable
        assert array.base is None


def test_a_large_read_is_split_and_whole(tmp_path: Path) -> None:
    """Large copies are read in pieces by several threads."""
    data = np.arange(5 << 20, dtype=np.uint32)
    head = b'{"w":{"dtype":"U32","shape":[%d],"data_offsets":[0,%d]}}' % (data.size, data.nbytes)
    path = tmp_path / "large.safetensors"
    path.write_bytes(len(head).to_bytes(8, "little") + head + data.tobytes())
    with squish.open(path) as file:
        np.testing.assert_array_equal(file["w"].numpy(copy=True), data)
