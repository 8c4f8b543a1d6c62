"""Jobs of every kind of target that are killed after any task, and at any step, and go on to the serial bytes."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kills
import numpy as np
import pytest
from attrs import evolve
from inline_scheduler import inline_registry
from squish_convert.job import staging
from squish_convert.job.journal import Journal
from squish_convert.job.options import VERIFY
from squish_convert.job.run import JobRun
from squish_convert.job.staging import Staging
from squish_convert.job.worker import opened_job

import squish_core as squish
from squish_core.api import FormatError, WriteError
from squish_core.io.atomic import temporaries
from squish_core.plugins.schedulers import Workers

RANDOM = np.random.default_rng(5)
ARRAYS = {
    "model.embed_tokens.weight": RANDOM.standard_normal((96, 256), np.float32),
    "model.norm.weight": RANDOM.standard_normal(96, np.float32),
    "model.layers.0.mlp.up_proj.weight": RANDOM.standard_normal((160, 256), np.float32),
    "model.layers.0.mlp.down_proj.weight": RANDOM.standard_normal((64, 256), np.float32),
    "model.empty": np.zeros((0, 32), np.float32),
}
REGISTRY = inline_registry()
JOB = squish.Job("inline", task_bytes=20_000)
RESUMED = evolve(JOB, resume=True)
PLACED = [
    ("out.gguf", None, "q4_k"), ("shards", "safetensors:max_shard_size=60KB", "f16"), ("arrays", "npydir", "int8"),
    ("layers", "mlx", "q4"), ("old.zt", "ztensor", {"*embed*": "int8"}), ("out.uqff", None, "q8_0"),
    ("set.gguf", "gguf:max_shard_size=40KB", "q4_k"),
]  # fmt: skip
"""Targets whose layout is computed before their bytes."""
TWO_PASSES = [
    ("out.gguf.zst", None, "q8_0"), ("out.safetensors.zst", None, "f16"), ("out.zt.zst", "ztensor", "int8"),
    ("out.zt", "ztensor:encoding=zstd", {"*embed*": "int8"}), ("digests.zt", "ztensor:digest=sha256", "int8"),
    ("both.zt", "ztensor:encoding=zstd,digest=crc32c", "int4"), ("out.squizd", None, {"*proj*": "int4"}),
    ("bf16.squizd", None, "bf16"),
]  # fmt: skip
"""Targets whose layout follows from the data."""


class Killed(BaseException):
    """Ends a client between two tasks."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("source") / "model.safetensors"
    squish.save(path, ARRAYS, metadata={"format": "pt"})
    return path


@pytest.fixture(autouse=True)
def _workers_of_their_own() -> Iterator[None]:
    yield
    opened_job.cache_clear()


def files_of(folder: Path) -> dict[str, bytes]:
    """All files by their paths."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def facts(report: squish.Conversion) -> dict[str, Any]:
    """A report but for its time and target."""
    return {key: value for key, value in report.to_dict().items() if key not in ("seconds", "target")}


def killed_after(count: int, *arguments: Any) -> int:
    """Run a job that ends after some tasks; the number of its finished tasks."""
    journal = arguments[1].with_name(f"{arguments[1].name}.squish-journal")

    def progress(*_: Any) -> None:
        if journal.exists() and journal.read_bytes().count(b"\n") > count:
            raise Killed

    try:
        squish.convert(*arguments, progress=progress, job=JOB, registry=REGISTRY)
    except Killed:
        return journal.read_bytes().count(b"\n") - 1
    return 0


@pytest.mark.parametrize(("name", "to", "encode"), [*PLACED, *TWO_PASSES])
def test_a_job_that_is_killed_between_tasks_goes_on_to_the_serial_bytes(
    source: Path, tmp_path: Path, name: str, to: str | None, encode: Any
) -> None:
    serial, target = tmp_path / "serial", tmp_path / "job" / name
    serial.mkdir()
    target.parent.mkdir()
    expected = facts(squish.convert(source, serial / name, to, encode))
    assert killed_after(2, source, target, to, encode) == 2
    assert not target.exists()
    report = squish.convert(source, target, to, encode, job=evolve(JOB, resume=VERIFY), registry=REGISTRY)
    assert (files_of(target.parent), facts(report)) == (files_of(serial), expected)


def files_in(target: Path) -> dict[str, bytes]:
    """A target's files; those of a set of shards are beside it."""
    if target.is_dir():
        return files_of(target)
    return {"": target.read_bytes()} if target.exists() else {p.name: p.read_bytes() for p in shards_of(target)}


def shards_of(target: Path) -> list[Path]:
    return sorted(target.parent.glob(f"{target.stem}-*-of-*"))


@pytest.fixture
def map_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of calls that jobs have sent to their schedulers."""
    sizes, run = list[int](), Workers.map

    def counted(self: Workers, function: Any, items: Any, memory: int = 0) -> Any:
        sizes.append(len(items))
        return run(self, function, items, memory)

    monkeypatch.setattr(Workers, "map", counted)
    return sizes


@pytest.mark.parametrize(("name", "to", "encode"), [*PLACED[:2], PLACED[-1]])
def test_a_job_that_is_killed_after_the_rename_is_complete(
    source: Path, tmp_path: Path, name: str, to: str | None, encode: Any, map_sizes: list[int]
) -> None:
    target, serial = tmp_path / "job" / name, tmp_path / "serial" / name

    def kill(self: JobRun) -> None:
        self.journal.close()
        self.staging.close()
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JobRun, "end", kill)
        with pytest.raises(Killed):
            squish.convert(source, target, to, encode, job=JOB, registry=REGISTRY)
    complete = files_in(target)
    map_sizes.clear()
    report = squish.convert(source, target, to, encode, job=RESUMED, registry=REGISTRY)
    assert (files_in(target), map_sizes) == (complete, [])
    assert facts(report) == facts(squish.convert(source, serial, to, encode))
    assert files_of(target.parent) == files_of(serial.parent)


@pytest.mark.parametrize("resume", [True, VERIFY])
def test_a_set_that_is_killed_between_its_renames_goes_on(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, map_sizes: list[int], resume: Any
) -> None:
    name, to, encode = PLACED[-1]
    target, serial, renamed = tmp_path / "job" / name, tmp_path / "serial" / name, list[Path]()

    def kill(old: Path, new: Path) -> None:
        if renamed:
            raise Killed
        renamed.append(new)
        old.rename(new)

    with monkeypatch.context() as patch:
        patch.setattr(staging, "replace", kill)
        with pytest.raises(Killed):
            squish.convert(source, target, to, encode, job=JOB, registry=REGISTRY)
    assert shards_of(target) == sorted(renamed)
    map_sizes.clear()
    squish.convert(source, target, to, encode, job=evolve(JOB, resume=resume), registry=REGISTRY)
    squish.convert(source, serial, to, encode)
    assert sum(map_sizes) == 0
    assert files_of(target.parent) == files_of(serial.parent)


def test_a_set_that_is_killed_after_the_journal_is_removed_is_written_again(source: Path, tmp_path: Path) -> None:
    name, to, encode = PLACED[-1]
    target = tmp_path / name
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Staging, "remove", Staging.close)
        squish.convert(source, target, to, encode, job=JOB, registry=REGISTRY)
    complete = files_in(target)
    squish.convert(source, target, to, encode, job=RESUMED, registry=REGISTRY)
    assert files_of(tmp_path) == complete


def test_a_folder_that_is_complete_is_refused_without_a_journal(source: Path, tmp_path: Path) -> None:
    target, to = tmp_path / "shards", PLACED[1][1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Staging, "remove", Staging.close)  # killed after it removed the journal
        squish.convert(source, target, to, "f16", job=JOB, registry=REGISTRY)
    complete = files_of(target)
    with pytest.raises(WriteError) as caught:
        squish.convert(source, target, to, "f16", job=RESUMED, registry=REGISTRY)
    assert (caught.value.code, caught.value.file) == ("exists", str(target))
    assert files_of(target) == complete


def test_a_job_whose_output_is_gone_starts_anew_whatever_its_target_is(
    source: Path, tmp_path: Path, map_sizes: list[int]
) -> None:
    target = tmp_path / "out.gguf"
    target.write_bytes(b"old")
    assert killed_after(2, source, target, None, "q8_0") == 2
    assert target.read_bytes() == b"old"
    next(tmp_path.glob(".out.gguf.*.part/output")).unlink()
    first = map_sizes[0]
    report = squish.convert(source, target, None, "q8_0", job=RESUMED, registry=REGISTRY)
    assert map_sizes == [first, first]
    assert any("anew" in note for note in report.notes)
    squish.convert(source, tmp_path / "serial.gguf", None, "q8_0")
    assert target.read_bytes() == (tmp_path / "serial.gguf").read_bytes()


@pytest.mark.parametrize("line", [b"", b"{", b'{"squish_journal": 1, "owner": {"user'])
def test_a_journal_without_a_complete_line_begins_anew(source: Path, tmp_path: Path, line: bytes) -> None:
    journal = tmp_path / "out.gguf.squish-journal"
    journal.write_bytes(line)
    squish.convert(source, tmp_path / "out.gguf", None, "q8_0", job=RESUMED, registry=REGISTRY)
    assert not journal.exists()


@pytest.mark.parametrize(
    "change",
    [
        {"task": 99}, {"task": -1}, {"task": None}, {"bytes": "1"}, {"errors": [[0, 0]]}, {"errors": [[9, *[0] * 6]]},
        {"errors": [[0, *["x"] * 6]]},
    ],
)  # fmt: skip
def test_a_journal_with_an_impossible_task_is_refused_and_stays(
    source: Path, tmp_path: Path, change: dict[str, Any]
) -> None:
    assert killed_after(2, source, tmp_path / "out.gguf", None, "q8_0") == 2
    journal = tmp_path / "out.gguf.squish-journal"
    lines = journal.read_text().splitlines()
    lines[1] = json.dumps(json.loads(lines[1]) | change)
    journal.write_text("\n".join(lines) + "\n")
    with pytest.raises(FormatError) as caught:
        squish.convert(source, tmp_path / "out.gguf", None, "q8_0", job=RESUMED, registry=REGISTRY)
    assert (caught.value.code, caught.value.file) == ("journal", str(journal))
    assert journal.read_text().splitlines() == lines


def test_a_job_whose_journal_cannot_grow_goes_on_where_it_can(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Journal._write

    def full(self: Journal, entry: Any) -> None:
        if len(self.entries) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, entry)

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "_write", full)
        with pytest.raises(WriteError) as caught:
            squish.convert(source, tmp_path / "out.gguf", None, "q8_0", job=JOB, registry=REGISTRY)
    assert (caught.value.code, caught.value.file) == ("unwritable", str(tmp_path / "out.gguf.squish-journal"))
    squish.convert(source, tmp_path / "out.gguf", None, "q8_0", job=RESUMED, registry=REGISTRY)
    squish.convert(source, tmp_path / "serial.gguf", None, "q8_0")
    assert (tmp_path / "out.gguf").read_bytes() == (tmp_path / "serial.gguf").read_bytes()


WORK = """
from pathlib import Path
from inline_scheduler import inline_registry
import squish_core as squish

SOURCE, NAME, TO, ENCODE = {arguments!r}
REGISTRY = inline_registry()

def prepare(folder):
    pass

def work(folder):
    squish.convert(
        SOURCE, folder / NAME, TO, ENCODE, job=squish.Job("inline", task_bytes=20_000), registry=REGISTRY
    )
"""


@pytest.mark.fuzz
@pytest.mark.parametrize(("name", "to", "encode"), [*PLACED[:2], PLACED[-1], TWO_PASSES[0], TWO_PASSES[-1]])
def test_a_job_that_is_killed_at_any_step_goes_on_to_the_serial_bytes(
    source: Path, tmp_path: Path, name: str, to: str | None, encode: Any
) -> None:
    complete = tmp_path / "complete"
    squish.convert(source, complete / name, to, encode)
    serial = files_in(complete / name)
    (tmp_path / "kills").mkdir()
    for folder in kills.kill_everywhere(WORK.format(arguments=(str(source), name, to, encode)), tmp_path / "kills"):
        assert not (folder / name).exists() or files_in(folder / name) == serial, folder
        if (folder / name).exists() and not (folder / f"{name}.squish-journal").exists():
            assert all(part.state == "dead" for part in temporaries(folder)), folder
            continue  # it was complete
        squish.convert(source, folder / name, to, encode, job=RESUMED, registry=REGISTRY)
        assert files_in(folder / name) == serial, folder
        assert files_of(folder) == files_of(complete), folder
