"""llama.cpp's older imatrix files, of which the layout is written out here."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

import squish_core as squish

VALUES = np.array([4.0, 16.0, 36.0, 64.0] * 8, np.float32)


def record(name: str, calls: int, values: np.ndarray) -> bytes:
    raw = name.encode()
    return struct.pack("<i", len(raw)) + raw + struct.pack("<ii", calls, values.size) + values.tobytes()


def file(*records: bytes, end: bytes = struct.pack("<ii", 7, 4) + b"text") -> bytes:
    return struct.pack("<i", len(records)) + b"".join(records) + end


@pytest.mark.parametrize("end", [struct.pack("<ii", 7, 4) + b"text", struct.pack("<i", 7), b""])
def test_it_is_read_as_a_gguf_imatrix(tmp_path: Path, end: bytes) -> None:
    path = tmp_path / "imatrix.dat"
    path.write_bytes(file(record("blk.0.up.weight", 4, VALUES), record("b", 1, VALUES[:5]), end=end))
    with squish.open(path) as opened:
        assert (opened.format, opened.index.kind) == ("imatrix", "imatrix")
        assert list(opened) == ["blk.0.up.weight.in_sum2", "blk.0.up.weight.counts", "b.in_sum2", "b.counts"]
        assert np.array_equal(opened["blk.0.up.weight.in_sum2"].numpy(), VALUES[None])
        assert opened["blk.0.up.weight.counts"].numpy().tolist() == [[4]]
        assert (opened.metadata.get("imatrix.datasets") == ["text"]) == (len(end) > 4)
    assert squish.verify(path, deep=True).ok


@pytest.mark.parametrize("experts", [1, 2])
def test_a_conversion_takes_its_statistics(tmp_path: Path, experts: int) -> None:
    """The values are mean squares times calls; those of experts follow each other."""
    weights = np.random.default_rng(0).normal(size=(16, 32)).astype(np.float32)
    squish.save(tmp_path / "w.safetensors", {"w": weights})
    (tmp_path / "i.dat").write_bytes(file(record("w", 4, np.tile(VALUES, experts))))
    squish.save(tmp_path / "magnitudes.safetensors", {"w": np.sqrt(VALUES / 4)})
    outputs = []
    for statistics in ("i.dat", "magnitudes.safetensors"):
        target = tmp_path / f"{statistics}.zt"
        rule = "affine:bits=3,group_size=32,search=activations"
        squish.convert(tmp_path / "w.safetensors", target, encode=rule, activations=tmp_path / statistics)
        with squish.open(target) as opened:
            outputs.append(opened["w"].numpy(copy=True))
    assert np.array_equal(*outputs)


@pytest.mark.parametrize(
    ("data", "offset"),
    [
        (b"\0\0\0\0", 0),
        (struct.pack("<i", -1) + b"\0" * 40, 0),
        (struct.pack("<i", 1000) + b"\0" * 40, 0),
        (file(record("a", 1, VALUES))[:-40], None),
        (struct.pack("<ii", 1, 5000) + b"a" * 6000, 4),
        (struct.pack("<ii", 1, -5) + b"a" * 60, 4),
        (file(record("a", 1, VALUES), record("a", 1, VALUES)), 4 + 13 + 128),
        (struct.pack("<ii", 1, 1) + b"a" + struct.pack("<ii", 1, 0), 13),
        (struct.pack("<ii", 1, 1) + b"a" + struct.pack("<ii", 1, 1 << 30), None),
    ],
)
def test_damage_is_an_error(tmp_path: Path, data: bytes, offset: int | None) -> None:
    path = tmp_path / "i.dat"
    path.write_bytes(data)
    with pytest.raises(squish.SquishError) as caught, squish.open(path):
        pass
    assert caught.value.code
    assert offset is None or caught.value.offset == offset
