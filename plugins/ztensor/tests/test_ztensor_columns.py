"""The fast way through the usual manifest gives what the general way gives, and takes nothing that it refuses."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cbor2
import ml_dtypes
import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from squish_ztensor import columns
from squish_ztensor.v1.manifest import read_manifest

from squish_core.errors import SquishError
from squish_core.io.local import open_source
from squish_core.limits import DEFAULT
from squish_core.model import LazyTensors

ARRAYS: dict[str, Any] = {
    "b": np.arange(6, dtype=np.float32).reshape(2, 3), "a": np.array([True, False]),
    "long name of more than twenty-three bytes": np.arange(300, dtype=np.uint8), "scalar": np.array(7, np.int64),
    "f8": np.arange(5).astype(ml_dtypes.float8_e5m2), "c": np.array([1 + 2j], np.complex64),
    "empty": np.zeros((0, 3), np.float16), "\u03c0": np.zeros(70000, np.int8),
}  # fmt: skip
WIRES: dict[str, dict[str, str]] = {
    "1.1": {}, "1.1 with digests": {"digest": "sha256"}, "1.1 with checksums": {"digest": "crc32c"},
    "1.2": {"flavor": "compatible"}, "2": {"wire": "2", "flavor": "aligned"},
    "2 without digests": {"wire": "2", "flavor": "aligned", "digest": "none"},
    "2 with sha256": {"wire": "2", "flavor": "aligned", "digest": "sha256"},
}  # fmt: skip


def manifest_of(data: bytes) -> tuple[int, int]:
    if data[:1] == b"\x89":
        offset, length = struct.unpack("<QQ", data[-40:-24])
        return offset, length
    length = int.from_bytes(data[-16:-8], "little")
    return len(data) - 16 - length, length


def with_manifest(data: bytes, manifest: bytes) -> bytes:
    """The file with another manifest, its size and hash corrected."""
    start, _ = manifest_of(data)
    if data[:1] == b"\x89":
        footer = struct.pack("<QQQ", start, len(manifest), xxhash.xxh3_64_intdigest(manifest))
        return data[:start] + manifest + footer + data[-16:]
    return data[:start] + manifest + len(manifest).to_bytes(8, "little") + data[-8:]


def content(data: bytes) -> Any:
    """Return the content of a manifest, or its error."""
    try:
        manifest = read_manifest(open_source(data), DEFAULT)
    except SquishError as error:
        return type(error).__name__
    tensors = LazyTensors(manifest.records, manifest.build)
    dense = dict(tensors.dense_records())
    return manifest.version, manifest.attributes, dict(tensors), dense, manifest.extents, manifest.problems


def both_parsers(data: bytes, fast: Callable[..., Any] = columns.read) -> tuple[Any, Any, bool]:
    """Return what both parsers read, and whether the fast one accepted the file."""
    taken = []

    def watched(*args: Any, **more: Any) -> Any:
        table = fast(*args, **more)
        taken.append(table is not None)
        return table

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(columns, "read", watched)
        quick = content(data)
        patched.setattr(columns, "read", lambda *args, **more: None)
        return quick, content(data), any(taken)


@pytest.fixture(scope="module")
def files(zt: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A file of every version."""
    contents = {}
    for wire, options in WIRES.items():
        path = tmp_path_factory.mktemp("columns") / "model.zt"
        zt.written(path, ARRAYS, options, {"license": "MIT"} if "digests" in wire else {})
        contents[wire] = path.read_bytes()
    return contents


@pytest.mark.parametrize("meta", [{}, {"license": "MIT", "objects": "x"}], ids=["bare", "attributes"])
@pytest.mark.parametrize("wire", WIRES)
def test_both_parsers_agree(zt: Any, tmp_path: Path, wire: str, meta: dict[str, str]) -> None:
    zt.written(tmp_path / "model.zt", ARRAYS, WIRES[wire], meta)
    quick, general, taken = both_parsers((tmp_path / "model.zt").read_bytes())
    assert quick == general
    assert len(quick[2]) == len(ARRAYS)
    assert taken == (wire.startswith("2") or not meta)  # in 1.x, attributes come first


@pytest.mark.parametrize("name", ["v11_dense_all_dtypes", "v2_dense_align4096"])
def test_files_of_the_reference_use_the_fast_parser(data: Path, name: str) -> None:
    quick, general, taken = both_parsers((data / f"{name}.zt").read_bytes())
    assert taken
    assert quick == general


@settings(max_examples=500, deadline=None)
@given(data=st.data(), wire=st.sampled_from(sorted(WIRES)))
def test_a_damaged_manifest_is_never_accepted(files: dict[str, bytes], data: st.DataObject, wire: str) -> None:
    start, length = manifest_of(files[wire])
    manifest = bytearray(files[wire][start : start + length])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(manifest) - 1))
        what = data.draw(st.sampled_from(["byte", "bit", "insert", "delete", "repeat"]))
        if what == "byte":
            manifest[at] = data.draw(st.integers(0, 255) | st.sampled_from([0x00, 0x18, 0x19, 0x60, 0x78, 0xA3, 0xFF]))
        elif what == "bit":
            manifest[at] ^= 1 << data.draw(st.integers(0, 7))
        elif what == "insert":
            manifest.insert(at, data.draw(st.integers(0, 255)))
        else:
            piece = manifest[at : at + data.draw(st.integers(1, 100))]
            manifest[at : at + len(piece)] = b"" if what == "delete" else piece * 2
    quick, general, _ = both_parsers(with_manifest(files[wire], bytes(manifest)))
    assert quick == general


def test_every_bit_of_a_manifest(files: dict[str, bytes]) -> None:
    for wire in ("1.2", "2 without digests"):
        start, length = manifest_of(files[wire])
        fast = 0
        for at in range(length):
            for bit in range(8):
                manifest = bytearray(files[wire][start : start + length])
                manifest[at] ^= 1 << bit
                quick, general, taken = both_parsers(with_manifest(files[wire], bytes(manifest)))
                assert quick == general
                fast += taken
        assert fast  # letters of names may change


def test_objects_in_the_place_of_a_key_are_not_accepted(zt: Any) -> None:
    """`{"version": "objects", {the objects}: "1.1.0"}`: without the middle it looks like the usual root."""
    objects = cbor2.dumps({"w": zt.item()})
    manifest = b"\xa2" + cbor2.dumps("version") + cbor2.dumps("objects") + objects + cbor2.dumps("1.1.0")
    quick, general, _ = both_parsers(zt.pack(manifest=manifest))
    assert quick == general == "FormatError"


def test_a_manifest_that_does_not_match_is_scanned_once(zt: Any) -> None:
    """No backtracking over what could be a name."""
    import time

    data = zt.pack({"x" * 200 + str(number): {**zt.item(), "more": 1} for number in range(4000)})
    started = time.perf_counter()
    start, length = manifest_of(data)
    assert columns.read(data[start : start + length], "1.1", DEFAULT, alignment=64, end=start) is None
    assert time.perf_counter() - started < 30  # a hang guard
