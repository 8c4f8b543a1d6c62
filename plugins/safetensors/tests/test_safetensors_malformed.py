"""Malformed inputs: each rule of the format is an error that names field and place; nothing else escapes."""

from __future__ import annotations

import json
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from squish_testing import expect_error

import squish_core as squish
from squish_core.errors import FormatError, LimitError, SquishError, TruncatedError, UnknownFormatError


def sized(raw: bytes, data: bytes = b"") -> bytes:
    return len(raw).to_bytes(8, "little") + raw + data


def one(data: bytes = b"abcd", **fields: object) -> bytes:
    """A file of one tensor, some of its fields replaced."""
    entry = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4], **fields}
    return sized(json.dumps({"w": entry}).encode(), data)


def two(first: list[int], second: list[int], data: int) -> bytes:
    entries = {
        name: {"dtype": "U8", "shape": [end - begin], "data_offsets": [begin, end]}
        for name, (begin, end) in (("a", first), ("b", second))
    }
    return sized(json.dumps(entries).encode(), bytes(data))


ENTRY = b'{"dtype":"U8","shape":[1],"data_offsets":[0,1]}'
DIGITS = "9" * 4299


def long(unit: bytes, before: bytes = b'{"a":[', after: bytes = b"0]}") -> bytes:
    """A header of 4 MB that repeats something."""
    return sized(before + unit * (4_000_000 // len(unit)) + after)


CASES = {
    "file of 3 bytes": (b"{\0\0", TruncatedError, "truncated"),
    "header length 0": (sized(b"") + b"{}", LimitError, "header-length"),
    "header length over the limit": ((100_000_001).to_bytes(8, "little") + b"{}", LimitError, "header-length"),
    "header length past the end": ((50).to_bytes(8, "little") + b"{}", TruncatedError, "truncated"),
    "header length 2^63": ((1 << 63).to_bytes(8, "little") + b"{}", LimitError, "header-length"),
    "leading space": (sized(b' {"w":' + ENTRY + b"}", b"a"), FormatError, "json"),
    "byte order mark": (sized(b"\xef\xbb\xbf{}"), FormatError, "json"),
    "an array": (sized(b"[]"), FormatError, "json"),
    "trailing junk": (sized(b"{} x"), FormatError, "json"),
    "two objects": (sized(b"{}{}"), FormatError, "json"),
    "trailing NUL": (sized(b"{}\0\0"), FormatError, "json"),
    "not UTF-8": (sized(b'{"\xff":' + ENTRY + b"}", b"a"), FormatError, "utf-8"),
    "half a surrogate pair": (sized(b'{"\\ud800":' + ENTRY + b"}", b"a"), FormatError, "utf-8"),
    "control character in a name": (sized(b'{"a\nb":' + ENTRY + b"}", b"a"), FormatError, "json"),
    "deep arrays": (sized(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"), LimitError, "depth"),
    "deep objects": (sized(b'{"a":' * 100_000 + b"1" + b"}" * 100_000), LimitError, "depth"),
    "deep behind brackets in strings": (
        sized(b'{"a":' + b'["]",' * 100_000 + b"1" + b"]" * 100_000 + b"}"), LimitError, "depth",
    ),
    "deep behind an escaped quote": (
        sized(b'{"a":' + b'["\\"]",' * 100_000 + b"1" + b"]" * 100_000 + b"}"), LimitError, "depth",
    ),
    "unterminated string of escapes": (sized(b'{"' + b'\\"' * 200_000), LimitError, "entry"),
    "unbalanced": (sized(b'{"a":[}'), FormatError, "json"),
    "NaN": (sized(b'{"a":NaN}'), FormatError, "json"),
    "number of 5000 digits": (sized(b'{"a":' + b"9" * 5000 + b"}"), FormatError, "json"),
    "duplicate name": (sized(b'{"w":' + ENTRY + b',"w":' + ENTRY + b"}", b"a"), FormatError, "duplicate"),
    "duplicate metadata": (sized(b'{"__metadata__":{},"__metadata__":{}}'), FormatError, "duplicate"),
    "duplicate metadata key": (sized(b'{"__metadata__":{"a":"1","a":"2"}}'), FormatError, "duplicate"),
    "duplicate field": (sized(b'{"w":{"dtype":"U8","dtype":"I8"}}'), FormatError, "duplicate"),
    "duplicate by an escape": (
        sized(b'{"w":' + ENTRY + b',"\\u0077":' + ENTRY + b"}", b"a"), FormatError, "duplicate",
    ),
    "metadata is a list": (sized(b'{"__metadata__":[]}'), FormatError, "metadata"),
    "entry is a list": (sized(b'{"w":[]}'), FormatError, "entry"),
    "field missing": (sized(b'{"w":{"dtype":"U8","shape":[1]}}'), FormatError, "entry"),
    "empty name": (sized(b'{"":' + ENTRY + b"}", b"a"), FormatError, "name"),
    "NUL in a name": (sized(b'{"a\\u0000b":' + ENTRY + b"}", b"a"), FormatError, "name"),
    "name of 1025 bytes": (sized(b'{"' + b"n" * 1025 + b'":' + ENTRY + b"}", b"a"), LimitError, "name"),
    "dtype is a number": (one(dtype=8), FormatError, "dtype"),
    "shape is text": (one(shape="4"), FormatError, "shape"),
    "negative dimension": (one(shape=[-4]), FormatError, "shape"),
    "float dimension": (one(shape=[4.0]), FormatError, "shape"),
    "true as a dimension": (one(shape=[True]), FormatError, "shape"),
    "65 dimensions": (one(shape=[1] * 64 + [4]), LimitError, "shape"),
    "product over 2^64": (one(shape=[1 << 33, 1 << 33]), LimitError, "shape"),
    "product of 8600 digits": (
        sized(b'{"w":' + ENTRY.replace(b"[1]", f"[{DIGITS},{DIGITS}]".encode()) + b"}", b"a"),
        LimitError, "shape",
    ),
    "zero times too much": (one(b"", shape=[0, 1 << 40, 1 << 40], data_offsets=[0, 0]),
                            LimitError, "shape"),
    "offsets reversed": (one(data_offsets=[4, 0]), FormatError, "offsets"),
    "offset negative": (one(data_offsets=[-4, 0]), FormatError, "offsets"),
    "offset float": (one(data_offsets=[0, 4.0]), FormatError, "offsets"),
    "offset true": (one(data_offsets=[False, 4]), FormatError, "offsets"),
    "one offset": (one(data_offsets=[0]), FormatError, "offsets"),
    "offset of 4299 digits": (sized(b'{"w":' + ENTRY.replace(b"0,1", f"0,{DIGITS}".encode()) + b"}", b"a"),
                              FormatError, "offsets"),
    "past the end by 1": (one(b"abc"), TruncatedError, "bounds"),
    "offset 2^64-64": (
        one(shape=[128], data_offsets=[(1 << 64) - 64, (1 << 64) + 64]), FormatError, "offsets",
    ),
    "offset 2^62": (one(data_offsets=[1 << 62, (1 << 62) + 4]), TruncatedError, "bounds"),
    "trailing bytes": (one(b"abcdPK\x03\x04"), FormatError, "trailing"),
    "no tensor but data": (sized(b"{}", b"a"), FormatError, "trailing"),
    "size too small": (one(shape=[3]), FormatError, "size"),
    "size too large": (one(dtype="F32"), FormatError, "size"),
    "zero dimension with bytes": (one(shape=[0]), FormatError, "size"),
    "overlap": (two([0, 4], [2, 6], 6), FormatError, "overlap"),
    "identical ranges": (two([0, 4], [0, 4], 4), FormatError, "overlap"),
    "hole": (two([0, 2], [4, 6], 6), FormatError, "hole"),
    "hole at the start": (two([2, 4], [4, 6], 6), FormatError, "hole"),
    "odd number of f4": (one(b"a", dtype="F4", shape=[1], data_offsets=[0, 1]), FormatError, "size"),
    "long: NULs": (long(b"\0", b"{"), FormatError, "json"),
    "long: spaces": (long(b" ", b"{", b"}"), LimitError, "entry"),
    "long: empty lists": (long(b"[],"), LimitError, "entry"),
    "long: empty objects": (long(b'"":{},', b"{", b'"":{}}'), FormatError, "duplicate"),
    "long: numbers": (long(b"1e9,"), LimitError, "entry"),
    "long: nested objects": (long(b'"a":{'), LimitError, "depth"),
    "long: a string without an end": (long(b'\\"', b'{"', b""), LimitError, "entry"),
    "long: an object in an object": (long(b"[],", b'{"a":{"b":[', b"0]}}"), LimitError, "entry"),
    "not closed": (sized(b'{"__metadata__":{}'), FormatError, "json"),
    "long: no comma behind it": (
        sized(b'{"__metadata__":{"a":"' + b"x" * 100_000 + b'"} "w":{}}'), FormatError, "json",
    ),
    "long: a number for a name": (long(b" 1,", b'{"a":{', b"}"), FormatError, "json"),
    "long: a name": (long(b"n", b'{"', b'":{}}'), LimitError, "entry"),
    "long: the same name": (long(b'"w":' + ENTRY + b",", b"{", b"}"), FormatError, "duplicate"),
    "long: the same key": (long(b'"k":"",', b'{"__metadata__":{', b'"l":""}}'), FormatError, "duplicate"),
    "3 of f6": (one(b"abc", dtype="F6_E2M3", shape=[3], data_offsets=[0, 3]), FormatError, "size"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_malformed_header_is_a_typed_error(case: str) -> None:
    data, kind, code = CASES[case]
    with pytest.raises(kind) as caught:
        squish.open(data, "safetensors")
    assert caught.value.code == code
    assert caught.value.file == "<bytes>"


@pytest.mark.parametrize("case", CASES)
def test_malformed_header_costs_little_memory(case: str) -> None:
    squish.registry().container("safetensors")
    tracemalloc.start()
    try:
        with pytest.raises(SquishError):
            squish.open(CASES[case][0], "safetensors")
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_an_error_names_the_tensor_and_where_its_entry_is() -> None:
    with pytest.raises(FormatError) as caught:
        squish.open(one(shape=[3]))
    assert caught.value.tensor == "w"
    assert caught.value.offset == 8 + len(b"{")


def test_the_error_of_a_truncated_file_states_both_sizes() -> None:
    data = one()
    with pytest.raises(TruncatedError) as caught:
        squish.open(data[:-1])
    assert (caught.value.expected, caught.value.found) == (f"{len(data)} bytes in total", f"{len(data) - 1} bytes")


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git-lfs pointer"),
        (b"<!DOCTYPE html><html></html>", "HTML page"),
        (b"PK\x03\x04" + bytes(60), "zip archive"),
        (b"\x80\x04" + bytes(60), "pickle"),
    ],
    ids=["pointer", "page", "zip", "pickle"],
)
@pytest.mark.parametrize("format_id", [None, "safetensors"])
def test_the_message_about_another_kind_of_file_names_it(
    tmp_path: Path, head: bytes, kind: str, format_id: str | None
) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(head)
    with expect_error(UnknownFormatError, code="lookalike", file=str(path)) as caught:
        squish.open(path, format_id)
    assert kind in caught.value.message


def test_control_characters_in_a_name_are_kept() -> None:
    name = "\x1b[31mred\u202e"
    assert list(squish.open(sized(json.dumps({name: json.loads(ENTRY)}).encode(), b"a"))) == [name]


def test_metadata_is_never_a_tensor() -> None:
    with squish.open(sized(b'{"__metadata__":{"dtype":"U8"},"w":' + ENTRY + b"}", b"a")) as file:
        assert list(file) == ["w"]


def test_terminal_escapes_in_a_name_are_not_printed() -> None:
    name = "\x1b[31mred\u202e"
    with pytest.raises(FormatError) as caught:
        squish.open(sized(json.dumps({name: {"dtype": "U8", "shape": [2], "data_offsets": [0, 1]}}).encode(), b"a"))
    assert "\x1b" not in str(caught.value)
    assert "\u202e" not in str(caught.value)


def base() -> bytes:
    header = {
        "__metadata__": {"format": "pt", "k\u00e9y": 'value \\ "'},
        "model.embed.weight": {"dtype": "BF16", "shape": [4, 4], "data_offsets": [0, 32]},
        "model.norm": {"dtype": "F32", "shape": [], "data_offsets": [32, 36]},
        "model.packed": {"dtype": "F4", "shape": [2, 4], "data_offsets": [36, 40]},
        "model.none": {"dtype": "U8", "shape": [0], "data_offsets": [40, 40]},
    }
    return sized(json.dumps(header, separators=(",", ":")).encode() + b"  ", bytes(range(40)))


def test_every_truncation_is_a_typed_error() -> None:
    data = base()
    for length in range(len(data)):
        with pytest.raises(SquishError) as caught:
            squish.open(data[:length], "safetensors")
        assert caught.value.code != "plugin-bug"


def test_mutants_open_or_fail_with_a_typed_error() -> None:
    data, chance, opened = base(), random.Random(7), 0
    tokens = [
        b"[",
        b"]",
        b"{",
        b"}",
        b'"',
        b"\\",
        b",",
        b":",
        b"-",
        b"0",
        b"9999999999",
        b"1e9",
        b"null",
        b"\xff",
        b"\0",
    ]
    for _ in range(4000):
        mutant = bytearray(data)
        for _ in range(chance.randint(1, 3)):
            at = chance.randrange(len(mutant) - 40)
            token = chance.choice(tokens)
            match chance.randrange(4):
                case 0:
                    mutant[at] ^= 1 << chance.randrange(8)
                case 1:
                    mutant[at : at + len(token)] = token
                case 2:
                    mutant[at:at] = token
                case 3:
                    del mutant[at : at + chance.randint(1, 8)]
        if chance.random() < 0.7:  # let the mutation reach past the length
            mutant[:8] = (len(mutant) - 48).to_bytes(8, "little")
        file = tried(lambda mutant=mutant: squish.open(bytes(mutant), "safetensors"))  # type: ignore[misc]
        if file is not None:
            opened += 1
            for name in file:
                tried(file[name].numpy)
    assert 0 < opened < 4000


def tried(action: Callable[[], Any]) -> Any:
    """The result, or None on a typed error; whatever else escapes fails the test."""
    try:
        return action()
    except SquishError as error:
        if error.code == "plugin-bug":
            raise
        return None


@pytest.mark.parametrize("name", ["w{}", "data_offsets {}"], ids=["many tensors", "named like a field"])
def test_more_tensors_than_the_limit_are_refused_before_the_first_is_read(name: str) -> None:
    entries = b",".join(b'"%s":{"broken":0,"data_offsets":[0,0]}' % name.format(i).encode() for i in range(11))
    data = sized(b"{" + entries + b"}")
    with pytest.raises(LimitError) as caught:
        squish.open(data, limits=squish.Limits(tensors=10))
    assert (caught.value.code, caught.value.found) == ("count", 11)
    with pytest.raises(FormatError) as other:
        squish.open(data, limits=squish.Limits(tensors=11))
    assert other.value.code == "entry"
