"""Temporaries of writers that were killed: found, removed when their target is written again, never a live writer's."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import kills
import pytest

from squish_core.codes import ErrorCode
from squish_core.io import system
from squish_core.io.atomic import atomic_file, atomic_folder, temporaries
from squish_core.io.local import FileSource

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no locks, no SIGKILL")

WORK = """
from squish_core.io.atomic import atomic_file, atomic_folder

def prepare(folder):
    if {file!r}:
        (folder / "out").write_bytes(b"old")

def work(folder):
    if {file!r}:
        with atomic_file(folder / "out") as sink:
            sink.write(b"new" * 1000)
        return
    with atomic_folder(folder / "out") as sink:
        for name in "ab":
            with sink.member(name, "inner") as member:
                member.write(b"new")
"""


def write_file(target: Path) -> list[str]:
    with atomic_file(target) as sink:
        sink.write(b"new" * 1000)
    return sink.notes


def write_folder(target: Path) -> list[str]:
    with atomic_folder(target) as sink, sink.member("a") as member:
        member.write(b"new")
    return sink.notes


def dead(target: Path, size: int = 3) -> Path:
    path = target.with_name(f".{target.name}.{'0' * 16}.part")
    path.write_bytes(bytes(size))
    return path


@contextmanager
def living(target: Path) -> Iterator[Path]:
    path = dead(target)
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield path


def test_a_killed_write_leaves_the_old_or_the_new_file_and_the_next_write_removes_its_temporary(
    tmp_path: Path,
) -> None:
    left = 0
    for folder in kills.kill_everywhere(WORK.format(file=True), tmp_path, least=5):
        target = folder / "out"
        assert target.read_bytes() in (b"old", b"new" * 1000)
        parts = list(temporaries(folder))
        assert all((part.target, part.state) == (target, "dead") for part in parts)
        left += len(parts)
        assert len(write_file(target)) == len(parts)
        assert os.listdir(folder) == ["out"]
    assert left >= 4


def test_a_killed_write_of_a_folder_leaves_it_whole_or_absent(tmp_path: Path) -> None:
    for folder in kills.kill_everywhere(WORK.format(file=False), tmp_path, least=8):
        target = folder / "out"
        if target.exists():
            assert sorted(os.listdir(target / "inner")) == ["a", "b"]
            assert list(temporaries(folder)) == []
            continue
        parts = list(temporaries(folder))
        assert len(write_folder(target)) == len(parts)
        assert os.listdir(folder) == ["out"]


def test_the_temporary_of_a_living_writer_is_never_touched(tmp_path: Path) -> None:
    target = tmp_path / "out"
    with atomic_file(target) as first:
        first.write(b"first")
        assert [part.state for part in temporaries(tmp_path)] == ["live"]
        with atomic_file(target) as second:
            second.write(b"second")
        assert second.notes == []
        assert target.read_bytes() == b"second"
    assert target.read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["out"]


def test_a_folder_that_is_written_is_locked_too(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "out") as sink, sink.member("a") as member:
        member.write(b"abc")
        assert [(part.state, part.size) for part in temporaries(tmp_path)] == [("live", 0)]


def test_temporaries_of_other_targets_stay(tmp_path: Path) -> None:
    others = [dead(tmp_path / name) for name in ("out.b", "b.out", "ou")]
    assert write_file(tmp_path / "out") == []
    assert all(path.exists() for path in others)


def test_a_temporary_removed_between_its_creation_and_its_lock_is_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait, removed = system.wait_lock, list[Path]()

    def remove_first(fd: int) -> Any:
        if not removed:
            removed.extend(tmp_path.glob(".out.*.part"))
            removed[0].unlink()
        return wait(fd)

    monkeypatch.setattr("squish_core.io.system.wait_lock", remove_first)
    write_file(tmp_path / "out")
    assert len(removed) == 1
    assert os.listdir(tmp_path) == ["out"]


def test_without_locks_nothing_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = dead(tmp_path / "out")

    def unsupported(fd: int, operation: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    assert [part.state for part in temporaries(tmp_path)] == ["unknown"]
    assert write_file(tmp_path / "out") == []
    assert path.exists()


def test_links_and_other_names_are_not_temporaries(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"x")
    dead(tmp_path / "link").unlink()
    (tmp_path / f".link.{'0' * 16}.part").symlink_to(tmp_path / "real")
    for name in (".a.part", f"b.{'0' * 16}.part", f".c.{'0' * 15}.part", f".d.{'g' * 16}.part"):
        (tmp_path / name).touch()
    assert list(temporaries(tmp_path)) == []
    assert write_file(tmp_path / "link") == []
    assert (tmp_path / "real").exists()


@pytest.mark.parametrize("write", [write_file, write_folder])
def test_a_folder_that_cannot_be_synced_after_the_rename_is_a_note_not_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path], list[str]]
) -> None:
    target, sync = tmp_path / "out", os.fsync

    def fails(fd: int) -> None:
        if os.fstat(fd).st_ino == tmp_path.stat().st_ino:
            raise OSError(5, "Input/output error")
        sync(fd)

    monkeypatch.setattr(os, "fsync", fails)
    (note,) = write(target)
    assert str(target) in note
    assert "Input/output error" in note
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("write", [write_file, write_folder])
def test_writing_works_on_file_systems_that_cannot_sync_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path], list[str]]
) -> None:
    sync = os.fsync

    def fails(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(22, "Invalid argument")
        sync(fd)

    monkeypatch.setattr(os, "fsync", fails)
    assert write(tmp_path / "out") == []


@pytest.fixture(params=[0o022, 0o077, 0o000])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("old", [0o600, 0o640, 0o666, 0o444])
def test_a_replaced_file_keeps_its_permissions(tmp_path: Path, umask: int, old: int) -> None:
    (tmp_path / "out").touch()
    (tmp_path / "out").chmod(old)
    with atomic_file(tmp_path / "out", mode=0o604) as sink:
        sink.write(b"new")
        (part,) = temporaries(tmp_path)
        assert mode(part.path) == old
    assert mode(tmp_path / "out") == old


@pytest.mark.parametrize("source", [0o600, 0o640, 0o644, 0o400])
def test_a_new_file_or_folder_gets_the_mode_of_its_source_masked(tmp_path: Path, umask: int, source: int) -> None:
    with atomic_file(tmp_path / "file", mode=source):
        pass
    with atomic_folder(tmp_path / "folder", mode=source) as sink, sink.member("a", "inner"):
        pass
    assert mode(tmp_path / "file") == source & ~umask
    assert mode(tmp_path / "folder" / "inner" / "a") == source & ~umask
    assert mode(tmp_path / "folder") == (source | (source & 0o444) >> 2 | 0o700) & ~umask


def test_a_torn_append_is_listed_with_the_bytes_it_left(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from squish_convert.append import appended_file, locked_file\n"
        "with locked_file(Path(sys.argv[1])) as lock, appended_file(lock) as sink:\n"
        "    sink.write(bytes(1 << 21)); os.kill(os.getpid(), signal.SIGKILL)"
    )
    target = tmp_path / "model"
    target.write_bytes(b"old")
    assert subprocess.run([sys.executable, "-c", code, str(target)]).returncode == -signal.SIGKILL
    with closing(FileSource(target)) as source:
        assert (source.size, [finding.code for finding in source.findings]) == (3, [ErrorCode.TORN_APPEND])
    assert target.stat().st_size > 3
