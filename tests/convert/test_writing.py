"""A write happens whole or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest
from squish_testing import expect_error

from squish_core.errors import FormatError, WriteError
from squish_core.guard import guarded
from squish_core.io.atomic import atomic_file, atomic_folder
from squish_core.io.sink import MOST, Sink


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def write_and_fail(target: Path, error: type[BaseException]) -> None:
    with atomic_file(target) as sink:
        sink.write(b"new")
        raise error


def write_folder_and_fail(target: Path) -> None:
    with atomic_folder(target) as sink:
        with sink.member("a") as member:
            member.write(b"x")
        raise OSError("full")


def test_a_file_takes_its_place_at_the_end(tmp_path: Path) -> None:
    target = tmp_path / "out"
    with atomic_file(target) as sink:
        sink.write(b"abc")
        assert not target.exists()
    assert target.read_bytes() == b"abc"
    assert names(tmp_path) == ["out"]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_failed_write_leaves_the_old_file_and_no_temporaries(tmp_path: Path, error: type[BaseException]) -> None:
    target = tmp_path / "out"
    target.write_bytes(b"old")
    with pytest.raises(error):
        write_and_fail(target, error)
    assert target.read_bytes() == b"old"
    assert names(tmp_path) == ["out"]


def test_everything_is_synced_before_it_takes_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: dict[int, int] = {}
    target, sync = tmp_path / "out", os.fsync

    def watched(fd: int) -> None:
        info = os.fstat(fd)
        if info.st_ino != tmp_path.stat().st_ino:
            assert not target.exists()
        sync(fd)
        synced[info.st_ino] = info.st_size

    monkeypatch.setattr(os, "fsync", watched)
    with atomic_folder(target) as sink:
        for number in range(2 * MOST):
            with sink.member(f"{number}", "inner") as member:
                member.write(bytes(number))
    paths = [target, *target.rglob("*")]
    assert all(synced[path.stat().st_ino] == path.stat().st_size for path in paths)
    assert tmp_path.stat().st_ino in synced


def test_a_long_file_is_on_its_way_while_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = list[int]()
    monkeypatch.setattr(os, "fsync", synced.append)
    monkeypatch.setattr("squish_core.io.sink.STEP", 1 << 21)
    with atomic_file(tmp_path / "out") as sink:
        for _ in range(5):
            sink.write(bytes(1 << 20))
    assert len(synced) == 4  # twice on the way, the whole, the folder
    assert (tmp_path / "out").stat().st_size == 5 << 20


def test_a_disk_that_fails_to_sync_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(fd: int) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(os, "fsync", broken)
    for write in (_file, _folder):
        with pytest.raises(OSError, match="gone"):
            write(tmp_path / "out")
        assert names(tmp_path) == []


def _file(target: Path) -> None:
    with atomic_file(target) as sink:
        sink.write(b"abc")


def _folder(target: Path) -> None:
    with atomic_folder(target) as sink, sink.member("a") as member:
        member.write(b"abc")


def test_a_link_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "dangling").symlink_to(tmp_path / "gone")
    for name in ("link", "dangling"):
        with expect_error(WriteError, code="file-kind"), atomic_file(tmp_path / name):
            pass
    assert (tmp_path / "real").read_bytes() == b"old"


def test_a_folder_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with expect_error(WriteError, code="file-kind"), atomic_file(tmp_path / "out"):
        pass


@pytest.mark.parametrize("make", [atomic_file, atomic_folder])
def test_missing_folders_around_are_made_and_go_again_after_a_failure(tmp_path: Path, make: Any) -> None:
    with make(tmp_path / "new" / "folder" / "out"):
        pass
    assert (tmp_path / "new" / "folder" / "out").exists()
    with pytest.raises(ZeroDivisionError), make(tmp_path / "other" / "folder" / "out"):
        raise ZeroDivisionError
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("make", [atomic_file, atomic_folder])
def test_a_file_that_cannot_be_created_is_a_typed_error_with_its_path(tmp_path: Path, make: Any) -> None:
    long = "n" * 250
    with expect_error(WriteError, code="unwritable", file=str(tmp_path / long)), make(tmp_path / long):
        pass


def test_a_full_disk_is_not_called_a_plugins_fault() -> None:
    with expect_error(FormatError, code="os"), guarded(FormatError, "writing"):
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_permissions_follow_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        with atomic_file(tmp_path / "file"):
            pass
        with atomic_folder(tmp_path / "folder"):
            pass
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o666 & ~umask
    assert stat.S_IMODE((tmp_path / "folder").stat().st_mode) == 0o777 & ~umask


def test_a_new_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="full"):
        write_folder_and_fail(tmp_path / "out")
    assert names(tmp_path) == []
    with atomic_folder(tmp_path / "out") as sink, sink.member("a") as member:
        member.write(b"x")
    assert names(tmp_path / "out") == ["a"]
    with expect_error(WriteError, code="exists"), atomic_folder(tmp_path / "out"):
        pass


@pytest.mark.parametrize("name", ["../a", "a/b", "", ".hidden"])
def test_a_path_for_the_name_of_a_written_member_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(FormatError) as caught, atomic_folder(tmp_path / "out") as sink:
        sink.member(name)
    assert caught.value.code == "path"


def test_files_in_a_folder_and_sentinels(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "out") as sink:
        with sink.member("a", "inner") as member:
            member.write(b"x")
        with sink.member("b", "inner/most") as member:
            member.write(b"x")
        sink.sentinel(".ready", "inner")
        sink.sentinel(".ready")
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()) == [
        "out/.ready",
        "out/inner/.ready",
        "out/inner/a",
        "out/inner/most/b",
    ]


def test_padding_and_position(tmp_path: Path) -> None:
    seen: list[int] = []
    with atomic_file(tmp_path / "out", seen.append) as sink:
        assert isinstance(sink, Sink)
        sink.write(b"abc")
        sink.write(b"")
        sink.pad(8)
        sink.pad(8)
        sink.pad(10_000)
        assert sink.tell() == 10_000
    assert (tmp_path / "out").read_bytes() == b"abc".ljust(10_000, b"\0")
    assert sum(seen) == 10_000
