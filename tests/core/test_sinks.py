"""Sinks: disk space allocated ahead, and bytes written through small buffers, in threads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from squish_testing import expect_error

from squish_core.api import Sink, TruncatedError
from squish_core.io import sink
from squish_core.io.atomic import atomic_file, atomic_folder


def test_space_is_allocated_where_the_next_bytes_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranges: list[tuple[int, ...]] = []
    monkeypatch.setattr(sink, "_fallocate", lambda: lambda _, *numbers: ranges.append(numbers))
    with atomic_file(tmp_path / "file.bin") as file:
        file.write(b"head")
        file.reserve(8)
        file.write(b"contents")
    with atomic_folder(tmp_path / "folder") as folder, folder.member("member.bin") as member:
        member.reserve(2)
        member.write(b"ab")
    assert ranges == [(sink.KEEP_SIZE, 4, 8), (sink.KEEP_SIZE, 0, 2)]


@pytest.mark.parametrize("function", [sink._fallocate(), None, lambda *_: -1])
def test_a_file_is_the_same_with_and_without_allocated_space(
    function: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink, "_fallocate", lambda: function)
    with atomic_file(tmp_path / "file.bin") as file:
        file.reserve(5)
        file.write(b"12345")
    assert (tmp_path / "file.bin").read_bytes() == b"12345"


@pytest.mark.parametrize(
    ("length", "grain", "pieces"), [(0, 1, []), (7, 1, [4, 3]), (9, 3, [3, 3, 3]), (10, 5, [5, 5])]
)
def test_a_buffer_is_filled_with_whole_grains(
    length: int, grain: int, pieces: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink, "_BUFFER", 4)
    sizes: list[int] = []

    def read_into(start: int, piece: memoryview) -> None:
        sizes.append(len(piece))
        piece[:] = bytes(range(start, start + len(piece)))

    target: Sink
    with atomic_file(tmp_path / "file.bin") as target:
        target.fill(read_into, length, grain)
    assert (tmp_path / "file.bin").read_bytes() == bytes(range(length))
    assert sizes == pieces


@pytest.mark.parametrize(("threads", "in_order"), [("1", False), ("4", False), ("4", True)])
def test_threads_fill_a_file_between_other_bytes(
    threads: str, in_order: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SQUISH_THREADS", threads)
    monkeypatch.setattr(sink, "_BUFFER", 4)
    content, written, starts = bytes(range(251)) * 7, list[int](), list[int]()

    def read_into(start: int, piece: memoryview) -> None:
        starts.append(start)
        piece[:] = content[start : start + len(piece)]

    with atomic_file(tmp_path / "file.bin", written.append) as file:
        file.write(b"head")
        file.fill(read_into, len(content), in_order=in_order)
        assert file.tell() == 4 + len(content)
        file.write(b"tail")
    assert (tmp_path / "file.bin").read_bytes() == b"head" + content + b"tail"
    assert sum(written) == 8 + len(content)
    assert sorted(starts) == [*range(0, len(content), 4)]
    assert starts == sorted(starts) or not in_order


def test_an_error_in_a_thread_leaves_the_target_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink, "_BUFFER", 4)
    (tmp_path / "file.bin").write_bytes(b"before")

    def read_into(start: int, piece: memoryview) -> None:
        if start >= 100:
            raise TruncatedError("was truncated", offset=100, code="changed")

    with expect_error(TruncatedError, code="changed", offset=100), atomic_file(tmp_path / "file.bin") as file:
        file.fill(read_into, 1000)
    assert [path.name for path in tmp_path.iterdir()] == ["file.bin"]
    assert (tmp_path / "file.bin").read_bytes() == b"before"
