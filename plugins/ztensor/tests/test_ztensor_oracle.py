"""The released ztensor 1.1.1 beside this plugin: same bytes, same values, both ways."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import oracles
import pytest

import squish_core as squish
from squish_core.model import Typed

pytestmark = [pytest.mark.oracle, pytest.mark.peers]

RNG = np.random.default_rng(7)
ARRAYS = {
    "z.weight": RNG.standard_normal((30, 50)).astype(np.float32),
    **{f"a.{kind}": (RNG.standard_normal((3, 5)) * 50).astype(kind) for kind in ("f8", "f2", "i8", "i4", "i2", "i1")},
    **{f"b.{kind}": RNG.integers(0, 100, (4, 3)).astype(kind) for kind in ("u8", "u4", "u2", "u1")},
    "flags": RNG.standard_normal((2, 3)) > 0,
    "empty": np.zeros((0, 7), np.float32),
    "names with spaces/\u03c0/\u6743\u91cd": np.arange(6, dtype=np.int64),
    "large": RNG.standard_normal((300, 700)).astype(np.float16).astype(np.float32),
    "last": np.zeros((0,), np.int32),
}


def write(path, arrays, compress):  # type: ignore[no-untyped-def] # runs in the peer
    import ztensor

    with ztensor.Writer(path) as writer:
        for name, array in arrays:
            writer.add_tensor(name, array, compress=compress)


def read(path, names):  # type: ignore[no-untyped-def] # runs in the peer
    import ztensor

    reader = ztensor.Reader(path)
    return [np.array(reader.read_tensor(name, verify_checksum=True)) for name in names]


@pytest.fixture(scope="module")
def reference() -> Any:
    return oracles.peer("ztensor-1.1.1")


@pytest.mark.parametrize(
    ("options", "compress"),
    [({}, False), ({"encoding": "zstd"}, True), ({"encoding": "zstd", "level": "1"}, 1),
     ({"encoding": "zstd", "level": "9"}, 9)],
    ids=["raw", "zstd", "zstd level 1", "zstd level 9"],
)  # fmt: skip
def test_the_same_arrays_give_the_same_file(
    zt: Any, tmp_path: Path, reference: Any, options: dict[str, str], compress: Any
) -> None:
    reference.run(
        write, path=str(tmp_path / "theirs.zt"), arrays=[list(pair) for pair in ARRAYS.items()], compress=compress
    )
    zt.written(tmp_path / "ours.zt", ARRAYS, options)
    assert (tmp_path / "ours.zt").read_bytes() == (tmp_path / "theirs.zt").read_bytes()


@pytest.mark.parametrize("compress", [False, True])
def test_what_the_reference_writes_is_read(tmp_path: Path, reference: Any, compress: bool) -> None:
    path = tmp_path / "theirs.zt"
    reference.run(write, path=str(path), arrays=[list(pair) for pair in ARRAYS.items()], compress=compress)
    with squish.open(path) as file:
        assert list(file) == list(ARRAYS)
        for name, array in ARRAYS.items():
            values = file[name].numpy()
            assert values.dtype == array.dtype
            np.testing.assert_array_equal(values, array)


@pytest.mark.parametrize("options", [{"digest": "sha256"}, {"digest": "crc32c", "encoding": "zstd"}])
def test_the_reference_reads_what_is_written_with_digests_metadata_and_attributes(
    zt: Any, tmp_path: Path, reference: Any, options: dict[str, str]
) -> None:
    path = tmp_path / "ours.zt"
    zt.written(path, ARRAYS, options, {"typed": Typed("u32", 3)}, {"tokenizer.json": b"{}"})
    for (name, array), values in zip(ARRAYS.items(), reference.run(read, path=str(path), names=list(ARRAYS))):
        assert values.dtype == array.dtype, name
        np.testing.assert_array_equal(values, array)


def test_the_reference_opens_a_file_with_text_metadata_and_ggml_blocks(zt: Any, tmp_path: Path, reference: Any) -> None:
    path = tmp_path / "ours.zt"
    blocks = ((2, 64), "ggml.q4_0", np.zeros((2, 36), np.uint8))
    zt.written(path, {"q": blocks, "w": ARRAYS["z.weight"]}, {}, {"license": "MIT"})
    [values] = reference.run(read, path=str(path), names=["w"])
    np.testing.assert_array_equal(values, ARRAYS["z.weight"])


def test_the_reference_opens_a_file_with_object_attributes(zt: Any, tmp_path: Path, reference: Any) -> None:
    attributes = {"bits": 4, "note": "x", "list": [1, None], "scale": 0.5}
    squish.convert(zt.pack({"w": {**zt.item(), "attributes": attributes}}), tmp_path / "ours.zt")
    [values] = reference.run(read, path=str(tmp_path / "ours.zt"), names=["w"])
    assert values.tolist() == [0, 1, 2, 3]
