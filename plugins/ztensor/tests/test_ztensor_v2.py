"""zTensor v2: malformed and edge inputs, one row each; the numbers are those of the project's robustness table."""

from __future__ import annotations

import hashlib
import re
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cbor2
import numpy as np
import pytest
import xxhash
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from squish_testing import expect_error
from squish_ztensor.codecs.sparse import to_scipy
from squish_ztensor.v1.cbor import _check_memory

import squish_core as squish
from squish_core.api import Dropped
from squish_core.errors import CodecError, FormatError, LimitError, SquishError, TensorError, TruncatedError

pytestmark = pytest.mark.usefixtures("little_memory")

MAGIC = b"\x89ZT2\r\n\x1a\n"
GIB = 1 << 30
FOUR = np.arange(4, dtype="<f4").tobytes()
FOUR_VALUES = np.arange(4, dtype="<f4")
Make = Callable[[], bytes]


def item(shape: Any = (4,), dtype: Any = "f32", blob: Any = (4096, 16), **more: Any) -> dict[str, Any]:
    """A dense object; `more` goes into its part, `layout` and `attributes` into the object."""
    record = {"layout": more.pop("layout", "dense"), "shape": list(shape)}
    if "attributes" in more:
        record["attributes"] = more.pop("attributes")
    return {**record, "parts": {"data": {"dtype": dtype, "blob": list(blob), **more}}}


def pack(
    objects: Any = None,
    blobs: bytes = FOUR,
    *,
    root: Any = None,
    manifest: bytes | None = None,
    at: int | None = None,
    length: int | None = None,
    digest: int | None = None,
    version: int = 2,
) -> bytes:
    """A file: magic, `blobs` from byte 4096 on, manifest at the next multiple of 4096, footer."""
    if manifest is None:
        manifest = cbor2.dumps({"objects": objects or {}} if root is None else root, canonical=True)
    body = MAGIC.ljust(4096, b"\0") + blobs
    body += bytes(-len(body) % 4096)
    footer = (
        len(body) if at is None else at, len(manifest) if length is None else length,
        xxhash.xxh3_64_intdigest(manifest) if digest is None else digest, version, 0, MAGIC,
    )  # fmt: skip
    return body + manifest + struct.pack("<QQQII8s", *footer)


def one(**changes: Any) -> Make:
    return lambda: pack({"w": item(**changes)})


def raw(manifest: bytes, **changes: Any) -> Make:
    return lambda: pack(manifest=manifest, **changes)


def frame(content: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(content)


def bomb(mebibytes: int, checksum: bool = False) -> bytes:
    """A zstd frame of so many MiB of zeros: run-length blocks of 128 KiB (RFC 8878, 3.1.1.2)."""
    blocks = b"\x02\0\x10\0" * (8 * mebibytes - 1) + b"\x03\0\x10\0"
    return bytes.fromhex("28b52ffd 0438" if checksum else "28b52ffd 0038") + blocks + bytes(4 * checksum)


def seekable(frames: list[tuple[bytes, int]]) -> bytes:
    table = b"".join(struct.pack("<II", len(stored), size) for stored, size in frames)
    table += struct.pack("<IBI", len(frames), 0, 0x8F92EAB1)
    return b"".join(stored for stored, _ in frames) + struct.pack("<II", 0x184D2A5E, len(table)) + table


def encoded(blob: bytes, decoded: int = 16, encoding: str = "zt.zstd-seekable/1", **changes: Any) -> Make:
    changes.setdefault("shape", (4,))
    record = item(blob=(4096, len(blob)), encoding=encoding, decoded_length=decoded, **changes)
    return lambda: pack({"w": record}, blob)


def parts(layout: str, shape: Any, attributes: Any = None, **arrays: Any) -> Make:
    """An object of several parts, each an array or `(type, array)`."""
    blobs, stored = b"", {}
    for role, value in arrays.items():
        logical, array = value if isinstance(value, tuple) else (None, value)
        stored[role] = {
            "dtype": squish.dtypes.from_numpy(array.dtype), "blob": [4096 + len(blobs), array.nbytes],
            **({"type": logical} if logical else {}),
        }  # fmt: skip
        blobs += array.tobytes()
        blobs += bytes(-len(blobs) % 4096)
    record = {"layout": layout, "shape": list(shape), "parts": stored}
    if attributes is not None:
        record["attributes"] = attributes
    return lambda: pack({"w": record}, blobs)


def csr(indptr: Any = (0, 2, 3), indices: Any = (0, 2, 1), kind: str = "u4", values: int = 3) -> Make:
    return parts(
        "zt.sparse_csr/1",
        (2, 3),
        values=np.arange(1, values + 1, dtype="<f4"),
        indices=np.array(indices, kind),
        indptr=np.array(indptr, kind),
    )


def coo(coords: Any, kind: str = "u8", shape: Any = (2, 3)) -> Make:
    array = np.array(coords, kind)
    return parts("zt.sparse_coo/1", shape, values=np.arange(1, array.shape[1] + 1, dtype="<f4"), coords=array)


def nested(levels: int) -> Any:
    value: Any = 0
    for _ in range(levels):
        value = [value]
    return value


DEEP = b"\x81" * 100_000 + b"\x00"
HEAD = b"\xa1\x67objects"
ENTRY = cbor2.dumps(item(), canonical=True)

OPEN_ERRORS: dict[str, tuple[Make, type[SquishError], str]] = {
    "b01 last byte missing": (lambda: one()()[:-1], TruncatedError, "footer"),
    "b02 cut in a blob": (lambda: one()()[:4100], TruncatedError, "footer"),
    "b03 header only": (lambda: MAGIC, TruncatedError, "truncated"),
    "b04 trailing byte": (lambda: one()() + b"\0", TruncatedError, "footer"),
    "wrong magic": (lambda: b"X" + one()()[1:], FormatError, "magic"),
    "an appended ZIP": (lambda: one()() + b"PK\5\6" + bytes(18), TruncatedError, "footer"),
    "over the footer": (lambda: pack({"w": item((6,), blob=(8192, 24))}, bytes(4096)), FormatError, "overlap"),
    "a NaN among the names": (raw(HEAD + b"\xa1\xf9\x7e\x00" + cbor2.dumps({})), FormatError, "name"),
    "a bignum": (raw(HEAD + b"\xa1\x61w\xc2\x49" + b"\x01" * 9), FormatError, "tag"),
    "float dimension": (one(shape=(4.0,)), FormatError, "shape"),
    "no elements but bytes": (one(shape=(0, 3)), FormatError, "size"),
    "identical blob of another size": (
        lambda: pack({"w": item(), "x": item(dtype="u8")}), FormatError, "size",
    ),
    "b05 manifest of 1 GiB and 1": (raw(HEAD + b"\xa0", length=GIB + 1), LimitError, "manifest-size"),
    "b06 wrong hash": (raw(HEAD + b"\xa0", digest=1), FormatError, "manifest-hash"),
    "b07 version 3": (raw(HEAD + b"\xa0", version=3), FormatError, "version"),
    "version swapped": (raw(HEAD + b"\xa0", version=2 << 24), FormatError, "version"),
    "b08 manifest wraps": (raw(HEAD + b"\xa0", at=(1 << 64) - 4096, length=8192), FormatError, "bounds"),
    "manifest unaligned": (raw(HEAD + b"\xa0", at=8000), FormatError, "alignment"),
    "manifest of length 0": (raw(HEAD + b"\xa0", length=0), FormatError, "manifest-size"),
    "manifest an array": (raw(b"\x80"), FormatError, "manifest"),
    "b10 partial overlap": (
        lambda: pack({"a": item((2048,), blob=(4096, 8192)), "b": item((1024,), blob=(8192, 4096))}, bytes(8192)),
        FormatError, "overlap",
    ),
    "over the manifest": (
        lambda: pack({"a": item((1025,), blob=(4096, 4100))}, bytes(4096)), FormatError, "overlap",
    ),
    "b11 offset 4100": (one(blob=(4100, 16)), FormatError, "alignment"),
    "offset 0": (one(blob=(0, 16)), FormatError, "alignment"),
    "b12 end wraps": (one(blob=((1 << 64) - 4096, 8192), shape=(2048,)), FormatError, "bounds"),
    "b13 past the end": (one(blob=(1 << 20, 16)), FormatError, "bounds"),
    "b14 shape against size": (one(shape=(400,)), FormatError, "size"),
    "b15 shape wraps": (one(shape=(1 << 32, 1 << 32)), FormatError, "shape"),
    "b16 negative dimension": (one(shape=(-4,)), FormatError, "shape"),
    "b30 depth": (raw(b"\xa2" + HEAD[1:] + b"\xa0\x6aattributes\xa1\x61a" + DEEP), FormatError, "cbor"),
    "depth 33": (lambda: pack(root={"attributes": {"a": nested(31)}, "objects": {}}), FormatError, "cbor"),
    "b31 indefinite length": (raw(HEAD + b"\xbf\xff"), FormatError, "cbor"),
    "b32 duplicate key": (raw(HEAD + b"\xa2" + (b"\x61w" + ENTRY) * 2), FormatError, "cbor"),
    "b33 name not UTF-8": (raw(HEAD + b"\xa1\x61\xff" + ENTRY), FormatError, "cbor"),
    "b34 name with NUL": (lambda: pack({"a\0b": item()}), FormatError, "name"),
    "b38 map of 2^60": (raw(HEAD + b"\xbb\x10" + bytes(7)), FormatError, "cbor"),
    "non-shortest length": (raw(b"\xa1\x78\x07objects\xa0"), FormatError, "cbor"),
    "non-shortest map": (raw(HEAD + b"\xb8\x00"), FormatError, "cbor"),
    "unsorted keys": (
        raw(HEAD + b"\xa2\x61x" + ENTRY + b"\x61w" + cbor2.dumps(item(blob=(4096, 16)), canonical=True)),
        FormatError, "cbor",
    ),
    "wide float": (
        raw(b"\xa2" + HEAD[1:] + b"\xa0\x6aattributes\xa1\x61a\xfb" + struct.pack(">d", 0.5)), FormatError, "cbor",
    ),
    "odd NaN": (raw(b"\xa2" + HEAD[1:] + b"\xa0\x6aattributes\xa1\x61a\xf9\x7e\x01"), FormatError, "cbor"),
    "tag": (raw(b"\xa2" + HEAD[1:] + b"\xa0\x6aattributes\xa1\x61a\xc1\x00"), FormatError, "tag"),
    "simple value": (raw(b"\xa2" + HEAD[1:] + b"\xa0\x6aattributes\xa1\x61a\xf7"), FormatError, "schema"),
    "trailing bytes": (raw(HEAD + b"\xa0\x00"), FormatError, "trailing"),
    "no objects": (raw(b"\xa0"), FormatError, "schema"),
    "empty name": (lambda: pack({"": item()}), FormatError, "name"),
    "name over 1024 bytes": (lambda: pack({"x" * 1025: item()}), LimitError, "name"),
    "rank 65": (one(shape=(1,) * 65, blob=(4096, 4)), LimitError, "shape"),
    "no parts": (lambda: pack({"w": {**item(), "parts": {}}}), FormatError, "schema"),
    "dtype a number": (one(dtype=3), FormatError, "schema"),
    "blob of three": (one(blob=(4096, 16, 0)), FormatError, "schema"),
    "blob of text": (one(blob=("4096", 16)), FormatError, "schema"),
    "decoded_length alone": (one(decoded_length=16), FormatError, "schema"),
    "encoding alone": (one(encoding="zt.zstd-seekable/1"), FormatError, "schema"),
    "upper-case digest": (one(digest="xxh3:" + "A" * 16), FormatError, "schema"),
    "short digest": (one(digest="sha256:00"), FormatError, "schema"),
    "dense with a further part": (
        lambda: pack({"w": {**item(), "parts": {**item()["parts"], "more": item()["parts"]["data"]}}}),
        FormatError, "schema",
    ),
    "f4 size": (one(dtype="u8", type="f4_e2m1", shape=(3,), blob=(4096, 3)), FormatError, "size"),
    "block size": (one(dtype="u8", layout="gguf.q4_0/1", shape=(32,)), FormatError, "size"),
    "shard not in the table": (one(shard="a"), FormatError, "shard"),
    "shard in memory": (
        lambda: pack(root={"objects": {"w": item(shard="a")}, "shards": {"a": {"size": 48, "digest": "md5:0"}}}),
        FormatError, "shard",
    ),
    **{f"shard named {name!r}": (
        lambda name=name: pack(root={"objects": {}, "shards": {name: {"size": 48, "digest": "xxh3:" + "0" * 16}}}),
        FormatError, "shard") for name in ("../a", ".a", "a/b", "", "x" * 65)},
    "shard without digest": (lambda: pack(root={"objects": {}, "shards": {"a": {"size": 48}}}), FormatError, "shard"),
}  # fmt: skip

READ_ERRORS: dict[str, tuple[Make, type[SquishError], str]] = {
    "b19 zstd garbage": (encoded(b"garbage garbage garbage"), CodecError, "zstd"),
    "b20 no seek table": (encoded(frame(FOUR)), CodecError, "zstd"),
    "zstd dictionary": (
        encoded(seekable([(bytes.fromhex("28b52ffd 25 07 10 810000") + bytes(20), 16)])), CodecError, "dictionary",
    ),
    "coords of another number": (
        parts("zt.sparse_coo/1", (2, 3), values=FOUR_VALUES, coords=np.zeros(7, "u4")),
        TensorError, "unreadable",
    ),
    "b22 table claims 2^31": (encoded(seekable([(frame(FOUR), 1 << 31)])), CodecError, "zstd"),
    "b23 decoded_length of 64 GiB": (
        encoded(seekable([(frame(FOUR), 16)]), 64 * GIB, shape=(16 * GIB,)), LimitError, "ratio",
    ),
    "table of another size": (encoded(seekable([(frame(FOUR), 12)])), CodecError, "zstd"),
    "table of another stream": (
        lambda: encoded(b"x" + seekable([(frame(FOUR), 16)]))(), CodecError, "zstd",
    ),
    "uneven frames": (
        encoded(seekable([(frame(FOUR[:4]), 4), (frame(FOUR[4:]), 12)])), CodecError, "zstd",
    ),
    "no checksum": (
        encoded(seekable([(zstandard.ZstdCompressor().compress(FOUR), 16)])), CodecError, "zstd",
    ),
    "frame too short": (encoded(seekable([(frame(FOUR[:8]), 16)])), CodecError, "size"),
    "b24 bomb frame of 16 GiB": (
        lambda: encoded(seekable([(bomb(16384, checksum=True), 16)]))(), CodecError, "size",
    ),
    "bomb frame in an empty tensor": (
        lambda: encoded(seekable([(bomb(16, checksum=True), 0)]), 0, shape=(0,))(), CodecError, "size",
    ),
    "garbage in an empty tensor": (lambda: encoded(b"garbage" * 9, 0, shape=(0,))(), CodecError, "zstd"),
    "1.x encoding": (encoded(frame(FOUR), encoding="zstd"), TensorError, "unreadable"),
    "b35 bool 2": (
        lambda: pack({"w": item(dtype="u8", type="bool", blob=(4096, 4))}, b"\0\1\2\0"), CodecError, "bool",
    ),
    "b36 unknown layout": (one(layout="acme.x/1"), TensorError, "unreadable"),
    "b37 unknown type": (one(dtype="u8", type="f3_zz", blob=(4096, 4)), TensorError, "unreadable"),
    "bool as a dtype": (one(dtype="bool", blob=(4096, 4)), TensorError, "unreadable"),
    "data missing": (
        lambda: pack({"w": {**item(), "parts": {"x": item()["parts"]["data"]}}}), TensorError, "unreadable",
    ),
    "f4 odd nibble": (
        lambda: pack({"w": item((3,), "u8", (4096, 2), type="f4_e2m1")}, b"\x21\x43"), CodecError, "spare",
    ),
    "b39 csr column": (csr(indices=(0, 3, 1)), CodecError, "index"),
    "csr columns fall": (csr(indices=(2, 0, 1)), CodecError, "index"),
    "csr indptr falls": (csr(indptr=(0, 4, 3)), CodecError, "index"),
    "csr indptr from 1": (csr(indptr=(1, 2, 3)), CodecError, "index"),
    "csr last": (csr(indptr=(0, 2, 2)), CodecError, "index"),
    "csr narrow": (csr(kind="u2"), TensorError, "unreadable"),
    "csr values": (csr(values=2), TensorError, "unreadable"),
    "coo out of range": (coo([[0, 1], [0, 3]]), CodecError, "index"),
    "coo twice": (coo([[0, 0], [1, 1]]), CodecError, "index"),
    "coo huge": (coo([[0], [0]], shape=(1 << 28, 1 << 28)), LimitError, "ratio"),
}  # fmt: skip


@pytest.mark.parametrize("row", OPEN_ERRORS)
def test_the_v2_file_is_refused(tmp_path: Path, row: str) -> None:
    make, kind, code = OPEN_ERRORS[row]
    with pytest.raises(kind) as caught:
        squish.open(make())
    assert caught.value.code == code


@pytest.mark.parametrize("row", READ_ERRORS)
def test_the_v2_tensor_is_refused_and_verify_finds_it(row: str) -> None:
    make, kind, code = READ_ERRORS[row]
    with squish.open(make()) as file, pytest.raises(kind) as caught:
        file["w"].numpy()
    assert (caught.value.tensor, caught.value.code) == ("w", code)
    assert not squish.verify(make(), deep=True).ok


ACCEPTED: dict[str, Make] = {
    "b00 baseline": one(), "identical blobs": lambda: pack({"w": item(), "tied": item()}),
    "xxh3": one(digest="xxh3:" + xxhash.xxh3_64_hexdigest(FOUR)),
    "sha256": one(digest="sha256:" + hashlib.sha256(FOUR).hexdigest()),
    "unknown key": lambda: pack({"w": item(extra=[1])}),
    "b21 two frames": encoded(seekable([(frame(FOUR[:8]), 8), (frame(FOUR[8:]), 8)])),
    "digest of decoded bytes": encoded(
        seekable([(frame(FOUR), 16)]), digest="xxh3:" + xxhash.xxh3_64_hexdigest(FOUR)
    ),
}  # fmt: skip


@pytest.mark.parametrize("row", ACCEPTED)
def test_the_v2_file_is_accepted(row: str) -> None:
    make = ACCEPTED[row]
    assert squish.verify(make(), deep=True).problems == ()
    with squish.open(make()) as file:
        assert file["w"].numpy().tolist() == [0, 1, 2, 3]


ENCODED = seekable([(frame(FOUR), 16)])
DIGESTS: dict[str, tuple[Make, str]] = {
    "b17 wrong xxh3": (one(digest="xxh3:" + "0" * 16), "digest"),
    "wrong sha256": (one(digest="sha256:" + "0" * 64), "digest"),
    "b18 unknown algorithm": (one(digest="md5:00"), "unverified"),
    "digest of encoded bytes": (
        encoded(ENCODED, digest="sha256:" + hashlib.sha256(ENCODED).hexdigest()), "digest",
    ),
}  # fmt: skip


@pytest.mark.parametrize("row", DIGESTS)
def test_verify_checks_v2_digests(row: str) -> None:
    make, code = DIGESTS[row]
    [problem] = squish.verify(make(), deep=True).problems
    assert problem.code == code
    with squish.open(make()) as file:
        assert file["w"].numpy().tolist() == [0, 1, 2, 3]


MALFORMED: dict[int, tuple[str, ...]] = {
    1: ("b03",), 2: ("wrong magic",), 3: ("b07", "version swapped"), 9: ("b08", "b12", "b13"),
    10: ("b10", "identical blob"), 11: ("appended_v2_file",), 12: ("b04", "an appended ZIP"),
    13: ("offset 0", "over the manifest", "over the footer"), 15: ("b14", "b15", "no elements but bytes"),
    16: ("f4 odd nibble",), 24: ("b37", "rank 65"), 25: ("b05", "b08", "manifest of length 0"), 26: ("b01", "b04"),
    27: ("b32",), 28: ("b31", "non-shortest", "unsorted keys", "wide float", "tag", "trailing bytes"),
    29: ("b30", "b38"), 30: ("b16", "float dimension", "blob of text", "a bignum", "a NaN among the names"),
    31: ("no objects", "data missing", "dense with a further part"), 32: ("b11",),
    33: ("b17", "b18", "upper-case digest", "digest of encoded bytes"),
    34: ("b19", "b20", "b21", "b22", "b23", "b24", "zstd dictionary", "table of another size", "1.x encoding"),
    35: ("b39", "csr indptr falls", "csr last", "csr narrow", "coo out of range", "coo twice", "coords of another"),
    36: ("b35", "f4 odd nibble"), 46: ("b34", "empty name", "name over 1024 bytes", "look_the_same", "named_metadata"),
    47: ("many_tensors",), 48: ("cut_while_it_is_open",),
    50: ("shard named", "shard without digest", "shard not in the table", "parts_lie_in_shards",
         "different_shard_names_it", "shard_with_another_digest"),
}  # fmt: skip
"""Case of the project's checklist of malformed inputs -> the rows and tests here that show its outcome."""


@pytest.mark.parametrize("case", MALFORMED)
def test_every_case_has_its_rows(case: int) -> None:
    for label in MALFORMED[case]:
        assert any(row.startswith(label) or label in row for row in shown()), label


def test_every_row_of_the_robustness_table_is_here() -> None:
    groups = ((0, 8), (10, 24), (30, 39))
    expected = {f"b{number:02}" for low, high in groups for number in range(low, high + 1)}
    assert expected <= {label for row in shown() for label in re.findall(r"\bb\d\d\b", row)}


def shown() -> list[str]:
    tables: tuple[dict[str, Any], ...] = (OPEN_ERRORS, READ_ERRORS, ACCEPTED, DIGESTS)
    return [row for table in tables for row in table] + [name for name in globals() if name.startswith("test_")]


def test_names_that_look_the_same_are_both_kept() -> None:
    with squish.open(pack({"\u00e9": item(), "e\u0301": item()})) as file:
        assert len(file) == 2
        assert [problem.code for problem in file.problems] == ["name"]


def test_many_tensors_are_opened_in_linear_time_up_to_the_limit() -> None:
    data = pack({f"{number:05x}": item() for number in range(20_000)})
    assert len(squish.open(data)) == 20_000
    with pytest.raises(LimitError) as caught:
        squish.open(data, limits=squish.Limits(tensors=19_999))
    assert (caught.value.code, caught.value.found) == ("count", 20_000)


def test_the_densest_valid_manifests_are_within_the_memory_limit() -> None:
    short = {"layout": "dense", "shape": [], "parts": {"d": {"dtype": "u8", "blob": [0, 1]}}}
    _check_memory(cbor2.dumps({"objects": {f"{number:05x}": short for number in range(20_000)}}), 0)


def test_a_v2_file_that_is_cut_while_it_is_open_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "model.zt"
    path.write_bytes(pack({"w": item((4096,), blob=(4096, 16384))}, bytes(16384)))
    with squish.open(path) as file:
        path.write_bytes(b"")
        with pytest.raises(SquishError):
            file["w"].numpy()


def test_limits_cannot_raise_the_depth_of_v2() -> None:
    for data, depth in ((OPEN_ERRORS["depth 33"][0](), 100), (VALID["depth 32"](), 20)):
        with pytest.raises(FormatError) as caught:
            squish.open(data, limits=squish.Limits(depth=depth))
        assert caught.value.code == "cbor"


def test_an_empty_v2_file_and_a_data_shard_have_no_tensors() -> None:
    assert list(squish.open(pack({}))) == []
    shard = squish.open(pack(manifest=b"", at=0, length=0, digest=0))
    assert [problem.code for problem in shard.problems] == ["data-shard"]


def test_an_appended_v2_file_is_read_from_its_last_manifest() -> None:
    old = pack({"w": item()})
    start = len(old) + -len(old) % 4096
    manifest = cbor2.dumps({"objects": {"v": item(blob=(start, 16)), "w": item()}}, canonical=True)
    body = old.ljust(start, b"\0") + FOUR + bytes(4080)
    footer = struct.pack("<QQQII8s", len(body), len(manifest), xxhash.xxh3_64_intdigest(manifest), 2, 0, MAGIC)
    with squish.open(body + manifest + footer) as file:
        assert list(file) == ["w", "v"]
    assert squish.verify(body + manifest + footer, deep=True).problems == ()


def test_a_tensor_named_metadata_is_read_and_not_written(tmp_path: Path) -> None:
    (tmp_path / "old.zt").write_bytes(pack({"__metadata__": item()}))
    with squish.open(tmp_path / "old.zt") as file:
        assert list(file) == ["__metadata__"]
        assert [(problem.code, problem.severity) for problem in file.problems] == [("name", "warning")]
        with pytest.raises(TensorError) as caught:
            squish.convert(file, tmp_path / "new.zt", to="ztensor:wire=2")
        assert (caught.value.tensor, caught.value.code) == ("__metadata__", "refused")


SHARD = pack({})[:4096] + FOUR + bytes(4080) + struct.pack("<QQQII8s", 0, 0, 0, 2, 0, MAGIC)
SHARD_DIGEST = "sha256:" + hashlib.sha256(SHARD).hexdigest()


def sharded(folder: Path, shard: bytes | None = SHARD, *, size: int = len(SHARD), digest: str = SHARD_DIGEST) -> Path:
    """A file whose one tensor lies in a shard beside it."""
    root = {"objects": {"w": item(shard="00")}, "shards": {"00": {"size": size, "digest": digest}}}
    (folder / "model.zt").write_bytes(pack(root=root, blobs=b""))
    if shard is not None:
        (folder / "model-00.zt").write_bytes(shard)
    return folder / "model.zt"


def test_parts_lie_in_shards_beside_the_file(tmp_path: Path) -> None:
    path = sharded(tmp_path)
    with squish.open(path, strict=True) as file:
        assert file["w"].numpy().tolist() == [0, 1, 2, 3]
    assert squish.verify(path, deep=True).problems == ()
    squish.convert(path, tmp_path / "one.zt", to="ztensor:wire=2")
    assert squish.open(tmp_path / "one.zt")["w"].numpy().tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "changes",
    [{"shard": None}, {"size": len(SHARD) + 1}, {"shard": SHARD[:-40] + bytes(40) + SHARD[-40:]},
     {"shard": SHARD[:-1] + b"\1"}, {"shard": b"\1" + SHARD[1:]}],
)  # fmt: skip
def test_the_message_about_a_missing_or_different_shard_names_it(tmp_path: Path, changes: Any) -> None:
    with expect_error(FormatError, code="shard") as caught:
        squish.open(sharded(tmp_path, **changes))
    assert "the shard '00'" in caught.value.message
    assert str(caught.value.found).endswith("model-00.zt")


@pytest.mark.parametrize(
    "changes",
    [{"shard": SHARD[:4096] + b"\1" + SHARD[4097:]}, {"digest": "sha256:" + 64 * "0"}, {"digest": "xxh3:" + 16 * "0"}],
    ids=["damaged", "sha256", "xxh3"],
)  # fmt: skip
def test_the_message_about_a_shard_with_another_digest_names_it(tmp_path: Path, changes: Any) -> None:
    path = sharded(tmp_path, **changes)
    [problem] = squish.verify(path).problems
    assert (problem.code, problem.severity, problem.where) == ("digest", "error", "model-00.zt")
    for read in (lambda: squish.open(path, strict=True), lambda: squish.convert(path, tmp_path / "one.zt")):
        with expect_error(FormatError, code="digest") as caught:
            read()
        assert "model-00.zt: the file's digest does not match" in str(caught.value)
    assert not (tmp_path / "one.zt").exists()


def test_an_unknown_kind_of_shard_digest_is_reported(tmp_path: Path) -> None:
    path = sharded(tmp_path, digest="md5:00")
    assert [(problem.code, problem.where) for problem in squish.verify(path).problems] == [
        ("unverified", "model-00.zt")
    ]
    assert squish.convert(path, tmp_path / "one.zt").dropped == (
        Dropped("digest", "md5:00", "unknown algorithm", "model-00.zt"),
    )


@pytest.mark.parametrize("to", ["ztensor:wire=2", "ztensor:wire=2,encoding=zstd", "ztensor", "ztensor:digest=sha256"])
def test_wrong_digests_are_not_converted_into_right_ones(tmp_path: Path, to: str) -> None:
    (tmp_path / "old.zt").write_bytes(one(digest="xxh3:" + 16 * "0")())
    with pytest.raises(FormatError) as caught:
        squish.convert(tmp_path / "old.zt", tmp_path / "new.zt", to=to)
    assert (caught.value.code, caught.value.tensor, caught.value.part) == ("digest", "w", "data")
    assert not (tmp_path / "new.zt").exists()
    (tmp_path / "old.zt").write_bytes(one(digest="md5:00")())
    report = squish.convert(tmp_path / "old.zt", tmp_path / "new.zt", to=to)
    assert report.dropped == (Dropped("digest", "md5:00", "unknown algorithm", "w/data"),)


def test_a_region_decodes_its_frames_only() -> None:
    rows = np.arange(64 * 8, dtype="<f4").reshape(64, 8)
    frames = [(frame(piece.tobytes()), piece.nbytes) for piece in np.split(rows, 8)]
    damaged = [*frames[:6], (bytes(len(frames[6][0])), frames[6][1]), frames[7]]
    with squish.open(encoded(seekable(damaged), rows.nbytes, shape=(64, 8))()) as file:
        for region in (slice(0, 48), slice(5, 6), slice(7, 17), slice(56, 64), slice(57, 57)):
            np.testing.assert_array_equal(file["w"][region], rows[region])
        array = file.array(file["w"].spec.encodings[0].parts["data"])
        for at in range(0, 48, 3):
            np.testing.assert_array_equal(array[at : at + 3], rows[at : at + 3])
        for region in (slice(47, 49), slice(0, 64)):
            with pytest.raises(CodecError):
                file["w"][region]


def test_sparse_rows_are_densified_by_region_and_given_to_scipy() -> None:
    with squish.open(csr()()) as file:
        assert file["w"].numpy().tolist() == [[1, 0, 2], [0, 3, 0]]
        assert file["w"][1:, 1:].tolist() == [[3, 0]]
        assert sorted(file["w"].parts()) == ["indices", "indptr", "values"]


def test_sparse_coordinates_of_any_rank_are_densified() -> None:
    with squish.open(coo([[0, 1], [1, 0], [2, 2]], shape=(2, 2, 3))()) as file:
        dense = file["w"].numpy()
        assert (dense[0, 1, 2], dense[1, 0, 2], np.count_nonzero(dense)) == (1, 2, 2)
        assert file["w"][1, 0].tolist() == [0, 0, 2]


def test_small_types_of_v2_are_unpacked() -> None:
    with squish.open(pack({"w": item((3,), "u8", (4096, 2), type="f4_e2m1")}, b"\x21\x03")) as file:
        assert file["w"].numpy().astype("f4").tolist() == [0.5, 1, 1.5]
    with squish.open(pack({"w": item((2,), "u8", (4096, 2), type="f8_e8m0")}, b"\x7f\x80")) as file:
        assert file["w"].numpy().astype("f4").tolist() == [1, 2]


QUANT = {
    "bits": 4, "group_size": 4, "axis": 0, "packing": {"word": "u32", "order": "lsb_first", "per_word": 8},
    "scale_form": "f16_factors", "zero_point": {"form": "tensor", "packing": "plain"},
}  # fmt: skip
WORDS = np.array([[0x76543210, 0xFEDCBA98]], "<u4")
CODES = np.stack([np.arange(8), np.arange(8, 16)], 1)
SCALES = np.array([[1, 2], [3, 4]], "<f2")
ZEROS = np.array([[0, 1], [2, 3]], "<f2")


def quant(shape: Any = (8, 2), words: Any = WORDS, scales: Any = SCALES, zeros: Any = ZEROS, **changes: Any) -> Make:
    stored = {"data": words, "scales": scales, **({} if zeros is None else {"zeros": zeros})}
    return parts("zt.quant_group/1", shape, {**QUANT, **changes}, **stored)


def values(make: Make) -> Any:
    with squish.open(make()) as file:
        return file["w"].numpy()


def test_group_quantization_along_the_first_axis() -> None:
    expected = (CODES - np.repeat(ZEROS.astype("f4"), 4, 0)) * np.repeat(SCALES.astype("f4"), 4, 0)
    np.testing.assert_array_equal(values(quant()), expected)


def test_group_quantization_along_the_last_axis() -> None:
    make = quant((2, 8), WORDS.T, axis=1)
    expected = (CODES.T - np.repeat(ZEROS.astype("f4"), 4, 1)) * np.repeat(SCALES.astype("f4"), 4, 1)
    np.testing.assert_array_equal(values(make), expected)


def test_the_first_code_of_a_word_may_be_the_highest() -> None:
    order = {"word": "u32", "order": "msb_first", "per_word": 8}
    decoded = values(quant(zeros=None, packing=order, zero_point={"form": "none"}))
    np.testing.assert_array_equal(decoded, CODES[::-1] * np.repeat(SCALES.astype("f4"), 4, 0))


def test_a_zero_point_may_be_implied() -> None:
    decoded = values(quant(zeros=None, zero_point={"form": "implied", "value": 8}))
    np.testing.assert_array_equal(decoded, (CODES - 8.0) * np.repeat(SCALES.astype("f4"), 4, 0))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"bits": 3}, "bits"), ({"axis": 2}, "axis"), ({"group_size": 3}, "group size"), ({"bits": "4"}, "bits"),
        ({"packing": {"word": "u32", "order": "lsb_first", "per_word": 4}}, "per_word"),
        ({"packing": {"word": "u16", "order": "lsb_first", "per_word": 4}}, "word"),
        ({"packing": {"word": "u32", "order": "up", "per_word": 8}}, "order"),
        ({"scale_form": "x"}, "scale_form"), ({"scale_form": "e8m0_exponent"}, "scale_form"),
        ({"zero_point": {"form": "x"}}, "zero_point"), ({"zero_point": {"form": "none"}}, "zeros"),
        ({"zero_point": {"form": "implied", "value": "8"}, "zeros": None}, "zero_point"), ({"zeros": None}, "zeros"),
        ({"scales": SCALES[:1]}, "4 bytes"),
    ],
)  # fmt: skip
def test_the_message_about_an_invalid_group_quantization_names_the_attribute(changes: Any, field: str) -> None:
    with squish.open(quant(**changes)()) as file, pytest.raises(TensorError) as caught:
        file["w"].numpy()
    assert (caught.value.code, caught.value.tensor) == ("unreadable", "w")
    assert field in caught.value.message


def test_microscaling_multiplies_blocks_by_powers_of_two() -> None:
    attributes = {"block_size": 4, "scale_form": "e8m0_exponent"}
    data, scales = np.array([[0x21, 0x43, 0xA9, 0xCB]], "u1"), np.array([[127, 129]], "u1")
    make = parts("zt.mx/1", (1, 8), attributes, data=("f4_e2m1", data), scales=("f8_e8m0", scales))
    assert values(make).tolist() == [[0.5, 1, 1.5, 2, -2, -4, -6, -8]]
    with squish.open(make()) as file:
        assert file["w"][:, 5:7].tolist() == [[-4, -6]]


@pytest.mark.parametrize(
    ("attributes", "field"),
    [({"block_size": 3}, "block_size"), ({"block_size": 4}, "scale_form"),
     ({"block_size": 4, "axis": 2, "scale_form": "e8m0_exponent"}, "axis")],
)  # fmt: skip
def test_the_message_about_an_invalid_microscaling_names_the_attribute(attributes: Any, field: str) -> None:
    data, scales = np.zeros((1, 4), "u1"), np.zeros((1, 2), "u1")
    make = parts("zt.mx/1", (1, 8), attributes, data=("f4_e2m1", data), scales=("f8_e8m0", scales))
    with squish.open(make()) as file, pytest.raises(TensorError) as caught:
        file["w"].numpy()
    assert (caught.value.code, caught.value.tensor) == ("unreadable", "w")
    assert field in caught.value.message


def test_sparse_tensors_are_given_to_scipy_with_their_indices_validated() -> None:
    for make in (csr(), coo([[0, 0, 1], [0, 2, 1]])):
        with squish.open(make()) as file:
            assert to_scipy(file["w"]).toarray().tolist() == [[1, 0, 2], [0, 3, 0]]
    for invalid in (csr(indices=(0, 3, 1)), coo([[0, 1], [0, 3]]), one()):
        with squish.open(invalid()) as file, pytest.raises(CodecError) as caught:
            to_scipy(file["w"])
        assert caught.value.tensor == "w"


VALID: dict[str, Make] = {
    "quant": quant(), "implied": quant(zeros=None, zero_point={"form": "implied", "value": 8}), "csr": csr(),
    "coo": coo([[0, 1], [0, 2]]),
    "mx": parts("zt.mx/1", (1, 8), {"block_size": 4, "scale_form": "e8m0_exponent"},
                data=("f4_e2m1", np.zeros((1, 4), "u1")), scales=("f8_e8m0", np.zeros((1, 2), "u1"))),
    "f4": lambda: pack({"w": item((3,), "u8", (4096, 2), type="f4_e2m1")}, b"\x21\x03"),
    "seekable": encoded(seekable([(frame(FOUR[:8]), 8), (frame(FOUR[8:]), 8)])),
    "depth 32": lambda: pack(root={"attributes": {"a": nested(30)}, "objects": {"w": item()}}),
    "tied": lambda: pack({"w": item(), "tied": item()}), "further attribute": quant(note=1),
}  # fmt: skip


@pytest.mark.oracle
# It does not look at the sizes of GGML blocks.
@pytest.mark.parametrize("row", [*VALID, *(row for row in OPEN_ERRORS if row != "block size")])
def test_the_reference_2_agrees_on_what_is_a_file(tmp_path: Path, row: str) -> None:
    import oracles

    def opens(path):  # type: ignore[no-untyped-def] # runs in the peer
        import ztensor

        try:
            ztensor.verify(path, deep=True)
            return "ok"
        except Exception as error:
            return str(error)

    path = tmp_path / "model.zt"
    path.write_bytes(VALID[row]() if row in VALID else OPEN_ERRORS[row][0]())
    answer = oracles.peer("ztensor-2.1.2").run(opens, path=str(path))
    assert (answer == "ok") == (row in VALID), answer


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 64), (1 << 64) - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5)
    | st.sampled_from(["zt.zstd-seekable/1", "dense", "zt.mx/1", "gguf.q4_0/1", "u8", "f64", 4, 4096, 1 << 63]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)


@settings(max_examples=150, deadline=None)
@given(data=st.data(), row=st.sampled_from(["quant", "csr", "coo", "mx", "f4", "seekable"]))
def test_any_value_anywhere_in_a_v2_manifest_gives_typed_errors_only(data: st.DataObject, row: str) -> None:
    file = VALID[row]()
    start, length = struct.unpack("<QQ", file[-40:-24])
    manifest = cbor2.loads(file[start : start + length])
    manifest["objects"]["squish.meta"] = item((16,), "u8")
    node: Any = manifest
    while True:
        key = data.draw(st.sampled_from(sorted(node) if isinstance(node, dict) else range(len(node))))
        if not isinstance(node[key], (dict, list)) or not node[key] or data.draw(st.integers(0, 3)) == 0:
            break
        node = node[key]
    node[key] = data.draw(VALUES)
    # Drawing from Hypothesis builds its own tables of Unicode, far larger than anything measured here.
    tracemalloc.reset_peak()
    try:
        opened = squish.open(pack(root=manifest, blobs=file[4096:start]))
        for tensor in opened.values():
            tensor.parts()
            tensor.numpy()
    except SquishError as error:
        assert error.code != "plugin-bug", error  # noqa: PT017
