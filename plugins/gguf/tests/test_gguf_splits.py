"""Split sets: any part opens the whole model; errors name the part that does not belong."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from squish_testing import expect_error

import squish_core as squish
from squish_core.errors import FormatError, MissingFileError, TruncatedError


@pytest.fixture
def make_set(raw, tmp_path):
    """Write three parts with one tensor each; `change(number, fields)` may alter a part's fields."""

    def write(change=lambda number, fields: None):
        for number in range(3):
            fields = {
                "split.no": ("u16", number), "split.count": ("u16", 3), "split.tensors.count": ("i32", 3),
                "general.name": "m", "tensor": f"w{number}",
            }  # fmt: skip
            if number == 0:
                fields["only.first"] = "x"
            change(number, fields)
            tensor = raw.tensor(fields.pop("tensor"), (2,))
            pairs = [
                raw.text(key, value) if isinstance(value, str) else raw.scalar(key, *value)
                for key, value in fields.items()
            ]
            data = struct.pack("<2f", number, number).ljust(32, b"\0")
            (tmp_path / part(number)).write_bytes(raw.file(tuple(pairs), (tensor,), data))
        return tmp_path

    return write


def part(number: int) -> str:
    return f"m-{number + 1:05}-of-00003.gguf"


@pytest.mark.parametrize("opened", [0, 1, 2])
def test_any_part_opens_the_whole_set(make_set, opened):
    with squish.open(make_set() / part(opened)) as file:
        assert list(file) == ["w0", "w1", "w2"]
        assert [float(file[name].numpy()[0]) for name in file] == [0, 1, 2]
        assert [ref.name for ref in file.index.files] == [part(number) for number in range(3)]
        assert not file.problems


def test_split_keys_are_not_model_metadata(make_set):
    with squish.open(make_set() / part(1)) as file:
        assert file.meta == {"general.name": "m", "only.first": "x"}


def test_a_set_is_written_as_one_file(make_set, tmp_path):
    folder = make_set()
    squish.convert(folder / part(0), tmp_path / "one.gguf")
    with squish.open(tmp_path / "one.gguf") as file:
        assert len(file.index.files) == 1
        assert [float(file[name].numpy()[0]) for name in file] == [0, 1, 2]


def test_verify_checks_every_part(make_set):
    folder = make_set()
    data = bytearray((folder / part(2)).read_bytes())
    data[-1] = 1
    (folder / part(2)).write_bytes(data)
    assert [problem.code for problem in squish.verify(folder / part(0)).problems] == ["padding"]


def expect_fault(folder, number, code, kind=FormatError, **fields):
    """Opening the first part fails with an error about another part."""
    with expect_error(kind, code=code, **fields) as caught:
        squish.open(folder / part(0))
    assert Path(caught.value.file).name == part(number)


@pytest.mark.parametrize("missing", [1, 2])
def test_a_missing_part_is_named(make_set, missing):
    folder = make_set()
    (folder / part(missing)).unlink()
    expect_fault(folder, missing, "missing", MissingFileError)


def test_a_cut_part_is_named(make_set):
    folder = make_set()
    (folder / part(1)).write_bytes((folder / part(1)).read_bytes()[:-32])
    expect_fault(folder, 1, "bounds", TruncatedError)


@pytest.mark.parametrize(
    ("key", "value", "fields"),
    [
        ("split.no", ("u16", 0), {"code": "split", "found": 0}),
        ("split.no", ("i32", -1), {"code": "split", "found": "-1"}),
        ("split.no", "1", {"code": "split", "found": "'1'"}),
        ("split.count", ("u16", 2), {"code": "split", "found": 2}),
        ("split.tensors.count", ("i32", 4), {"code": "split", "found": 3}),
        ("general.name", "other", {"code": "split", "found": "'other'"}),
        ("general.name", ("u8", 1), {"code": "split", "found": "1"}),
        ("tensor", "w0", {"code": "duplicate", "tensor": "w0"}),
    ],
)
def test_a_part_that_contradicts_the_others_is_named(make_set, key, value, fields):
    def change(number, fields):
        if number == 1:
            fields[key] = value

    expect_fault(make_set(change), 1, **fields)


@pytest.mark.parametrize("name", ["model.gguf", "m-00001-of-00004.gguf", "m-00004-of-00003.gguf", "m-1-of-3.gguf"])
def test_a_renamed_part_is_refused(make_set, name):
    folder = make_set()
    (folder / part(0)).rename(folder / name)
    with expect_error(FormatError, code="split", expected="a name like model-00001-of-00003.gguf"):
        squish.open(folder / name)


def test_a_part_in_memory_is_refused(make_set):
    with expect_error(FormatError, code="split", expected="a name like model-00001-of-00003.gguf", found="<bytes>"):
        squish.open((make_set() / part(0)).read_bytes())


def test_a_set_with_one_part_is_a_single_file(raw):
    data = raw.file((raw.scalar("split.no", "u16", 0), raw.scalar("split.count", "u16", 1)))
    with squish.open(data) as file:
        assert list(file.meta) == ["split.no", "split.count"]


def plain_part(raw, number, count, name):
    """A part with one tensor."""
    pairs = (raw.scalar("split.no", "u16", number), raw.scalar("split.count", "u16", count)) if count > 1 else ()
    return raw.file((raw.text("general.architecture", "llama"), *pairs), (raw.tensor(name, (8,)),), bytes(32))


@pytest.mark.parametrize("name", ["merged.gguf", "m-00001-of-00002.gguf"])
def test_the_message_calls_parts_joined_by_cat_so(raw, tmp_path, name):
    (tmp_path / name).write_bytes(plain_part(raw, 0, 2, "a") + plain_part(raw, 1, 2, "b"))
    with pytest.raises(FormatError, match=r"joined by `cat`.*Name the first of the original parts") as caught:
        squish.open(tmp_path / name)
    assert caught.value.code == "split"


def test_two_files_that_cat_joined_are_the_first_with_a_warning(raw):
    with squish.open(plain_part(raw, 0, 1, "a") + plain_part(raw, 0, 1, "b")) as file:
        assert list(file) == ["a"]
        found = {problem.code: problem.severity for problem in file.problems}
        assert found == {"split": "warning", "trailing": "warning"}
