"""Edits that are killed or run at the same time: the old content stays readable, and no edit is lost."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import kills
import numpy as np
import pytest
from squish_cli import app
from squish_convert import append
from squish_ztensor.edit import edit

import squish_core as squish
from squish_core.errors import FormatError, SquishError, WriteError
from squish_core.io.rollback import Rollback, rollback_path, write_rollback

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no locks, no SIGKILL")

ARRAYS = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array(True), "c": np.arange(4, dtype=np.int8)}
WIRES = [{"wire": "2"}, {"wire": "2", "flavor": "aligned"}, {}]
WORK = """
import shutil
import numpy as np
from squish_convert.append import locked_file
from squish_core.io.rollback import Rollback, write_rollback
from squish_ztensor.edit import edit

SOURCE = {source!r}

def prepare(folder):
    shutil.copyfile(SOURCE, folder / "model.zt")
    if {torn!r}:
        with open(folder / "model.zt", "r+b") as file:
            write_rollback(folder / "model.zt", Rollback.of(file.fileno()), 0o644)
            file.seek(0, 2)
            file.write(bytes(5000))

def work(folder):
    if {torn!r}:
        with locked_file(folder / "model.zt"):
            pass
    else:
        edit(folder / "model.zt", add={{"d": np.arange(300000.0)}}, remove=["a"], attributes={{"license": "MIT"}})
"""


@pytest.fixture
def model(zt: Any, tmp_path: Path) -> Path:
    path = tmp_path / "model.zt"
    zt.written(path, ARRAYS, {"wire": "2"})
    return path


def tear(path: Path, count: int = 5000) -> bytes:
    """Leave a file as an edit does that is killed while it appends; its bytes before."""
    before = path.read_bytes()
    with path.open("r+b") as file:
        write_rollback(path, Rollback.of(file.fileno()), 0o644)
        file.seek(0, os.SEEK_END)
        file.write(bytes(count))
    return before


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """The lock of a file, taken by a writer that is not this one."""
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def codes(path: Path) -> list[str]:
    return [problem.code for problem in squish.verify(path, deep=True).problems]


def contents(path: Path) -> tuple[list[str], dict[str, Any]]:
    with squish.open(path) as file:
        return sorted(file), file.meta


OLD, NEW = (["a", "b", "c"], {}), (["b", "c", "d"], {"license": "MIT"})


@pytest.mark.parametrize("options", WIRES)
def test_a_killed_edit_leaves_the_old_or_the_new_content_readable(
    zt: Any, tmp_path: Path, options: dict[str, str]
) -> None:
    source = tmp_path / "source.zt"
    zt.written(source, ARRAYS, options)
    before, old_size = source.read_bytes(), source.stat().st_size
    root = tmp_path / "killed"
    root.mkdir()
    for folder in kills.kill_everywhere(WORK.format(source=str(source), torn=False), root):
        path = folder / "model.zt"
        assert contents(path) in (OLD, NEW)
        torn = contents(path) == OLD and path.stat().st_size != old_size
        assert codes(path) == (["torn-append"] if torn else [])
        edit(path, attributes={"again": "yes"})
        assert codes(path) == []
        assert contents(path)[1].pop("again") == "yes"
        if options and torn:
            assert path.read_bytes().startswith(before)
        assert [name.name for name in folder.iterdir()] == ["model.zt"]


def test_a_killed_recovery_is_completed_by_the_next(zt: Any, tmp_path: Path) -> None:
    source = tmp_path / "source.zt"
    zt.written(source, ARRAYS, {"wire": "2"})
    script = WORK.format(source=str(source), torn=True)
    root = tmp_path / "killed"
    root.mkdir()
    for folder in kills.kill_everywhere(script, root, least=3):
        path = folder / "model.zt"
        assert contents(path) == OLD
        assert run("edit", path, "--recover") == 0
        assert path.read_bytes() == source.read_bytes()
        assert os.listdir(folder) == ["model.zt"]


def run(*words: Any) -> int:
    return app.run([str(word) for word in words])


def test_a_torn_append_is_a_warning_that_strict_refuses(model: Path) -> None:
    before = tear(model)
    with squish.open(model) as file:
        assert [(problem.code, problem.severity) for problem in file.problems] == [("torn-append", "warning")]
        assert file.size == len(before)
        np.testing.assert_array_equal(file["a"].numpy(), ARRAYS["a"])
    with pytest.raises(FormatError) as caught:
        squish.open(model, strict=True)
    assert caught.value.code == "torn-append"
    report = squish.verify(model, deep=True)
    assert (report.ok, report.clean) == (True, False)


def test_a_conversion_of_a_torn_file_has_a_note(model: Path, tmp_path: Path) -> None:
    with squish.open(model) as file:
        assert squish.convert(file, tmp_path / "new.zt", dry_run=True).notes == ()
    tear(model)
    report = squish.convert(model, tmp_path / "new.zt")
    assert [note.startswith("model.zt: ") for note in report.notes] == [True]
    assert contents(tmp_path / "new.zt") == OLD


def test_a_torn_append_is_seen_through_a_link(model: Path, tmp_path: Path) -> None:
    tear(model)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "link.zt").symlink_to(model)
    assert codes(tmp_path / "other" / "link.zt") == ["torn-append"]


def test_without_its_rollback_file_a_torn_append_is_not_searched_for(model: Path) -> None:
    tear(model)
    os.unlink(rollback_path(model))
    with pytest.raises(FormatError) as caught:
        squish.open(model)
    assert caught.value.code == "footer"


def test_recover_truncates_the_file(model: Path, capsys: Any) -> None:
    before = tear(model)
    assert run("edit", model, "--recover", "--json") == 0
    assert json.loads(capsys.readouterr().out)["recovered"] == 5000
    assert model.read_bytes() == before
    assert not os.path.exists(rollback_path(model))
    assert run("edit", model, "--recover") == 0
    assert "nothing to recover" in capsys.readouterr().out


def test_the_next_edit_truncates_the_file_with_a_note(model: Path, capsys: Any) -> None:
    before = tear(model, 70_000)
    assert run("edit", model, "--set", "license=MIT", "--json") == 0
    assert json.loads(capsys.readouterr().out)["recovered"] == 70_000
    assert model.read_bytes().startswith(before)
    assert contents(model) == (OLD[0], {"license": "MIT"})


def test_the_rollback_file_of_another_file_is_ignored(zt: Any, model: Path, tmp_path: Path) -> None:
    tear(model)
    other = tmp_path / "other.zt"
    zt.written(other, {**ARRAYS, "long": np.zeros(9000)}, {"wire": "2"})
    other.replace(model)
    assert codes(model) == []
    before = model.read_bytes()
    assert run("edit", model, "--recover") == 0
    assert model.read_bytes() == before


def test_overwriting_a_torn_file_removes_its_rollback_file(zt: Any, model: Path) -> None:
    tear(model)
    zt.written(model, {"z": ARRAYS["a"]}, {"wire": "2"})
    assert not os.path.exists(rollback_path(model))
    assert contents(model)[0] == ["z"]


def test_the_rollback_file_of_other_content_is_ignored(zt: Any, model: Path, tmp_path: Path) -> None:
    tear(model)
    zt.written(tmp_path / "other.zt", {**ARRAYS, "long": np.zeros(9000)}, {"wire": "2"})
    model.write_bytes((tmp_path / "other.zt").read_bytes())
    assert codes(model) == []


@pytest.mark.parametrize(
    "text", [b"", b"squish-append 1 size=", b"\xff" * 4000, b"squish-append 1 size=-1 inode=1 tail=\n"]
)
def test_an_unreadable_rollback_file_is_ignored(model: Path, text: bytes) -> None:
    Path(rollback_path(model)).write_bytes(text)
    assert codes(model) == []
    edit(model, attributes={"license": "MIT"})
    assert contents(model)[1] == {"license": "MIT"}


def test_while_an_edit_runs_the_old_content_is_read_with_a_note(model: Path) -> None:
    tear(model)
    with locked(model):
        assert contents(model) == OLD
        assert codes(model) == ["edit-running"]
        squish.open(model, strict=True).close()


@pytest.mark.parametrize("options", WIRES)
def test_an_edit_waits_for_the_lock_and_then_fails(
    zt: Any, tmp_path: Path, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.zt"
    zt.written(path, ARRAYS, options)
    before = path.read_bytes()
    assert append.locked_file.__wrapped__.__defaults__[-1] == 10.0
    monkeypatch.setattr(append.locked_file.__wrapped__, "__defaults__", (False, 0.2))
    started = time.monotonic()
    with locked(path), pytest.raises(WriteError) as caught:
        edit(path, remove=["a"])
    assert caught.value.code == "locked"
    assert time.monotonic() - started >= 0.2
    assert path.read_bytes() == before


def test_without_locks_only_recover_truncates_a_torn_append(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    before = tear(model)

    def unsupported(fd: int, operation: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    assert codes(model) == ["torn-append"]
    with pytest.raises(WriteError) as caught:
        edit(model, attributes={"license": "MIT"})
    assert caught.value.code == "locked"
    assert run("edit", model, "--recover") == 0
    assert model.read_bytes() == before
    capsys.readouterr()
    assert run("edit", model, "--set", "license=MIT", "--json") == 0
    assert json.loads(capsys.readouterr().out)["notes"] == [append.NO_LOCKS]
    assert contents(model)[1] == {"license": "MIT"}


@pytest.mark.parametrize("options", WIRES)
def test_edits_at_the_same_time_are_all_kept(zt: Any, tmp_path: Path, options: dict[str, str]) -> None:
    path = tmp_path / "model.zt"
    zt.written(path, ARRAYS, options)
    code = "import sys; from squish_ztensor.edit import edit; edit(sys.argv[1], attributes={sys.argv[2]: 'x'})"
    running = [subprocess.Popen([sys.executable, "-c", code, str(path), f"key{number}"]) for number in range(4)]
    assert [process.wait(60) for process in running] == [0] * 4
    assert contents(path) == (OLD[0], {f"key{number}": "x" for number in range(4)})
    assert codes(path) == []


@pytest.mark.parametrize("change", ["replaced", "grown"])
def test_a_file_that_another_program_changes_during_the_edit_is_not_reported_as_edited(
    zt: Any, model: Path, tmp_path: Path, change: str
) -> None:
    other = tmp_path / "other.zt"
    zt.written(other, {"z": ARRAYS["a"]}, {"wire": "2"})

    def interfere() -> None:
        if change == "replaced":
            other.replace(model)
        else:
            os.truncate(model, model.stat().st_size + 5000)

    with pytest.raises(SquishError) as caught:
        append_while(model, interfere)
    assert caught.value.code == "changed"
    assert contents(model)[0] == (["z"] if change == "replaced" else OLD[0])
    assert not os.path.exists(rollback_path(model))


def append_while(path: Path, interfere: Callable[[], None]) -> None:
    with append.locked_file(path) as lock, append.appended_file(lock) as sink:
        sink.write(b"new")
        interfere()


@pytest.mark.parametrize("failing", range(1, 4))
def test_an_edit_whose_nth_sync_fails_leaves_the_old_bytes(
    model: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    before, calls, sync = model.read_bytes(), list[int](), os.fsync

    def fails(fd: int) -> None:
        calls.append(fd)
        if len(calls) == failing:
            raise OSError(5, "Input/output error")
        sync(fd)

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(SquishError) as caught:
        edit(model, add={"d": ARRAYS["a"]})
    assert caught.value.code == ("os" if failing == 3 else "unwritable")
    assert model.read_bytes() == before
    assert not os.path.exists(rollback_path(model))


def test_a_disk_that_syncs_nothing_leaves_the_old_bytes(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = model.read_bytes()

    def fails(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(WriteError):
        edit(model, add={"d": ARRAYS["a"]})
    assert model.read_bytes() == before
    assert not os.path.exists(rollback_path(model))


def test_the_rollback_file_is_synced_before_the_first_byte_and_removed_after_the_last(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events, sync, unlink, size = list[str](), os.fsync, os.unlink, model.stat().st_size

    def kind(fd: int) -> str:
        inodes = {model.stat().st_ino: "model", model.parent.stat().st_ino: "folder"}
        return inodes.get(os.fstat(fd).st_ino, "rollback file")

    def record(event: str) -> None:
        grown = model.stat().st_size > size
        events.append(f"{event}{' grown' if grown else ''}")

    def watched_sync(fd: int) -> None:
        sync(fd)
        record(f"sync {kind(fd)}")

    def watched_unlink(path: Any) -> None:
        unlink(path)
        record(f"remove {'rollback file' if path == rollback_path(model) else path}")

    monkeypatch.setattr(os, "fsync", watched_sync)
    monkeypatch.setattr(os, "unlink", watched_unlink)
    with append.locked_file(model) as lock, append.appended_file(lock) as sink:
        sink.write(bytes(3 << 20))
    assert events == [
        "sync rollback file",
        "sync folder",
        "sync model grown",
        "remove rollback file grown",
        "sync folder grown",
    ]


def test_an_edit_succeeds_with_a_note_if_the_folder_cannot_be_synced(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    calls, sync = list[int](), os.fsync

    def fails(fd: int) -> None:
        calls.append(fd)
        if len(calls) == 4:
            raise OSError(5, "Input/output error")
        sync(fd)

    monkeypatch.setattr(os, "fsync", fails)
    assert run("edit", model, "--set", "license=MIT") == 0
    assert "note: " in capsys.readouterr().out
    assert contents(model)[1] == {"license": "MIT"}
