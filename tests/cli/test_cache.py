"""The cache of folders: made once, bounded, the least recently used removed first."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from squish_cli import main

import squish_core as squish
from squish_core.api import atomic_folder
from squish_core.io import cache


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.FOLDER, str(tmp_path / "cache"))


def folder(key: str, size: int = 100, used: int | None = None) -> Path:
    """A cached folder of one file; `used` sets when it was used last."""

    def fill(path: Path) -> None:
        with atomic_folder(path) as sink, sink.member("data") as out:
            out.write(bytes(size))

    path = cache.cached_folder("toys", key, fill)
    if used is not None:
        os.utime(path, (used, used))
    return path


def test_a_folder_is_built_once() -> None:
    path = folder("a")
    before = (path / "data").stat().st_mtime_ns
    assert folder("a", size=7) == path
    assert (path / "data").stat().st_mtime_ns == before
    assert [(entry.kind, entry.key, entry.size) for entry in cache.entries()] == [("toys", "a", 100)]


def test_a_failed_build_leaves_no_folder() -> None:
    def fail(path: Path) -> None:
        with atomic_folder(path) as sink, sink.member("data") as out:
            out.write(b"x")
            raise squish.FormatError("no sound zip", code="zip")

    with pytest.raises(squish.FormatError):
        cache.cached_folder("toys", "a", fail)
    assert cache.entries() == []
    assert list((cache.cache_folder() / "toys").iterdir()) == []


def test_the_least_recently_used_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    folder("old", used=1000)
    folder("older", used=500)
    folder("recent", used=2000)
    monkeypatch.setenv(cache.SIZE, "250")
    folder("new")
    assert [entry.key for entry in cache.entries()] == ["recent", "new"]


def test_a_folder_larger_than_the_limit_is_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.SIZE, "50")
    folder("a")
    assert folder("b").is_dir()
    assert [entry.key for entry in cache.entries()] == ["b"]


@pytest.mark.parametrize("value", ["much", "-1", "1e9"])
def test_an_invalid_limit_is_an_error_before_anything_is_written(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.SIZE, value)
    with pytest.raises(squish.UsageError):
        folder("a")
    assert not cache.cache_folder().exists()


def test_a_cache_that_cannot_be_written_names_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(cache.FOLDER, str(tmp_path / "file"))
    with pytest.raises(squish.WriteError) as caught:
        folder("a")
    assert caught.value.code == "write"
    assert cache.FOLDER in str(caught.value.hint)


def test_the_command_lists_and_clears(capsys: pytest.CaptureFixture[str]) -> None:
    folder("abc", used=1000)
    folder("def", used=2000)
    assert main(["cache", "list"]) == 0
    shown = capsys.readouterr().out
    assert shown.index("abc") < shown.index("def")
    assert main(["cache", "clear", "ab"]) == 0
    assert [entry.key for entry in cache.entries()] == ["def"]
    assert main(["cache", "clear", "ab"]) == 2
    assert main(["cache", "clear"]) == 0
    assert cache.entries() == []
