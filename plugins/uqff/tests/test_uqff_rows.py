"""Malformed UQFF files and their required outcome."""

from __future__ import annotations

import json
import shutil
import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from squish_testing import CountingSource, expect_error

import squish_core as squish
from squish_core.io.local import open_source
from squish_core.limits import Limits

Q4K = "1.0.0-q4k/q4k-0.uqff"
SHARDS = [f"afq4-3shards-{number}.uqff" for number in range(3)]


@pytest.fixture
def refused(tmp_path: Path) -> Callable[..., squish.SquishError]:
    """Open bytes as a `.uqff` file and return the error, which must come quickly and cheaply."""

    def check(raw: bytes, name: str = "m-0.uqff", **options: Any) -> squish.SquishError:
        (tmp_path / name).write_bytes(raw)
        tracemalloc.start()
        started = time.perf_counter()
        try:
            with pytest.raises(squish.SquishError) as caught:
                squish.open(tmp_path / name, **options)
            assert time.perf_counter() - started < 30  # a hang guard
            assert tracemalloc.get_traced_memory()[1] < 50 << 20
        finally:
            tracemalloc.stop()
        return caught.value

    return check


def header(text: bytes, data: bytes = b"") -> bytes:
    return len(text).to_bytes(8, "little") + text + data


def entry(begin: int, end: int, shape: str = "[4]", dtype: str = "U8", more: str = "") -> bytes:
    return f'{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{begin},{end}]{more}}}'.encode()


@pytest.mark.parametrize(("size", "offset"), [(0, None), (1, 0), (7, 0), (8, 8), (20, 8)])
def test_a_truncated_header_is_refused(size: int, offset: int | None, data: Path, refused: Any) -> None:
    error = refused((data / Q4K).read_bytes()[:size])
    assert isinstance(error, squish.FormatError)
    assert (error.code, error.offset) == ("truncated" if size else "empty", offset)
    assert error.found == (f"{size} bytes" if size else None)


@pytest.mark.parametrize(
    "raw",
    [
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n",
        b"<!DOCTYPE html><html><body>not found</body></html>",
        b"PK\3\4" + bytes(60),
    ],
)
def test_a_lookalike_is_refused(raw: bytes, refused: Any) -> None:
    assert refused(raw).code == "lookalike"


def named_version(uqff: SimpleNamespace, major: int, minor: int) -> bytes:
    numbers = {"major": major, "minor": minor, "patch": 0}
    return uqff.safetensors({f"uqff.version.{k}": ("U32", [], struct.pack("<I", v)) for k, v in numbers.items()})


@pytest.mark.parametrize(("major", "minor"), [(0, 0), (2, 0), (1, 3), (1, 2**32 - 1)])
def test_unsupported_versions_are_refused(major: int, minor: int, uqff: SimpleNamespace, refused: Any) -> None:
    error = refused(named_version(uqff, major, minor))
    assert (error.code, error.tensor) == ("version", "uqff.version.major")
    assert (error.expected, error.found) == ("1.0 to 1.2", f"{major}.{minor}.0")


def test_byte_swapped_versions_are_reported(uqff: SimpleNamespace, refused: Any) -> None:
    for raw in (named_version(uqff, 1 << 24, 0), uqff.legacy(uqff.head(1, version=0x02010000) + b"\0")):
        assert refused(raw).hint == "Byte order is swapped: a big-endian file?"


@pytest.mark.parametrize("version", [0, 0x010000, 0x000300, 0xFFFFFF])
def test_unsupported_blob_versions_are_refused(version: int, uqff: SimpleNamespace, refused: Any) -> None:
    error = refused(uqff.legacy(uqff.head(1, version=version) + b"\0" + uqff.tensor(6, [1], bytes(4))))
    assert (error.code, error.tensor, error.part, error.expected) == ("version", "0", "version", "0.1 or 0.2")
    assert error.offset is not None


@pytest.mark.parametrize(
    "text",
    [
        b'{"0":' + entry(0, 5) + b"}", b'{"0":' + entry(2**64 - 64, 2**64 + 64, "[128]") + b"}",
        b'{"0":' + entry(0, 4) + b',"1":' + entry(2, 6) + b"}", b'{"0":' + entry(0, 4) + b',"1":' + entry(0, 4) + b"}",
        b'{"0":' + entry(1, 4, "[3]") + b"}", b'{"0":' + entry(0, 4, "[18446744073709551616,0]") + b"}",
        b'{"0":' + entry(0, 4, "[5]") + b"}",
    ],
)  # fmt: skip
def test_ranges_out_of_bounds_overlapping_or_with_holes(text: bytes, refused: Any) -> None:
    assert refused(header(text, bytes(4))).tensor in ("0", "1")


def test_trailing_bytes_are_refused(data: Path, refused: Any) -> None:
    valid = (data / Q4K).read_bytes()
    error = refused(valid + b"PK\3\4")
    assert (error.offset, error.found) == (len(valid), f"{len(valid) + 4} bytes")


def test_nonzero_unused_bits_are_reported_and_ignored(uqff: SimpleNamespace, tmp_path: Path) -> None:
    words = bytearray(40 * 4)
    parts = uqff.tensor(6, [1, 20], bytes(80)) * 2 + struct.pack("<3IB", 2, 20, 20, 3)
    tail = parts + struct.pack("<IBIBB", 20, 0, 0, 1, 0)

    def hqq(words: bytes) -> bytes:
        return uqff.legacy(uqff.head(2) + b"\0" + uqff.tensor(2, [2, 20], words) + tail)

    def f8q8(last: bytes) -> bytes:
        return uqff.legacy(uqff.head(5) + b"\0" + struct.pack("<3I", 1, 1, 31) + bytes(32) + last)

    for make, clean, dirty in ((hqq, bytes(words), b"\0\0\0\x40" + bytes(156)), (f8q8, b"\0", b"\1")):
        assert not squish.verify(make(clean)).problems[1:]
        (problem,) = squish.verify(make(dirty)).problems[1:]
        assert (problem.code, problem.where) == ("spare-bits", "0.weight")
        assert not squish.open(make(dirty))["0.weight"].numpy().any()


def test_padding_rows_of_three_bit_words_are_unused_bits(data: Path) -> None:
    report = squish.verify(data / "1.2.0-hqq3-gs40")
    assert "spare-bits" not in {problem.code for problem in report.problems}


@pytest.mark.parametrize("group", [0, 7, 2**32 - 1])
def test_group_sizes_that_do_not_divide_are_refused(group: int, uqff: SimpleNamespace) -> None:
    cfg = struct.pack("<3IBIBIBB", 2, 2, 64, 8, group, 0, 0, 1, 0)
    blob = uqff.head(2) + b"\0" + uqff.tensor(0, [64, 2], bytes(128)) + uqff.tensor(6, [1, 2], bytes(8)) * 2 + cfg
    with squish.open(uqff.legacy(blob)) as file, expect_error(squish.TensorError, code="unreadable", tensor="0.weight"):
        file["0.weight"].numpy()


@pytest.mark.parametrize("rank", [65, 2**31, 2**32 - 1])
def test_ranks_above_the_limit_are_refused(rank: int, uqff: SimpleNamespace) -> None:
    blob = uqff.head(1) + b"\0" + struct.pack("<III", 4, 6, rank) + bytes(64)
    with squish.open(uqff.legacy(blob)) as file:
        assert "too many dimensions" in (file["0.weight"].spec.problem or "")


def test_the_callers_limits_are_obeyed(uqff: SimpleNamespace) -> None:
    blob = uqff.head(1) + b"\0" + uqff.tensor(6, [1, 1, 1], bytes(4))
    with squish.open(uqff.legacy(blob), limits=Limits(rank=2)) as file:
        assert "at most 2" in (file["0.weight"].spec.problem or "")
    with expect_error(squish.SquishError, code="count", offset=8, expected="at most 1", found=2):
        squish.open(uqff.legacy(blob, blob), limits=Limits(tensors=1))


def test_scalars_and_empty_arrays_are_legal(uqff: SimpleNamespace) -> None:
    blobs = [uqff.head(1) + b"\0" + uqff.tensor(6, shape, raw) for shape, raw in (([], bytes(4)), ([0, 3], b""))]
    with squish.open(uqff.legacy(*blobs)) as file:
        assert [file[name].numpy().shape for name in file] == [(), (0, 3)]


@pytest.mark.parametrize(
    "text",
    [
        b"\xef\xbb\xbf{}", b" {}", b"{} x", b'{"0":' + b"[" * 100000,
        b'{"0":' + entry(0, 4) + b',"0":' + entry(0, 4) + b"}",
        b'{"0":' + entry(0, 4, "[4.0]") + b"}", b'{"0":' + entry(0, 4, "[-4]") + b"}", b'{"__metadata__":3}',
        b'{"0":' + entry(0, 4, "[true,4]") + b"}", b"\xff\xfe{}",
    ],
)  # fmt: skip
def test_malformed_safetensors_headers_are_refused(text: bytes, refused: Any) -> None:
    refused(header(text, bytes(4)))


def test_a_header_longer_than_the_file_or_the_limit_is_refused(refused: Any) -> None:
    for length in (2**63, 100_000_001, 1000):
        refused(length.to_bytes(8, "little") + b"{}")


def test_an_unknown_dtype_is_listed_and_unknown_fields_are_reported(uqff: SimpleNamespace) -> None:
    blob = uqff.head(1) + b"\0" + uqff.tensor(6, [1], bytes(4))
    fields = entry(0, len(blob), f"[{len(blob)}]", more=',"odd":1'), entry(len(blob), len(blob) + 4, "[1]", "X99")
    with squish.open(header(b'{"0":' + fields[0] + b',"1":' + fields[1] + b"}", blob + bytes(4))) as file:
        assert file["0.weight"].numpy().shape == (1,)
        assert "not a blob" in (file["1.weight"].spec.problem or "")
        assert "field" in uqff.codes(file)


def test_a_newer_minor_version_opens_on_request(uqff: SimpleNamespace, refused: Any) -> None:
    raw = named_version(uqff, 1, 3)
    assert "allow_newer_minor=true" in refused(raw).hint
    assert squish.open(raw, "safetensors")
    with squish.open(raw, "uqff:allow_newer_minor=true") as file:
        assert (file.index.version, uqff.codes(file)) == ("1.3.0", ["version"])
    with expect_error(
        squish.FormatError, code="version", tensor="uqff.version.major", expected="1.0 to 1.2", found="2.0.0"
    ):
        squish.open(named_version(uqff, 2, 0), "uqff:allow_newer_minor=true")


def test_blobs_with_different_versions_are_reported(uqff: SimpleNamespace) -> None:
    blobs = [uqff.head(1, version) + b"\0" + uqff.tensor(6, [1], bytes(4)) for version in (0x103, 0x103, 0x200)]
    with squish.open(uqff.legacy(*blobs)) as file:
        assert uqff.codes(file) == ["version", "names"]
        assert file.problems[0].where == "2.weight"


@pytest.mark.parametrize("missing", [SHARDS[1:], SHARDS[:2], [SHARDS[1]]])
def test_a_gap_names_the_missing_shards(missing: list[str], data: Path, tmp_path: Path) -> None:
    for name in SHARDS:
        shutil.copy(data / "1.2.0-afq4-3shards" / name, tmp_path)
    (tmp_path / "uqff_report.json").write_text(json.dumps({"outputs": [{"shards": SHARDS}]}))
    for name in missing:
        (tmp_path / name).unlink()
    (left,) = sorted(set(SHARDS) - set(missing))[:1]
    with expect_error(squish.FormatError, code="shard-missing", expected="3 shards") as caught:
        squish.open(tmp_path / left)
    assert caught.value.hint == f"Download {', '.join(missing)} to the same folder."


def test_a_shard_listed_twice_is_refused(data: Path, tmp_path: Path) -> None:
    shutil.copy(data / Q4K, tmp_path / "q4k-0.uqff")
    report = {"outputs": [{"shards": ["q4k-0.uqff", "Q4K-0.uqff"]}]}
    (tmp_path / "uqff_report.json").write_text(json.dumps(report))
    with expect_error(squish.FormatError, code="shard-repeated", found="q4k-0.uqff, Q4K-0.uqff"):
        squish.open(tmp_path)


def test_missing_companion_files_are_reported(data: Path, tmp_path: Path) -> None:
    shutil.copy(data / Q4K, tmp_path / "q4k-0.uqff")
    with squish.open(tmp_path) as file:
        assert [problem.where for problem in file.problems if problem.code == "companion"] == [
            "residual.safetensors",
            "config.json",
        ]
    with expect_error(squish.FormatError, code="companion", tensor="residual.safetensors"):
        squish.open(tmp_path, strict=True)


def test_names_cannot_fake_output(uqff: SimpleNamespace) -> None:
    key = "a\x1b[31m\u202e"
    version = {
        f"uqff.version.{k}": ("U32", [], struct.pack("<I", n)) for k, n in (("major", 1), ("minor", 2), ("patch", 0))
    }
    with squish.open(uqff.safetensors({f"{key}.weight.format": ("U8", [], b"\x09"), **version})) as file:
        assert file.problems[0].where == f"{key}.weight"
        with pytest.raises(squish.TensorError) as caught:
            file[f"{key}.weight"].numpy()
        assert "\x1b" not in str(caught.value)
        assert "\u202e" not in str(caught.value)
    for name in ("", "x" * 1025, "a\0b"):
        with expect_error(squish.FormatError, code="name", offset=9):
            squish.open(uqff.safetensors({name: ("F32", [1], bytes(4)), **version}))


def test_the_bytes_read_depend_only_on_the_number_of_blobs(uqff: SimpleNamespace, tmp_path: Path) -> None:
    blob = uqff.head(1) + b"\0" + uqff.tensor(6, [1], bytes(4))
    reads = []
    for count in (200, 400):
        (tmp_path / f"m{count}.uqff").write_bytes(uqff.legacy(*[blob] * count))
        source = CountingSource(open_source(tmp_path / f"m{count}.uqff"))
        assert len(squish.open(source)) == count
        reads.append(len(source.log))
    assert reads[1] <= 2 * reads[0]


def test_a_file_shrinking_while_open_is_reported(data: Path, tmp_path: Path) -> None:
    target = tmp_path / "q4k-0.uqff"
    shutil.copy(data / Q4K, target)
    with squish.open(target) as file:
        with target.open("r+b") as handle:
            handle.truncate(3000)
        with expect_error(
            squish.SquishError,
            code="changed",
            tensor="model.layers.0.self_attn.k_proj.weight",
            expected="20198 bytes",
            found="3000 bytes",
        ):
            file[next(iter(file))].numpy()
