"""Copies from a source that is no file: other threads write the bytes while the next ones arrive."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from squish_core.io.atomic import atomic_file, atomic_folder
from squish_core.io.sink import _PIECE, WRITES
from squish_core.io.source import BytesSource

PATIENCE = 120
DATA = bytes(range(251)) * (10 * _PIECE // 251)


class Writes:
    """`os.pwrite` that writes when it may; `begun` counts the calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may, self.begun, self._write = threading.Event(), threading.Semaphore(0), os.pwrite
        self.error: OSError | None = None
        monkeypatch.setattr(os, "pwrite", self)

    def __call__(self, fd: int, data: Any, offset: int) -> int:
        self.begun.release()
        assert self.may.wait(PATIENCE)
        if self.error:
            raise self.error
        return self._write(fd, data[:100_000], offset)  # the system may write less than all

    def wait(self) -> None:
        """Wait until a write has begun."""
        assert self.begun.acquire(timeout=PATIENCE)


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> Writes:
    monkeypatch.delenv("SQUISH_THREADS", raising=False)
    return Writes(monkeypatch)


def still_open(folder: Path) -> list[str]:
    """Files below `folder` that this process has open; those of other tests may close at any time."""
    targets = [os.path.realpath(entry) for entry in Path("/proc/self/fd").glob("*")]
    return [target for target in targets if target.startswith(str(folder.resolve()))]


@pytest.mark.parametrize("threads", ["", "1", "2"])
def test_copies_and_writes_keep_their_places(tmp_path: Path, threads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQUISH_THREADS", threads)
    source, counts = BytesSource(DATA), list[int]()
    with atomic_file(tmp_path / "out", counts.append) as sink:
        sink.write(b"head")
        sink.copy(source, 0, len(DATA))
        sink.write(b"middle")
        sink.copy(source, 7, len(DATA) - 7)
        sink.copy(source, 1, 5)
        assert sink.tell() == sum(counts)
    with atomic_folder(tmp_path / "folder") as folder, folder.member("a") as member:
        member.copy(source, 0, len(DATA))
    assert (tmp_path / "out").read_bytes() == b"head" + DATA + b"middle" + DATA[7:] + DATA[1:6]
    assert sum(counts) == (tmp_path / "out").stat().st_size
    assert (tmp_path / "folder" / "a").read_bytes() == DATA
    assert not still_open(tmp_path)


def test_a_few_pieces_are_pending(tmp_path: Path, writes: Writes) -> None:
    views: list[int] = []

    class Pieces(BytesSource):
        def _view(self, offset: int, length: int) -> memoryview:
            views.append(offset)
            if len(views) == WRITES + 1:
                writes.wait()  # one has begun, none is written: the copy waits for it with the next one in hand
                writes.may.set()
            assert len(views) <= WRITES + 1 or writes.may.is_set()
            return super()._view(offset, length)

    with atomic_file(tmp_path / "out") as sink:
        sink.copy(Pieces(DATA), 0, len(DATA))
    assert (tmp_path / "out").read_bytes() == DATA


@pytest.mark.parametrize("act", ["read_back", "patch", "truncate"])
def test_earlier_bytes_are_written_before_they_are_used(tmp_path: Path, writes: Writes, act: str) -> None:
    expected = bytearray(DATA[: 2 * _PIECE])
    with atomic_file(tmp_path / "out") as sink:
        sink.copy(BytesSource(DATA), 0, 2 * _PIECE)
        threading.Timer(0.05, writes.may.set).start()
        if act == "read_back":
            assert sink.read_back(_PIECE, 9) == DATA[_PIECE : _PIECE + 9]
        elif act == "patch":
            sink.patch(_PIECE, b"patched")
            expected[_PIECE : _PIECE + 7] = b"patched"
        else:
            sink.truncate(_PIECE)
            sink.write(b"end")
            expected[_PIECE:] = b"end"
    assert (tmp_path / "out").read_bytes() == expected


def test_a_full_disk_ends_the_write_and_leaves_the_old_file(tmp_path: Path, writes: Writes) -> None:
    (tmp_path / "out").write_bytes(b"old")
    writes.error = OSError(28, "No space left on device")
    writes.may.set()
    with pytest.raises(OSError, match="No space"), atomic_file(tmp_path / "out") as sink:
        sink.copy(BytesSource(DATA), 0, 2 * _PIECE)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out").read_bytes() == b"old"
    assert not still_open(tmp_path)


def test_an_interrupt_waits_for_the_write_under_way(tmp_path: Path, writes: Writes) -> None:
    def interrupted() -> None:
        with atomic_file(tmp_path / "out") as sink:
            sink.copy(BytesSource(DATA), 0, 2 * _PIECE)
            writes.wait()
            raise KeyboardInterrupt

    threading.Timer(0.05, writes.may.set).start()
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not list(tmp_path.iterdir())
    assert not still_open(tmp_path)
