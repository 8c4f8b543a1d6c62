"""Bytes by offset, with every bound checked, from files that may change or close underneath."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest
import toys
from squish_testing import expect_error

import squish_core as squish
from squish_core.api import ClosedError, FormatError, MissingFileError, Source, SquishError, TruncatedError
from squish_core.io.local import open_source
from squish_core.io.source import BytesSource

DATA = bytes(range(256)) * 40


@pytest.fixture(params=["bytes", "file"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Source:
    if request.param == "bytes":
        return open_source(DATA)
    path = tmp_path / "data.bin"
    path.write_bytes(DATA)
    return open_source(path)


@pytest.mark.parametrize("how", ["read", "view", "read_into"])
def test_reads_return_exactly_the_requested_range(source: Source, how: str) -> None:
    for offset, length in ((0, 0), (0, 1), (255, 300), (len(DATA), 0), (0, len(DATA))):
        if how == "read_into":
            out = bytearray(length)
            source.read_into(offset, memoryview(out))
        else:
            out = getattr(source, how)(offset, length)
        assert bytes(out) == DATA[offset : offset + length]


@pytest.mark.parametrize("how", ["read", "view"])
@pytest.mark.parametrize(
    ("offset", "length"), [(-1, 1), (0, -1), (0, len(DATA) + 1), (len(DATA), 1), (1 << 64, 1 << 64)]
)
def test_a_range_outside_is_truncated_with_numbers(source: Source, how: str, offset: int, length: int) -> None:
    with expect_error(TruncatedError, code="bounds", found="a file of 10240 bytes") as caught:
        getattr(source, how)(offset, length, "the header")
    assert caught.value.offset == offset


def test_views_are_read_only(source: Source) -> None:
    with pytest.raises(TypeError):
        source.view(0, 4)[0] = 1  # type: ignore[index]


def test_after_close_reads_fail_and_views_live(source: Source) -> None:
    view = source.view(0, 4)
    source.close()
    source.close()
    assert bytes(view) == DATA[:4]
    for read in (source.read, source.view):
        with pytest.raises(ClosedError):
            read(0, 1)


def test_a_file_that_shrinks_while_open_is_a_typed_error(tmp_path: Path) -> None:
    path = tmp_path / "data.bin"
    path.write_bytes(DATA)
    source = open_source(path)
    source.view(0, 1)
    os.truncate(path, 100)
    for read in (source.read, source.view):
        with expect_error(TruncatedError, code="changed", expected="10240 bytes", found="100 bytes"):
            read(5000, 100)


def test_a_file_that_is_replaced_while_open_stays_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "data.bin"
    path.write_bytes(DATA)
    source = open_source(path)
    (tmp_path / "new").write_bytes(b"new")
    os.replace(tmp_path / "new", path)
    assert source.read(0, 10) == DATA[:10]


@pytest.mark.parametrize(
    "name", ["../x", "/etc/passwd", "a/b", "a\\b", ".", "..", "", ".hidden", "C:x", "a\0b", " x", "x "]
)
def test_a_member_with_a_path_for_a_name_is_refused(source: Source, name: str) -> None:
    with pytest.raises(FormatError) as caught:
        source.member(name)
    assert caught.value.code == "path"


def test_members_are_opened_once_and_closed_together(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_bytes(name.encode())
    (tmp_path / "folder").mkdir()
    for source in (open_source(tmp_path), open_source(tmp_path / "one")):
        assert source.members() == ("one", "two")
        member = source.member("two")
        assert source.member("two") is member
        assert member.read(0, 3) == b"two"
        with expect_error(MissingFileError, code="missing"):
            source.member("three")
        with pytest.raises(FormatError):
            source.member("folder")
        source.close()
        with pytest.raises(ClosedError):
            member.read(0, 1)
        with pytest.raises(ClosedError):
            source.member("two")
        with pytest.raises(ClosedError):
            source.member("one")


def test_bytes_have_no_members() -> None:
    with expect_error(
        FormatError,
    ):
        BytesSource(b"x").member("y")


def test_any_buffer_is_a_source() -> None:
    for data in (bytearray(b"abcd"), memoryview(b"abcd"), np.frombuffer(b"abcd", "u1"), np.array([1, 2], "<u2")):
        assert open_source(memoryview(data)).size == 4


@pytest.mark.parametrize("attempt", range(5))
def test_reads_that_race_close_finish_or_say_closed(tmp_path: Path, attempt: int) -> None:
    values = np.arange(64 * 1024, dtype="<f4").reshape(64, 1024)
    path = tmp_path / "a.box"
    path.write_bytes(toys.box({"w": values}))
    file = squish.open(path, registry=toys.registry())
    kept: list[tuple[int, np.ndarray]] = []
    wrong: list[BaseException] = []
    ready = threading.Barrier(9)

    def read(seed: int) -> None:
        ready.wait()
        try:
            for row in range(seed, 10_000):
                whole = file["w"].numpy()
                kept.append((row % 64, whole[row % 64]))
                file["w"][row % 64]
        except ClosedError:
            pass
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    ready.wait()
    file.close()
    for thread in threads:
        thread.join(300)
    assert not wrong
    assert all((array == values[row]).all() for row, array in kept)
    with pytest.raises(ClosedError):
        file["w"].numpy()


def test_files_of_a_folder_in_the_folder_are_members(tmp_path: Path) -> None:
    (tmp_path / "inner" / "most").mkdir(parents=True)
    (tmp_path / "inner" / "a").write_bytes(b"abc")
    (tmp_path / "inner" / "most" / "b").write_bytes(b"d")
    source = open_source(tmp_path)
    assert source.members("inner") == ("a",)
    assert source.members("none") == ()
    assert source.member("a", "inner").read(1, 2) == b"bc"
    assert source.member("a", "inner").filename == "inner/a"
    assert source.member("b", "inner/most").read(0, 1) == b"d"
    for name, folder in (("a", ".."), ("a", "inner/."), ("../a", "inner"), ("b", "inner"), ("a", "inner/../inner")):
        with pytest.raises(SquishError):
            source.member(name, folder)


def test_few_members_stay_open_and_each_is_the_same_file_again(tmp_path: Path) -> None:
    for number in range(70):
        (tmp_path / f"{number:02}").write_bytes(b"x")
    source = open_source(tmp_path)
    first = source.member("00")
    for name in source.members():
        source.member(name)
    assert source.member("00") is not first
    assert first.read(0, 1) == b"x"
    (tmp_path / "01").unlink()
    (tmp_path / "01").write_bytes(b"y")
    with expect_error(FormatError, code="changed"):
        source.member("01")
