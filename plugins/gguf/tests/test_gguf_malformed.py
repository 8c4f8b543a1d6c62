"""Malformed files raise a typed error naming the field, or list a problem, at little cost."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from squish_testing import expect_error

import squish_core as squish
from squish_core.errors import (
    FormatError,
    LimitError,
    SquishError,
    TensorError,
    TruncatedError,
    UnknownFormatError,
    UnsupportedVersionError,
)

MiB = 1 << 20
HUGE = (1 << 32, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)

Case = tuple[str, Callable[[SimpleNamespace], bytes], type[SquishError], str, str | None, int | None]


def nested(raw: SimpleNamespace, depth: int) -> bytes:
    """An array nested `depth` levels, the innermost of one u8."""
    inner = raw.elements(0, 1, b"\1")
    for _ in range(depth - 1):
        inner = raw.elements(raw.ARRAY, 1, inner)
    return raw.file((raw.pair("k", raw.ARRAY, inner),))


def one(raw: SimpleNamespace, *args: object, data: bytes = bytes(64), **kwargs: object) -> bytes:
    """A file with one tensor."""
    return raw.file((), (raw.tensor("w", *args, **kwargs),), data)


def aligned_by(raw: SimpleNamespace, kind: str, value: int) -> bytes:
    """A file with `general.alignment`."""
    return raw.file((raw.scalar("general.alignment", kind, value),), (raw.tensor("w", (8,)),), bytes(64))


CASES: list[Case] = [
    # too short
    *((f"only {n} bytes", lambda raw, n=n: raw.file()[:n], TruncatedError,
       "truncated", None, 8 * (n >= 8)) for n in (4, 7, 8, 23)),
    # versions
    ("version 0", lambda raw: raw.file(version=0), UnsupportedVersionError, "version", None, 4),
    ("version 1", lambda raw: raw.file(version=1), UnsupportedVersionError, "version", None, 4),
    ("version 4", lambda raw: raw.file(version=4), UnsupportedVersionError, "version", None, 4),
    ("big-endian version 1", lambda raw: raw.file(order=">", version=1), UnsupportedVersionError,
     "version", None, 4),
    # counts
    *((f"tensor_count {n}", lambda raw, n=n: raw.file(counts=(n, 0)), FormatError,
       "truncated", None, 24) for n in HUGE),
    *((f"kv_count {n}", lambda raw, n=n: raw.file(counts=(0, n)), FormatError, "truncated", None, 24) for n in HUGE),
    ("more tensors than the limit", lambda raw: raw.file(counts=(1_000_001, 0)) + bytes(24_000_100), LimitError,
     "count", None, 24),
    ("more keys than any file", lambda raw: raw.file(counts=(0, 65537)) + bytes(1_000_000), LimitError,
     "count", None, 24),
    # strings and keys
    ("string past the end", lambda raw: raw.file((raw.pair("k", 8, b"\xff" * 8),)), TruncatedError,
     "truncated", None, 45),
    ("key past the end", lambda raw: raw.file((b"\xff\xff" + bytes(6) + b"k" * 64,)), TruncatedError,
     "truncated", None, 32),
    ("key of 10 MB", lambda raw: raw.file((raw.scalar("k" * 10**7, "u8", 1),)), FormatError, "name", None, 24),
    ("key not UTF-8", lambda raw: raw.file((raw.pair(b"\xff\xfe", 0, b"\1"),)), FormatError, "utf-8", None, 24),
    ("key empty", lambda raw: raw.file((raw.scalar("", "u8", 1),)), FormatError, "name", None, 24),
    ("key with NUL", lambda raw: raw.file((raw.scalar("a\0b", "u8", 1),)), FormatError, "name", None, 24),
    # arrays
    *(
        (f"array of 2^40 {kind}", lambda raw, code=code: raw.file((raw.array("k", code, 1 << 40, bytes(64)),)),
         TruncatedError, "truncated", None, 49)
        for kind, code in (("u8", 0), ("f64", 12), ("strings", 8), ("arrays", 9))
    ),
    ("array of 2^63 u64", lambda raw: raw.file((raw.array("k", 10, 1 << 63, bytes(64)),)), TruncatedError,
     "truncated", None, 49),
    ("array of 3e6 u8", lambda raw: raw.file((raw.array("k", 0, 3_000_000, bytes(64)),)), TruncatedError,
     "truncated", None, 49),
    ("array of unknown type", lambda raw: raw.file((raw.array("k", 13, 1, bytes(8)),)), FormatError,
     "type", None, 37),
    ("array of a string past the end", lambda raw: raw.file((raw.array("k", 8, 1, b"\xff" * 8),)), TruncatedError,
     "truncated", None, 49),
    ("array nested 9 deep", lambda raw: nested(raw, 9), LimitError, "depth", None, 133),
    ("array nested 100 000 deep", lambda raw: nested(raw, 100_000), LimitError, "depth", None, 133),
    ("more inner arrays than any file",
     lambda raw: raw.file((raw.array("k", raw.ARRAY, 65537, bytes(12 * 65537)),)), LimitError, "count", None, 49),
    ("array of arrays of two types",
     lambda raw: raw.file((raw.array("k", 9, 2, raw.elements(0, 1, b"\1") + raw.elements(1, 1, b"\1")),)), FormatError,
     "type", None, 62),
    # value types
    ("unknown value type", lambda raw: raw.file((raw.pair("k", 13, bytes(8)),)), FormatError,
     "type", None, 33),
    ("bool 2", lambda raw: raw.file((raw.pair("k", 7, b"\2"),)), FormatError, "bool", None, 37),
    ("bool 2 in an array", lambda raw: raw.file((raw.array("k", 7, 3, b"\0\1\2"),)), FormatError, "bool", None, 49),
    # duplicates
    ("key twice", lambda raw: raw.file((raw.scalar("k", "u8", 1), raw.scalar("k", "u8", 1))), FormatError,
     "duplicate", None, 38),
    ("tensor twice", lambda raw: raw.file((), (raw.tensor("w", (8,)), raw.tensor("w", (8,), 0, 32)), bytes(64)),
     FormatError, "duplicate", "w", 57),
    # alignment
    *((f"alignment {n}", lambda raw, n=n: aligned_by(raw, "u32", n), FormatError, "alignment", None, None)
      for n in (0, 3, 48, 1 << 31, (1 << 32) - 1)),
    *((f"alignment as {kind}", lambda raw, kind=kind: aligned_by(raw, kind, 32), FormatError,
       "alignment", None, None)
      for kind in ("u64", "i32", "u8", "f32")),
    # dimensions
    ("n_dims 5", lambda raw: one(raw, (1, 1, 1, 1, 1)), FormatError, "rank", "w", 24),
    ("n_dims 2^31", lambda raw: one(raw, (8,), rank=1 << 31), FormatError, "rank", "w", 24),
    ("dimensions overflow", lambda raw: one(raw, (1 << 32, 1 << 32)), FormatError, "shape", "w", 24),
    ("dimensions overflow beside 0", lambda raw: one(raw, (0, 1 << 32, 1 << 32)), FormatError,
     "shape", "w", 24),
    ("dimensions wrap to 0", lambda raw: one(raw, (1 << 63, 2)), FormatError, "shape", "w", 24),
    ("more than the file", lambda raw: one(raw, (17,)), TruncatedError, "bounds", "w", 64),
    # blocks
    ("row of 31 in Q8_0", lambda raw: one(raw, (31,), 8), FormatError, "shape", "w", 24),
    ("row of 16 in Q8_0, 32 in all", lambda raw: one(raw, (16, 2), 8), FormatError, "shape", "w", 24),
    ("a scalar in Q4_K", lambda raw: one(raw, (), 12), FormatError, "shape", "w", 24),
    # offsets
    ("offset 1", lambda raw: one(raw, (8,), 0, 1), FormatError, "alignment", "w", None),
    *((f"offset {n}", lambda raw, n=n: one(raw, (8,), 0, n), TruncatedError, "bounds", "w", 64 + n)
      for n in (64, 1 << 40, (1 << 63) - 32, (1 << 64) - 32)),
    ("offset of an unknown type past the end", lambda raw: one(raw, (8,), 1000, 96), TruncatedError,
     "bounds", "w", 160),
    # overlap
    ("partial overlap", lambda raw: raw.file((), (raw.tensor("a", (16,)), raw.tensor("b", (8,), 0, 32)), bytes(64)),
     FormatError, "overlap", "b", 128),
    # truncation
    ("cut in the key/values", lambda raw: raw.file((raw.text("k", "x" * 64),))[:-1], TruncatedError,
     "truncated", None, 45),
    ("cut in the table", lambda raw: raw.file((raw.text("k", "x"),), (raw.tensor("w", (8, 1)),), alignment=1)[:-1],
     TruncatedError, "truncated", None, 59),
    ("cut in the data", lambda raw: one(raw, (16,))[:-1], TruncatedError, "bounds", "w", 64),
    # names
    ("name empty", lambda raw: raw.file((), (raw.tensor("", (8,)),), bytes(32)), FormatError, "name", None, 24),
    ("name with NUL", lambda raw: raw.file((), (raw.tensor("a\0b", (8,)),), bytes(32)), FormatError,
     "name", "a\u0000b", 24),
    ("name of 1025 bytes", lambda raw: raw.file((), (raw.tensor("n" * 1025, (8,)),), bytes(32)), FormatError,
     "name", None, 24),
    ("name not UTF-8", lambda raw: raw.file((), (raw.tensor(b"\xff", (8,)),), bytes(32)), FormatError,
     "utf-8", None, 24),
]  # fmt: skip


@pytest.mark.parametrize(
    ("make", "kind", "code", "tensor", "offset"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_a_malformed_field_is_refused_at_little_cost(raw, make, kind, code, tensor, offset):
    data = make(raw)
    squish.open(raw.file()).close()  # importing the plugin is not part of the cost
    tracemalloc.start()
    try:
        with expect_error(kind, code=code, tensor=tensor, offset=offset):
            squish.open(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MiB + 2 * len(data)


def test_a_long_string_is_bounded_by_the_header_limit(raw):
    data = raw.file((raw.text("k", "x" * 100_000),))
    with expect_error(LimitError, code="header", offset=45, expected="at most 50000 bytes", found="at least 100045"):
        squish.open(data, limits=squish.Limits(header=50_000))


def test_too_many_tensors_are_refused_by_the_limit(raw):
    data = raw.file((), tuple(raw.tensor(f"w{i}", (0,)) for i in range(11)))
    with expect_error(LimitError, code="count", offset=24, expected="at most 10", found=11):
        squish.open(data, limits=squish.Limits(tensors=10))


@pytest.mark.parametrize(
    "data",
    [
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
        b"<!DOCTYPE html><html></html>",
        b"PK\3\4" + bytes(60),
        b"\x80\2" + bytes(60),
    ],
    ids=["pointer", "page", "zip", "pickle"],
)
def test_a_lookalike_is_refused(tmp_path, data):
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    with expect_error(UnknownFormatError, code="lookalike", file=str(path)):
        squish.open(path)


def test_an_empty_file_is_reported_as_empty(tmp_path):
    path = tmp_path / "model.gguf"
    path.touch()
    with expect_error(FormatError, code="empty"):
        squish.open(path)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"lmgg" + bytes(60), "lookalike"),
        (b"{'error':'denied'}\n" * 2, "lookalike"),
        (b"\1\2\3\4" * 9, "magic"),
        (bytes(99), "lookalike"),
    ],
)
def test_a_bad_magic_is_refused_when_the_format_is_forced(data, code):
    with expect_error(SquishError, code=code):
        squish.open(data, "gguf")


@pytest.mark.parametrize("code", [4, 5, 31, 32, 33, 36, 37, 38, 43, 142, 1000, (1 << 32) - 1])
def test_a_tensor_of_unknown_type_is_listed_and_refused_alone(raw, code):
    tensors = raw.tensor("a", (8,)), raw.tensor("odd", (256,), code, 32), raw.tensor("b", (8,), 0, 128)
    data = raw.file((), tensors, b"".join(bytes([value]) * 32 for value in (1, 2, 2, 2, 3)))
    with squish.open(data) as file:
        assert list(file) == ["a", "odd", "b"]
        assert file["odd"].shape == (256,)
        assert not file.problems
        assert [file[name].numpy().tobytes()[0] for name in ("a", "b")] == [1, 3]
        assert f"GGML type {code} " in file["odd"].spec.problem
        with expect_error(TensorError, code="unreadable", tensor="odd"):
            file["odd"].numpy()
        assert file["odd"].parts()["data"].raw == b"\2" * 96


@pytest.mark.parametrize("code", [97, 133, 153, 157, 158, 202, 230, 352, 353, 397, 399])
def test_an_ik_llama_type_is_named_with_its_fork(raw, code):
    with squish.open(raw.file((), (raw.tensor("w", (256,), code),), bytes(512))) as file:
        assert "of ik_llama.cpp" in file["w"].spec.problem


def test_q2_0_with_34_byte_blocks_reads_as_pq2_0(raw):
    """Early PrismML files have them; a truncated file must not look like one."""
    tensors = raw.tensor("a", (1024,), 42), raw.tensor("b", (8,), 0, 288), raw.tensor("c", (1024,), 42, 320)
    wide = raw.tensor("a", (1024,), 42), raw.tensor("b", (8,), 0, 272), raw.tensor("c", (1024,), 42, 304)
    alignment = raw.scalar("general.alignment", "u32", 16)
    with squish.open(raw.file((alignment,), wide, bytes(304 + 272), alignment=16), "gguf") as file:
        assert file["b"].numpy().shape == (8,)
        for name in "ac":
            assert "PQ2_0 of PrismML" in file[name].spec.problem
            with expect_error(TensorError, code="unreadable", tensor=name):
                file[name].numpy()
            assert file[name].parts()["data"].nbytes == 272
    with squish.open(raw.file((), tensors, bytes(320 + 288)), "gguf") as file:
        assert not file["c"].numpy().any()
    with expect_error(SquishError, code="bounds", tensor="c", offset=448):
        squish.open(raw.file((), tensors, bytes(320 + 208)), "gguf")


def problems(data: bytes) -> list[tuple[str, str]]:
    """Code and message of each problem found on opening."""
    with squish.open(data) as file:
        return [(problem.code, problem.message) for problem in file.problems]


def test_identical_ranges_are_a_problem(raw):
    data = raw.file((), (raw.tensor("a", (8,)), raw.tensor("b", (8,))), bytes(32))
    assert problems(data) == [("alias", f"shares the bytes at {len(data) - 32} with 'a'")]


def test_a_hole_is_a_problem(raw):
    data = raw.file((), (raw.tensor("a", (8,)), raw.tensor("b", (8,), 0, 96)), bytes(128))
    assert [code for code, _ in problems(data)] == ["hole"]
    assert "64 unused bytes" in problems(data)[0][1]


def test_trailing_data_is_a_problem(raw):
    data = one(raw, (8,), data=bytes(32)) + b"PK\3\4"
    assert [code for code, _ in problems(data)] == ["trailing"]
    assert "4 unused bytes" in problems(data)[0][1]


def test_a_last_tensor_without_padding_is_fine(raw):
    assert problems(one(raw, (7,), data=bytes(28))) == []


def test_verify_reports_nonzero_padding(raw):
    data = raw.file((), (raw.tensor("a", (7,)), raw.tensor("b", (8,), 0, 32)), bytes(31) + b"\1" + bytes(32))
    assert [problem.code for problem in squish.verify(data).problems] == ["padding"]


def test_verify_reports_nonzero_padding_of_the_head(raw):
    data = bytearray(one(raw, (16,)))
    data[-65] = 1
    assert [problem.code for problem in squish.verify(bytes(data)).problems] == ["padding"]


def test_an_invalid_utf8_value_is_a_problem_and_stays_bytes(raw):
    data = raw.file((raw.text("k", b"\xff"), raw.array("a", 8, 2, raw.string("x") + raw.string(b"\xfe"))))
    with squish.open(data) as file:
        assert file.meta["k"] == b"\xff"
        assert list(file.meta["a"]) == ["x", b"\xfe"]
        assert [problem.code for problem in file.problems] == ["utf-8", "utf-8"]
        with pytest.raises(FormatError):
            squish.open(data, strict=True)


def test_utf8_is_checked_per_string_not_across_lengths(raw):
    # 0xc3 and the length 0xa9 together would be "é".
    strings = raw.string(b"\xc3") + raw.string("x" * 0xA9)
    with squish.open(raw.file((raw.array("a", 8, 2, strings),))) as file:
        assert file.meta["a"][0] == b"\xc3"
        assert len(file.problems) == 1


def test_control_characters_in_a_name_are_kept_and_not_printed(raw):
    name = "\x1b[31mred\u202e"
    with squish.open(raw.file((), (raw.tensor(name, (8,)),), bytes(32))) as file:
        assert list(file) == [name]
    with pytest.raises(SquishError) as caught:
        squish.open(raw.file((), (raw.tensor(name, (8,)),), bytes(31)))
    assert not {"\x1b", "\u202e"} & set(str(caught.value))


def test_names_equal_after_normalization_are_a_problem(raw):
    tensors = raw.tensor("caf\u00e9", (8,)), raw.tensor("cafe\u0301", (8,), 0, 32)
    assert [code for code, _ in problems(raw.file((), tensors, bytes(64)))] == ["name"]
