"""Malformed and edge inputs, one row each; the numbers are those of the project's robustness table for zTensor 1.1."""

from __future__ import annotations

import hashlib
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cbor2
import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from squish_ztensor.edit import edit

import squish_core as squish
from squish_core.errors import (
    CodecError,
    FormatError,
    LimitError,
    SquishError,
    TensorError,
    TruncatedError,
    UnknownFormatError,
)

pytestmark = pytest.mark.usefixtures("little_memory")

Make = Callable[[Any], bytes]
GIB = 1 << 30
SHA = "4c9c4f354e74153db012329d71c8562ec23e498148174b2c49de58f45d47cdbe"
ZSTD_FOUR = zstandard.ZstdCompressor().compress(np.arange(4, dtype="<f4").tobytes())
ZSTD_SHA = hashlib.sha256(ZSTD_FOUR).hexdigest()


def one(**changes: Any) -> Make:
    """A file with one tensor `w`, changed."""
    return lambda zt: zt.pack({"w": zt.item(**changes)})


def compressed(blob: bytes, **changes: Any) -> Make:
    """A file with one zstd tensor `w` whose stored bytes are `blob`."""
    return lambda zt: zt.pack({"w": zt.item(length=len(blob), encoding="zstd", **changes)}, blob)


def raw(manifest: bytes, **changes: Any) -> Make:
    """A file with a manifest given byte by byte."""
    return lambda zt: zt.pack(manifest=manifest, **changes)


def root(**changes: Any) -> Make:
    """A file with changed root keys; None leaves a key out."""

    def make(zt: Any) -> bytes:
        keys = {"version": "1.1.0", "objects": {"w": zt.item()}, **changes}
        return zt.pack(root={key: value for key, value in keys.items() if value is not None})

    return make


def valid(zt: Any) -> bytes:
    return zt.pack({"w": zt.item()})


def sparse(layout: str, **components: Any) -> Make:
    """A sparse object over the same 16 bytes."""

    def make(zt: Any) -> bytes:
        parts = {
            role: {"dtype": dtype, "offset": 64 + 64 * at, "length": 16}
            for at, (role, dtype) in enumerate(components.items())
        }
        objects = {"ok": zt.item(), "w": {"shape": [2, 2], "format": layout, "components": parts}}
        return zt.pack(objects, zt.four + bytes(256))

    return make


def csr(
    zt: Any,
    indices: Any = (0, 1, 0, 1),
    indptr: Any = None,
    kind: str = "u2",
    values: bytes | None = None,
    rows: int = 2,
) -> bytes:
    """A sparse matrix `w` with four values, and a dense tensor `ok`."""
    indptr = np.array([0, 2, 4] if indptr is None else indptr, "u4")
    return several(zt, "sparse_csr", [rows, 2], values=values, indices=np.array(indices, kind), indptr=indptr)


def coo(zt: Any, coords: Any) -> bytes:
    return several(zt, "sparse_coo", [2, 2], values=zt.four[:8], coords=np.array(coords, "u1"))


def several(zt: Any, layout: str, shape: Any, values: bytes | None, **indices: Any) -> bytes:
    blobs = {"values": values or zt.four, **{role: array.tobytes() for role, array in indices.items()}}
    body, stored = zt.four + bytes(48), {}
    for role, blob in blobs.items():
        kind = squish.dtypes.from_numpy(indices[role].dtype) if role in indices else "f32"
        stored[role] = {"dtype": kind, "offset": 64 + len(body), "length": len(blob)}
        if role == "values" and len(blob) > 16:
            stored[role]["encoding"] = "zstd"
        body += blob + bytes(-len(blob) % 64)
    return zt.pack({"ok": zt.item(), "w": {"shape": shape, "format": layout, "components": stored}}, body)


ENTRY = cbor2.dumps({"shape": [4], "format": "dense", "components": {}})
DEEP = b"\x81" * 100_000 + b"\x00"
START = b"\xa2" + cbor2.dumps("version") + cbor2.dumps("1.1.0")
OBJECTS = cbor2.dumps("objects")

OPEN_ERRORS: dict[str, tuple[Make, type[SquishError], str]] = {
    "a01 empty": (lambda zt: b"", FormatError, "empty"),
    "a02 7 bytes": (lambda zt: zt.magic[:7], TruncatedError, "truncated"),
    "a03 header only": (lambda zt: zt.magic, TruncatedError, "truncated"),
    "a04 header and footer magic": (lambda zt: zt.magic * 2, TruncatedError, "truncated"),
    "a05 cut in a blob": (lambda zt: valid(zt)[:70], TruncatedError, "footer"),
    "a06 cut in the manifest": (lambda zt: valid(zt)[:100], TruncatedError, "footer"),
    "a07 cut in the size": (lambda zt: valid(zt)[:-12], TruncatedError, "footer"),
    "a08 last byte missing": (lambda zt: valid(zt)[:-1], TruncatedError, "footer"),
    "a09 wrong header magic": (lambda zt: b"X" + valid(zt)[1:], FormatError, "magic"),
    "a10 trailing bytes": (lambda zt: valid(zt) + b"\0\0", TruncatedError, "footer"),
    "a11 manifest of 1 GiB and 1": (raw(b"\xa0", size=GIB + 1), LimitError, "manifest-size"),
    "a12 manifest of 1 GiB": (raw(b"\xa0", size=GIB), FormatError, "manifest-size"),
    "a13 manifest of 2^64-1": (raw(b"\xa0", size=(1 << 64) - 1), LimitError, "manifest-size"),
    "a14 size too small": (lambda zt: zt.pack({"w": zt.item()}, size=20), FormatError, "manifest"),
    "a15 size 0": (raw(b"\xa0", size=0), FormatError, "manifest-size"),
    "a16 manifest over the header": (
        lambda zt: zt.pack({}, size=len(zt.pack({})) - 20), FormatError, "manifest-size",
    ),
    "a21 partial overlap": (
        lambda zt: zt.pack({"a": zt.item((32,), length=128), "b": zt.item(offset=128)}, bytes(192)),
        FormatError, "overlap",
    ),
    "a22 over the manifest": (one(shape=(5,), length=20), FormatError, "bounds"),
    "a23 offset 0": (one(offset=0), FormatError, "bounds"),
    "a24 offset 68": (lambda zt: zt.pack({"w": zt.item(offset=68)}, bytes(64)), FormatError, "bounds"),
    "a25 past the end": (one(shape=(1 << 20,), length=1 << 22), FormatError, "bounds"),
    "a26 offset past the end": (one(offset=1 << 30), FormatError, "bounds"),
    "a27 offset wraps": (one(shape=(32,), offset=(1 << 64) - 64, length=128), FormatError, "bounds"),
    "a28 length 2^63": (one(length=1 << 63), FormatError, "bounds"),
    "a29 length 2^63, zstd": (one(length=1 << 63, encoding="zstd"), FormatError, "bounds"),
    "a30 length 8 GiB, zstd": (one(length=8 << 30, encoding="zstd"), FormatError, "bounds"),
    "a31 shape too large": (one(shape=(5,)), FormatError, "size"),
    "a32 shape too small": (one(shape=(3,)), FormatError, "size"),
    "a33 shape wraps to 0": (one(shape=(1 << 32, 1 << 32), length=0), FormatError, "shape"),
    "a34 shape wraps to 4": (one(shape=((1 << 62) + 1, 4)), FormatError, "shape"),
    "a35 the same, zstd": (compressed(ZSTD_FOUR, shape=((1 << 62) + 1, 4)), FormatError, "shape"),
    "a36 negative dimension": (one(shape=(-4,)), FormatError, "shape"),
    "a37 float dimension": (one(shape=(4.0,)), FormatError, "shape"),
    "a38 31 GiB of tiny zstd": (compressed(ZSTD_FOUR, shape=(8_321_499_136,)), FormatError, "size"),
    "a60 depth under an unknown key": (
        raw(b"\xa3" + START[1:] + OBJECTS + b"\xa0" + cbor2.dumps("x") + DEEP), FormatError, "cbor",
    ),
    "a61 depth in an attribute": (
        raw(START + OBJECTS + b"\xa1\x61w\xa1" + cbor2.dumps("attributes") + b"\xa1\x61a" + DEEP), FormatError, "cbor",
    ),
    "a63 duplicate name": (raw(START + OBJECTS + b"\xa2" + (b"\x61w" + ENTRY) * 2), FormatError, "cbor"),
    "a64 duplicate version": (
        raw(b"\xa3" + (START[1:] * 2) + OBJECTS + b"\xa0"), FormatError, "cbor",
    ),
    "a65 name not UTF-8": (raw(START + OBJECTS + b"\xa1\x61\xff" + ENTRY), FormatError, "cbor"),
    "a66 name of bytes": (raw(START + OBJECTS + b"\xa1\x41w" + ENTRY), FormatError, "name"),
    "a67 name with NUL": (lambda zt: zt.pack({"a\0b": zt.item()}), FormatError, "name"),
    "a69 trailing bytes": (lambda zt: zt.pack(manifest=cbor2.dumps({"version": "1.1.0", "objects": {}}) + b"\0"),
                           FormatError, "trailing"),
    "a70 an array": (raw(b"\x80"), FormatError, "manifest"),
    "a71 no objects": (root(objects=None), FormatError, "schema"),
    "a72 no version": (root(version=None), FormatError, "schema"),
    "a76 array of 2^60": (raw(START + OBJECTS + b"\xa1\x61w\x9b\x10" + bytes(7)), FormatError, "cbor"),
    "a77 text of 2^60": (raw(START + OBJECTS + b"\xa1\x61w\x7b\x10" + bytes(7)), FormatError, "cbor"),
    "git-lfs pointer": (
        lambda zt: b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n",
        UnknownFormatError, "lookalike",
    ),
    "HTML page": (lambda zt: b"<!DOCTYPE html><html></html>", UnknownFormatError, "lookalike"),
    "an appended ZIP": (lambda zt: valid(zt) + b"PK\5\6" + bytes(18), TruncatedError, "footer"),
    "identical range of another size": (
        lambda zt: zt.pack({"w": zt.item(), "x": zt.item(dtype="u8")}), FormatError, "size",
    ),
    "no elements but bytes": (one(shape=(0, 3)), FormatError, "size"),
    "a NaN among the names": (
        lambda zt: zt.pack(manifest=START + OBJECTS + b"\xa1\xf9\x7e\x00" + ENTRY), FormatError, "name",
    ),
    "a NaN among the keys": (raw(b"\xa3" + START[1:] + OBJECTS + b"\xa0\xf9\x7e\x00\x01"), FormatError, "schema"),
    **{f"half a million {what}": (
        raw(START + OBJECTS + b"\xa1\x61w\x9a" + (500_000).to_bytes(4, "big") + item * 500_000), LimitError,
        "count",
    ) for what, item in {
        "empty maps": b"\xa0", "empty arrays": b"\x80", "maps": b"\xa1\x01\x01",
    }.items()},
    # items as dense as in valid manifests are decoded
    **{f"half a million {what}": (
        raw(START + OBJECTS + b"\xa1\x61w\x9a" + (500_000).to_bytes(4, "big") + item * 500_000), FormatError,
        "schema",
    ) for what, item in {
        "negative numbers": b"\x30", "simple values": b"\xf8\x34", "texts of two letters": b"\x62ab",
        "texts of one sign": "\x62\u0100".encode(),
    }.items()},
    "map of 2^60": (raw(START + OBJECTS + b"\xbb\x10" + bytes(7)), FormatError, "cbor"),
    "name over 1024 bytes": (lambda zt: zt.pack({"x" * 1025: zt.item()}), LimitError, "name"),
    "rank 65": (one(shape=(1,) * 65, length=4), LimitError, "shape"),
    "shape missing": (one(shape=()), FormatError, "size"),
    "shape of text": (lambda zt: zt.pack({"w": {**zt.item(), "shape": "4"}}), FormatError, "shape"),
    "offset of text": (one(offset="64"), FormatError, "schema"),
    "offset a float": (one(offset=64.0), FormatError, "schema"),
    "offset a boolean": (one(offset=True), FormatError, "schema"),
    "length negative": (one(length=-1), FormatError, "schema"),
    "length missing": (one(length=None), FormatError, "schema"),
    "length a bignum": (one(length=1 << 70), FormatError, "tag"),
    "object an array": (lambda zt: zt.pack({"w": []}), FormatError, "schema"),
    "components missing": (lambda zt: zt.pack({"w": {"shape": []}}), FormatError, "schema"),
    "role a number": (lambda zt: zt.pack({"w": {**zt.item(), "components": {1: {}}}}), FormatError, "schema"),
    "component a number": (
        lambda zt: zt.pack({"w": {**zt.item(), "components": {"data": 1}}}), FormatError, "schema",
    ),
    "attributes a list": (root(attributes=[]), FormatError, "schema"),
    "attribute under a number": (root(attributes={1: 2}), FormatError, "schema"),
    "tag outside attributes": (root(extra=cbor2.CBORTag(4242, "x")), FormatError, "tag"),
    "tag under a known number": (root(version=cbor2.CBORTag(55799, "1.1.0")), FormatError, "tag"),
    "version a number": (root(version=1), FormatError, "schema"),
    "uncompressed_length wrong": (compressed(ZSTD_FOUR, uncompressed_length=17), FormatError, "size"),
    "GGML block size wrong": (one(format="gguf.q4_0", dtype="u8", shape=(32,)), FormatError, "size"),
}  # fmt: skip

READ_ERRORS: dict[str, tuple[Make, type[SquishError], str]] = {
    "a49 digest a number": (one(digest=7), TensorError, "unreadable"),
    "a50 zstd garbage": (compressed(b"garbage garbage!"), CodecError, "zstd"),
    "a51 zstd cut": (compressed(ZSTD_FOUR[:-1]), CodecError, "zstd"),
    "a52 zstd too short": (compressed(ZSTD_FOUR, shape=(8,)), CodecError, "size"),
    "a53 zstd too long": (compressed(ZSTD_FOUR, shape=(3,)), CodecError, "size"),
    "a55 zstd with a tail": (compressed(ZSTD_FOUR + b"tail"), CodecError, "zstd"),
    "a56 bomb of 16 GiB": (lambda zt: compressed(zt.bomb(16384))(zt), CodecError, "size"),
    "a58 bomb whose shape fits": (
        lambda zt: compressed(zt.bomb(16384), shape=(4 << 30,))(zt), LimitError, "ratio",
    ),
    "a59 frame of 2^60": (
        compressed(bytes.fromhex("28b52ffd e0") + (1 << 60).to_bytes(8, "little") + b"\1\0\0"), CodecError, "window",
    ),
    "zstd dictionary": (
        compressed(bytes.fromhex("28b52ffd 21 07 10 810000") + bytes(16)), CodecError, "dictionary",
    ),
    "coords of another number": (
        lambda zt: several(zt, "sparse_coo", [2, 2], None, coords=np.zeros(7, "u1")), TensorError, "unreadable",
    ),
    "a82 unknown dtype": (one(dtype="f9"), TensorError, "unreadable"),
    "a82 dtype a list": (one(dtype=["f32"]), TensorError, "unreadable"),
    "a83 unknown encoding": (one(encoding="lz4"), TensorError, "unreadable"),
    "encoding a list": (one(encoding=["zstd"]), TensorError, "unreadable"),
    "a84 unknown format": (one(format="acme.blocks"), TensorError, "unreadable"),
    "format missing": (one(format=None), TensorError, "unreadable"),
    "format a number": (one(format=1), TensorError, "unreadable"),
    "a85 no data": (
        lambda zt: zt.pack({"w": {"shape": [4], "format": "dense", "components": {}}}),
        TensorError, "unreadable",
    ),
    "a87 bool bytes": (
        lambda zt: zt.pack({"w": zt.item(dtype="bool", length=4)}, b"\0\1\2\xff"), CodecError, "bool",
    ),
    "quantized_group": (sparse("quantized_group", packed_weight="i32", scales="f16"), TensorError, "unreadable"),
    "a57 bomb in csr values": (lambda zt: csr(zt, values=zt.bomb(16384)), CodecError, "size"),
    "a88 csr column": (
        lambda zt: csr(zt, indices=[0, 1 << 28, 0, 1], kind="u4"), CodecError, "index",
    ),
    "a89 csr indptr falls": (lambda zt: csr(zt, indptr=[0, 4, 2, 4], rows=3), CodecError, "index"),
    "signed and negative": (lambda zt: csr(zt, indices=[0, -1, 0, 1], kind="i4"), CodecError, "index"),
    "a cell twice": (lambda zt: csr(zt, indices=[1, 1, 0, 1]), CodecError, "index"),
    "a90 coo": (lambda zt: coo(zt, [[0, 2], [0, 1]]), CodecError, "index"),
    "unknown logical type": (one(type="f3_zz"), TensorError, "unreadable"),
    "GGML row too short": (one(format="gguf.q4_0", dtype="u8", shape=(31,)), TensorError, "unreadable"),
    "GGML not bytes": (one(format="gguf.q4_0", shape=(31,)), TensorError, "unreadable"),
}  # fmt: skip

ACCEPTED: dict[str, Make] = {
    "a00 baseline": valid,
    "a20 identical ranges": lambda zt: zt.pack({"w": zt.item(), "tied": zt.item()}),
    "a48 digest null": one(digest=None),
    "a54 two frames": compressed(b"".join(zstandard.ZstdCompressor().compress(half) for half in (
        np.arange(2, dtype="<f4").tobytes(), np.arange(2, 4, dtype="<f4").tobytes()))),
    "a62 indefinite maps": lambda zt: zt.pack(manifest=b"\xbf" + START[1:] + OBJECTS + b"\xbf\x61w"
                                              + cbor2.dumps(zt.item()) + b"\xff\xff"),
    "a74 integer attribute": root(attributes={"epoch": 3}),
    "a75 text attribute": root(attributes={"license": "MIT"}),
    "non-shortest and unsorted": lambda zt: zt.pack(manifest=b"\xb8\x02" + OBJECTS + b"\xa1\x78\x01w" + cbor2.dumps(
        dict(reversed(zt.item().items()))) + START[1:]),
    "tag in an attribute": root(attributes={"when": cbor2.CBORTag(1, 0)}),
    "encoding raw": one(encoding="raw"),
    "uncompressed_length right": compressed(ZSTD_FOUR, uncompressed_length=16),
    "unknown keys": root(extra={"deep": [1, {"x": None}]}),
}  # fmt: skip

PROBLEMS: dict[str, tuple[Make, str]] = {
    "a68 empty name": (lambda zt: zt.pack({"w": zt.item(), "": zt.item()}), "name"),
    "a tensor called __metadata__": (lambda zt: zt.pack({"w": zt.item(), "__metadata__": zt.item()}), "name"),
    "NFC and NFD": (
        lambda zt: zt.pack({"w": zt.item(), "\u00e9": zt.item(), "e\u0301": zt.item()}), "name",
    ),
    "a73 version 9.9.9": (root(version="9.9.9"), "version"),
    "a86 extra component": (
        lambda zt: zt.pack({"w": {**zt.item(), "components": {**zt.item()["components"],
                                                              "more": {"dtype": "u8", "offset": 128, "length": 3}}}},
                           zt.four + bytes(60)),
        "extra",
    ),
}  # fmt: skip

DIGESTS: dict[str, tuple[Make, str | None]] = {
    "a40 right sha256": (one(digest=f"sha256:{SHA}"), None),
    "upper-case sha256": (one(digest=f"sha256:{SHA.upper()}"), None),
    "right crc32c": (one(digest="crc32c:0x515DC834"), None),
    "a41 wrong sha256": (one(digest="sha256:" + "0" * 64), "digest"),
    "a42 wrong sha256, zstd": (compressed(ZSTD_FOUR, digest="sha256:" + "0" * 64), "digest"),
    "a44 sha256 of decoded bytes": (compressed(ZSTD_FOUR, digest=f"sha256:{SHA}"), "digest"),
    "a45 wrong crc32c": (one(digest="crc32c:0x00000000"), "digest"),
    "a46 wrong crc32c without 0x": (one(digest="crc32c:00000000"), "digest"),
    "a47 unknown algorithm": (one(digest="md5:00"), "unverified"),
    "wrong, of an extra component": (
        lambda zt: zt.pack(
            {
                "w": {
                    **zt.item(),
                    "components": {
                        **zt.item()["components"],
                        "more": {"dtype": "u8", "offset": 128, "length": 4, "digest": "sha256:" + "0" * 64},
                    },
                }
            },
            zt.four + bytes(52),
        ),
        "digest",
    ),
    "a43 sha256 of stored bytes, zstd": (compressed(ZSTD_FOUR, digest=f"sha256:{ZSTD_SHA}"), None),
}

VALUES_OF: dict[str, tuple[Make, Any]] = {
    "a80 f8_e4m3": (
        lambda zt: zt.pack({"w": zt.item(dtype="f8_e4m3", length=4)}, b"\x00\x38\x40\x44"), [0, 1, 2, 3],
    ),
    "a81 complex64": (
        lambda zt: zt.pack({"w": zt.item((2,), dtype="complex64")}), [1j, 2 + 3j],
    ),
    "a91 narrow indices, wider indptr": (lambda zt: csr(zt, indices=[1, 0, 0, 1], kind="u2"), [[1, 0], [2, 3]]),
    "a92 four u16 indices": (
        lambda zt: several(zt, "sparse_csr", [2, 2], None, indices=np.array([0, 1, 0, 1], "u2"),
                           indptr=np.array([0, 2, 4], "u2")), [[0, 1], [2, 3]],
    ),
    "signed indices": (lambda zt: csr(zt, indices=[1, 0, 0, 1], kind="i4"), [[1, 0], [2, 3]]),
    "a scalar": (lambda zt: zt.pack({"w": zt.item((), length=4)}, bytes(4)), 0),
    "no elements": (lambda zt: zt.pack({"w": zt.item((0, 3), length=0)}, b""), []),
}  # fmt: skip

MALFORMED: dict[int, tuple[str, ...]] = {
    1: ("a01", "a02", "a03"), 2: ("a09", "git-lfs pointer", "HTML page"), 3: ("a73",), 9: ("a25", "a27"),
    10: ("a20", "a21", "identical range of another size"), 11: ("padding",), 12: ("a10", "an appended ZIP"),
    13: ("a22", "a23", "a25"), 15: ("a31", "a33", "a34", "no elements", "no elements but bytes"),
    24: ("a82", "rank 65", "a scalar", "no elements"), 25: ("a11", "a12", "a13", "a15"), 26: ("a05", "a08", "a10"),
    27: ("a63", "a64"), 28: ("a62", "a69", "non-shortest and unsorted", "tag outside", "tag in an attribute"),
    29: ("a60", "a61", "a76", "a77", "a million empty maps"),
    30: ("a36", "a37", "offset of text", "offset a float", "length a bignum", "a NaN among the names",
         "a NaN among the keys"),
    31: ("a71", "a85", "a86"), 32: ("a24",), 33: ("a41", "a44", "a45", "a46", "a47", "upper-case sha256"),
    34: ("a50", "a51", "a52", "a53", "a54", "a55", "a56", "a57", "a58", "a59", "a83", "zstd dictionary"),
    35: ("a88", "a89", "a90", "a cell twice", "signed", "coords of another number"), 36: ("a87",),
    46: ("a67", "a68", "a tensor called __metadata__", "NFC and NFD", "name over 1024 bytes"),
    47: ("many_tensors",), 48: ("cut_while_it_is_open",),
}  # fmt: skip
"""Case of the project's checklist of malformed inputs -> the rows and tests here that show its outcome."""


@pytest.mark.parametrize("row", OPEN_ERRORS)
def test_the_file_is_refused(zt: Any, tmp_path: Path, row: str) -> None:
    make, kind, code = OPEN_ERRORS[row]
    path = tmp_path / "model.zt"
    path.write_bytes(make(zt))
    with pytest.raises(kind) as caught:
        squish.open(path)
    assert caught.value.code == code
    assert caught.value.file in (str(path), path.name)


@pytest.mark.parametrize("row", READ_ERRORS)
def test_the_tensor_is_refused_but_listed(zt: Any, row: str) -> None:
    make, kind, code = READ_ERRORS[row]
    with squish.open(make(zt)) as file:
        with pytest.raises(kind) as caught:
            file["w"].numpy()
        assert (caught.value.tensor, caught.value.code) == ("w", code)
        if "ok" in file:
            assert file["ok"].numpy().tolist() == [0, 1, 2, 3]
    assert not squish.verify(make(zt), deep=True).ok


@pytest.mark.parametrize("row", ACCEPTED)
def test_the_file_is_accepted(zt: Any, row: str) -> None:
    report = squish.verify(ACCEPTED[row](zt), deep=True)
    assert report.problems == ()
    with squish.open(ACCEPTED[row](zt)) as file:
        assert file["w"].numpy().tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("row", PROBLEMS)
def test_the_file_opens_with_a_problem(zt: Any, row: str) -> None:
    make, code = PROBLEMS[row]
    with squish.open(make(zt)) as file:
        assert [problem.code for problem in file.problems] == [code]
        assert file["w"].numpy().tolist() == [0, 1, 2, 3]
    with pytest.raises(FormatError):
        squish.open(make(zt), strict=True)


@pytest.mark.parametrize("row", DIGESTS)
def test_verify_checks_the_digest_of_the_stored_bytes(zt: Any, row: str) -> None:
    make, code = DIGESTS[row]
    report = squish.verify(make(zt), deep=True)
    assert [problem.code for problem in report.problems if problem.code != "extra"] == ([code] if code else [])
    with squish.open(make(zt)) as file:
        assert file["w"].numpy().tolist() == [0, 1, 2, 3]


def test_verify_checks_the_digest_of_an_unreadable_tensor(zt: Any) -> None:
    for changes in ({"dtype": "f9"}, {"encoding": "lz4"}):
        data = zt.pack({"w": zt.item(digest="crc32c:0x00000000", **changes)})
        assert [problem.code for problem in squish.verify(data, deep=True).problems] == ["unreadable", "digest"]


@pytest.mark.parametrize("row", VALUES_OF)
def test_values(zt: Any, row: str) -> None:
    make, expected = VALUES_OF[row]
    assert squish.verify(make(zt), deep=True).problems == ()
    with squish.open(make(zt)) as file:
        assert file["w"].numpy().tolist() == expected


@pytest.mark.parametrize("case", MALFORMED)
def test_every_case_has_its_rows(case: int) -> None:
    for label in MALFORMED[case]:
        assert any(row.startswith(label) or label in row for row in shown()), label


def test_every_row_of_the_robustness_table_is_here() -> None:
    groups = ((0, 17), (20, 38), (40, 77), (80, 92))
    expected = {f"a{number:02}" for low, high in groups for number in range(low, high + 1)}
    assert expected <= {label for row in shown() for label in re.findall(r"\ba\d\d\b", row.replace("_", " "))}


def shown() -> list[str]:
    tables: tuple[dict[str, Any], ...] = (OPEN_ERRORS, READ_ERRORS, ACCEPTED, PROBLEMS, DIGESTS, VALUES_OF)
    return [row for table in tables for row in table] + [name for name in globals() if name.startswith("test_")]


def test_a44_names_the_likely_cause(zt: Any) -> None:
    report = squish.verify(DIGESTS["a44 sha256 of decoded bytes"][0](zt), deep=True)
    assert "matches the decoded bytes" in report.problems[0].message


def test_a17_a_gigabyte_of_zeros_is_not_a_manifest(zt: Any, tmp_path: Path) -> None:
    path = tmp_path / "zeros.zt"
    with path.open("wb") as file:
        file.write(zt.magic)
        file.seek(64 + GIB)
        file.write(GIB.to_bytes(8, "little") + zt.magic)
    with pytest.raises(FormatError) as caught:
        squish.open(path)
    assert caught.value.code == "manifest"


def test_the_header_limit_applies_before_the_manifest_is_read(zt: Any) -> None:
    with pytest.raises(LimitError) as caught:
        squish.open(valid(zt), limits=squish.Limits(header=20))
    assert caught.value.code == "manifest-size"


@pytest.mark.parametrize(
    ("row", "parts"), [("a82 unknown dtype", {"data": 16}), ("a83 unknown encoding", {"data": 16})]
)
def test_the_parts_of_a_refused_tensor_stay_readable(zt: Any, row: str, parts: dict[str, int]) -> None:
    with squish.open(READ_ERRORS[row][0](zt)) as file:
        assert {role: buffer.nbytes for role, buffer in file["w"].parts().items()} == parts


def test_nonzero_padding_is_a_problem(zt: Any) -> None:
    data = bytearray(valid(zt))
    data[20] = 1
    assert [problem.code for problem in squish.verify(bytes(data)).problems] == ["padding"]


@pytest.mark.parametrize("edited", [False, True])
@pytest.mark.parametrize(("flavor", "place"), [("canonical", 9), ("canonical", 60_000), ("aligned", 9)])
def test_nonzero_padding_of_v2_is_a_problem(tmp_path: Path, flavor: str, place: int, edited: bool) -> None:
    path = tmp_path / "m.zt"
    arrays = {name: np.full((3, 5), 1 + number, "f4") for number, name in enumerate("ab")}
    squish.save(path, arrays, format=f"ztensor:wire=2,flavor={flavor}")
    if edited:
        edit(path, add={"c": np.ones(3, "f4")})
    assert not squish.verify(path, deep=True).problems
    with squish.open(path) as file:
        (segment,) = file["a"].spec.encodings[0].parts["data"].segments
    data = bytearray(path.read_bytes())
    for start in (0, segment.offset + segment.length):  # after the magic, and after a blob
        damaged = data.copy()
        damaged[start + place] = 1
        codes = [problem.code for problem in squish.verify(bytes(damaged)).problems]
        assert codes == ([] if edited and place > 4096 else ["padding"])  # unused blobs may lie there


def test_many_tensors_are_opened_in_linear_time_up_to_the_limit(zt: Any) -> None:
    data = zt.pack({f"{number:x}": zt.item() for number in range(20_000)})
    assert len(squish.open(data)) == 20_000
    with pytest.raises(LimitError) as caught:
        squish.open(data, limits=squish.Limits(tensors=19_999))
    assert (caught.value.code, caught.value.found) == ("count", 20_000)


def test_a_file_that_is_cut_while_it_is_open_is_an_error(zt: Any, tmp_path: Path) -> None:
    path = tmp_path / "model.zt"
    path.write_bytes(zt.pack({"w": zt.item((4096,), length=16384)}, bytes(16384)))
    with squish.open(path) as file:
        path.write_bytes(b"")
        with pytest.raises(SquishError):
            file["w"].numpy()


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 64), (1 << 64) - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5)
    | st.sampled_from(["raw", "zstd", "dense", "gguf.q4_0", "u8", "f64", 64, 128, 1 << 63]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_value_anywhere_in_the_manifest_gives_typed_errors_only(data: st.DataObject) -> None:
    manifest: dict[str, Any] = {
        "version": "1.1.0", "attributes": {"a": "b"},
        "objects": {
            name: {"shape": [4], "format": "dense", "attributes": {"k": 1},
                   "components": {"data": {"dtype": "f32", "offset": 64, "length": 16, "encoding": "raw"}}}
            for name in ("w", "squish.meta")
        },
    }  # fmt: skip
    node: Any = manifest
    while True:
        key = data.draw(st.sampled_from(sorted(node) if isinstance(node, dict) else range(len(node))))
        if not isinstance(node[key], (dict, list)) or not node[key] or data.draw(st.booleans()):
            break
        node = node[key]
    node[key] = data.draw(VALUES)
    packed = cbor2.dumps(manifest)
    blob = b"ZTEN1000".ljust(64, b"\0") + bytes(64) + packed + len(packed).to_bytes(8, "little") + b"ZTEN1000"
    # Drawing from Hypothesis builds its own tables of Unicode, far larger than anything measured here.
    tracemalloc.reset_peak()
    try:
        file = squish.open(blob)
        for tensor in file.values():
            tensor.parts()
            tensor.numpy()
    except SquishError as error:
        assert error.code != "plugin-bug", error  # noqa: PT017
