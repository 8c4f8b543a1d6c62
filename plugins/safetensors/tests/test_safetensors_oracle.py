"""The safetensors library as an independent judge, in both directions and for every dtype."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import squish_core as squish
from squish_core import dtypes

pytestmark = [pytest.mark.oracle, pytest.mark.peers]


def library() -> Any:
    """The library, in its own environment."""
    import oracles

    return oracles.peer("safetensors")


NUMPY = ("bool", "u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64", "f16", "f32", "f64", "complex64")
EXTENDED = {
    "bf16": "bfloat16", "f8_e4m3": "float8_e4m3fn", "f8_e5m2": "float8_e5m2", "f8_e4m3fnuz": "float8_e4m3fnuz",
    "f8_e5m2fnuz": "float8_e5m2fnuz", "f8_e8m0": "float8_e8m0fnu",
}  # fmt: skip


def values(dtype: str, shape: tuple[int, ...] = (3, 8)) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 2, shape).astype(np.float32).astype(dtypes.to_numpy(dtype))


def serialized(arrays: dict[str, np.ndarray], tags: dict[str, str], metadata: dict[str, str] | None = None) -> bytes:
    """The library's bytes; its names of the dtypes that NumPy lacks are those of torch."""
    return bytes(library().run(serialize, arrays=arrays, tags=tags, metadata=metadata))


def serialize(arrays, tags, metadata):  # type: ignore[no-untyped-def]
    """Runs in the peer."""
    import safetensors

    specs = {
        name: safetensors.TensorSpec(
            dtype=tags[name], shape=array.shape, data_ptr=array.ctypes.data, data_len=array.nbytes
        )
        for name, array in arrays.items()
    }
    return bytes(safetensors.serialize(specs, metadata=metadata))


def save(arrays):  # type: ignore[no-untyped-def]
    """Runs in the peer."""
    import safetensors.numpy

    return safetensors.numpy.save(arrays)


def described(path):  # type: ignore[no-untyped-def]
    """Runs in the peer."""
    import safetensors

    with open(path, "rb") as file:
        entries = safetensors.deserialize(file.read())
    return {name: [entry["dtype"], list(entry["shape"])] for name, entry in entries}


def loaded(paths):  # type: ignore[no-untyped-def]
    """Runs in the peer."""
    import safetensors.numpy

    return {name: array for path in paths for name, array in safetensors.numpy.load_file(path).items()}


@pytest.mark.parametrize("dtype", [*NUMPY, *EXTENDED])
def test_we_read_what_the_library_writes(dtype: str) -> None:
    array = values(dtype)
    tensor = squish.open(serialized({"w": array}, {"w": EXTENDED.get(dtype, array.dtype.name)}))["w"]
    assert (tensor.dtype, tensor.shape) == (dtype, (3, 8))
    assert tensor.numpy().tobytes() == array.tobytes()


def test_we_read_the_f4_that_the_library_writes() -> None:
    packed = np.array([[0x21, 0x43]], np.uint8)
    tensor = squish.open(serialized({"w": packed}, {"w": "float4_e2m1fn_x2"}))["w"]
    assert (tensor.dtype, tensor.shape) == ("f4_e2m1", (1, 4))
    assert tensor.numpy().astype(np.float32).tolist() == [[0.5, 1.0, 1.5, 2.0]]


def test_our_bytes_are_the_librarys_bytes(tmp_path: Path) -> None:
    """Every dtype twice, names that need escapes, scalars, empty tensors."""
    arrays, tags = {}, {}
    for dtype in (*NUMPY, *EXTENDED):
        for prefix, shape in (("z.", (2, 4)), ('a\t"\\é', (1,)), ("scalar", ()), ("empty", (0, 3))):
            arrays[prefix + dtype] = values(dtype, shape)
            tags[prefix + dtype] = EXTENDED.get(dtype, arrays[prefix + dtype].dtype.name)
    expected = serialized(arrays, tags, {"format": "p\x1ft\u2028"})
    (tmp_path / "theirs.safetensors").write_bytes(expected)
    squish.convert(tmp_path / "theirs.safetensors", tmp_path / "ours.safetensors")
    assert (tmp_path / "ours.safetensors").read_bytes() == expected


def test_our_bytes_are_those_of_the_numpy_save(tmp_path: Path) -> None:
    arrays = {f"layer.{number}.{dtype}": values(dtype) for number in range(3) for dtype in NUMPY}
    theirs = bytes(library().run(save, arrays=arrays))
    squish.convert(theirs, tmp_path / "ours.safetensors")
    assert (tmp_path / "ours.safetensors").read_bytes() == theirs


def test_the_library_reads_every_dtype_that_we_write(tmp_path: Path) -> None:
    import json

    from squish_safetensors.header import TAGS

    entries, at = {}, 0
    for tag, dtype in TAGS.items():
        size = dtypes.nbytes(dtype, (8,))
        entries[dtype] = {"dtype": tag, "shape": [8], "data_offsets": [at, at + size]}
        at += size
    raw = json.dumps(entries).encode()
    source = len(raw).to_bytes(8, "little") + raw + bytes(at)
    squish.convert(source, tmp_path / "ours.safetensors")
    reference = library().run(described, path=str(tmp_path / "ours.safetensors"))
    assert reference == {dtype: [tag, [8]] for tag, dtype in TAGS.items()}


def test_the_library_reads_our_shards(tmp_path: Path) -> None:
    arrays = {f"w{number}": np.full((4,), number, np.float32) for number in range(3)}
    squish.convert(bytes(library().run(save, arrays=arrays)), tmp_path / "set", "safetensors:max_shard_size=32")
    reference = library().run(loaded, paths=[str(path) for path in (tmp_path / "set").glob("*.safetensors")])
    lists = {name: array.tolist() for name, array in arrays.items()}
    assert {name: array.tolist() for name, array in reference.items()} == lists
