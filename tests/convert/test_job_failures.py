"""Jobs that fail: killed workers and clients, damaged journals and temporaries, other sources, other plugins."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from inline_scheduler import inline_registry
from squish_cli import main
from squish_cli.output import Progress
from squish_convert.job import worker
from squish_convert.job.journal import Journal
from squish_convert.job.staging import Staging

import squish_core as squish
from squish_core.api import FormatError, SquishError, UsageError, WriteError
from squish_core.io.atomic import temporaries
from squish_core.plugins.schedulers import Workers

REGISTRY = inline_registry()
RANDOM = np.random.default_rng(6)
NAMES = [f"model.layers.{number}.mlp.up_proj.weight" for number in range(8)]
TASK = 70_000
"""One tensor a task."""
KILLING = """
import os, signal, sys, time
from pathlib import Path
import squish_core as squish

def main():
    source, target, flags = sys.argv[1:4]
    squish.convert(source, target, encode="q8_0", job=squish.Job("local:2", task_bytes=70_000, **eval(flags)))

if __name__ == "__main__":
    main()
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("jobs") / "model.safetensors"
    squish.save(path, {name: RANDOM.standard_normal((256, 256), np.float32) for name in NAMES})
    return path


@pytest.fixture(scope="module")
def serial(source: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, dict[str, Any]]:
    path = tmp_path_factory.mktemp("serial") / "out.gguf"
    report = squish.convert(source, path, encode="q8_0")
    return path.read_bytes(), facts(report)


def facts(report: squish.Conversion) -> dict[str, Any]:
    """A report but for its time, target and notes."""
    return {key: value for key, value in report.to_dict().items() if key not in ("seconds", "target", "notes")}


def job(
    source: Path, target: Path, scheduler: str = "inline", progress: Any = None, **options: Any
) -> squish.Conversion:
    registry = REGISTRY if scheduler == "inline" else None
    options_of_job = squish.Job(scheduler, task_bytes=TASK, **options)
    return squish.convert(source, target, encode="q8_0", job=options_of_job, progress=progress, registry=registry)


def left_over(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != "out.gguf")


class Killed(BaseException):
    """Ends a client between two tasks."""


def interrupted(source: Path, target: Path, tasks: int = 3, scheduler: str = "inline") -> Path:
    """The journal of a job that ends after some tasks."""
    done = []

    def progress(*_: Any) -> None:
        done.append(1)
        if len(done) == tasks:
            raise Killed

    with pytest.raises(Killed):
        job(source, target, scheduler, progress=progress)
    return target.with_name(f"{target.name}.squish-journal")


def test_an_unfinished_job_keeps_its_journal_and_goes_on(source: Path, serial: Any, tmp_path: Path) -> None:
    target = tmp_path / "out.gguf"
    journal = interrupted(source, target, scheduler="local:2")
    header, *lines = map(json.loads, journal.read_text().splitlines())
    assert header["job"]["task_bytes"] == TASK
    assert len(lines) >= 3
    assert {"task", "output", "bytes", "sha256", "worker"} <= lines[0].keys()
    before = [line["worker"] for line in lines]
    assert not target.exists()
    (staged,) = temporaries(tmp_path)
    assert (staged.target, staged.state) == (target, "dead")
    written: list[int] = []
    report = job(source, target, "local:2", resume=True, progress=lambda name, count, total: written.append(count))
    assert (target.read_bytes(), facts(report)) == serial
    assert len(written) >= 8
    assert left_over(tmp_path) == []
    assert len(before) >= 3


def test_a_journal_is_refused_without_resume_and_stays(source: Path, tmp_path: Path) -> None:
    journal = interrupted(source, tmp_path / "out.gguf")
    before = journal.read_bytes()
    with pytest.raises(UsageError) as caught:
        job(source, tmp_path / "out.gguf")
    assert caught.value.code == "journal"
    assert journal.read_bytes() == before
    job(source, tmp_path / "out.gguf", resume=True)  # the refusal has left no lock
    assert left_over(tmp_path) == []


@pytest.mark.parametrize(
    ("change", "arguments", "where"),
    [
        (None, {"encode": "q4_0"}, "arguments.encode"),
        (None, {"task_bytes": 1 << 20}, "task_bytes"),
        (None, {"to": "ztensor:digest=sha256"}, "arguments.to"),
        (lambda source: os.utime(source, ns=(1, 1)), {}, "source.files[0].modified_ns"),
    ],
)
def test_the_message_about_the_journal_of_another_job_names_the_first_difference(
    tmp_path: Path, change: Callable[[Path], None] | None, arguments: dict[str, Any], where: str
) -> None:
    source = tmp_path / "model.safetensors"
    squish.save(source, {name: np.ones((256, 256), np.float32) for name in NAMES})
    journal = interrupted(source, tmp_path / "out.gguf")
    before = journal.read_bytes()
    if change:
        change(source)
    with pytest.raises(UsageError) as caught:
        squish.convert(
            source,
            tmp_path / "out.gguf",
            arguments.get("to"),
            arguments.get("encode", "q8_0"),
            registry=REGISTRY,
            job=squish.Job("inline", task_bytes=arguments.get("task_bytes", TASK), resume=True),
        )
    assert caught.value.code == "journal"
    assert where in caught.value.message
    assert journal.read_bytes() == before


def test_the_message_about_another_version_in_the_journal_names_it(source: Path, tmp_path: Path) -> None:
    journal = interrupted(source, tmp_path / "out.gguf")
    header, *lines = journal.read_text().splitlines(keepends=True)
    record = json.loads(header)
    record["job"]["lock"]["versions"]["squish-gguf"] = "0.0.1"
    journal.write_text(json.dumps(record) + "\n" + "".join(lines))
    with pytest.raises(UsageError) as caught:
        job(source, tmp_path / "out.gguf", resume=True)
    assert "lock.versions.squish-gguf" in caught.value.message
    assert caught.value.expected == '"0.0.1"'


def test_a_torn_last_line_is_dropped(source: Path, serial: Any, tmp_path: Path) -> None:
    journal = interrupted(source, tmp_path / "out.gguf")
    journal.write_bytes(journal.read_bytes()[:-7])
    report = job(source, tmp_path / "out.gguf", resume=True)
    assert ((tmp_path / "out.gguf").read_bytes(), facts(report)) == serial
    assert left_over(tmp_path) == []


@pytest.mark.parametrize(
    "data",
    [
        b"{}", b"{}\n", b"no", b"no\n", b"[]\n", b'{"squish_journal": 2, "job": {}, "owner": {}}\n',
        b'{"squish_journal": 1, "job": 1, "owner": {}}\n', b'{"squish_journal": 1, "job": {}, "owner": 1}\n',
    ],
)  # fmt: skip
def test_a_file_that_is_no_journal_is_refused_and_stays(source: Path, tmp_path: Path, data: bytes) -> None:
    journal = tmp_path / "out.gguf.squish-journal"
    journal.write_bytes(data)
    with pytest.raises(FormatError) as caught:
        job(source, tmp_path / "out.gguf", resume=True)
    assert (caught.value.code, caught.value.file) == ("journal", str(journal))
    assert journal.read_bytes() == data


def test_damage_in_the_temporary_is_done_again(source: Path, serial: Any, tmp_path: Path) -> None:
    for resume in (True, "verify"):
        journal = interrupted(source, tmp_path / "out.gguf")
        entry = json.loads(journal.read_text().splitlines()[1])
        (output,) = tmp_path.glob(".out.gguf.*.part/output")
        with output.open("r+b") as file:
            file.seek(entry["output"][0][1] + 5)
            file.write(b"damage")
        report = job(source, tmp_path / "out.gguf", resume=resume)
        assert ((tmp_path / "out.gguf").read_bytes(), facts(report)) == serial
        assert any("damaged" in note for note in report.notes)
        (tmp_path / "out.gguf").unlink()


def test_damage_beyond_the_sample_is_found_before_the_end(
    source: Path, serial: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = interrupted(source, tmp_path / "out.gguf")
    last = max(map(json.loads, journal.read_text().splitlines()[1:]), key=lambda entry: entry["task"])
    (output,) = tmp_path.glob(".out.gguf.*.part/output")
    with output.open("r+b") as file:
        file.seek(last["output"][0][1] + 5)
        file.write(b"damage")
    monkeypatch.setattr("squish_convert.job.run.SAMPLE", 1)  # the first task
    report = job(source, tmp_path / "out.gguf", resume=True)
    assert ((tmp_path / "out.gguf").read_bytes(), facts(report)) == serial
    assert [note for note in report.notes if "damaged" in note] == ["1 finished tasks were damaged, and done again"]
    assert left_over(tmp_path) == []


def test_the_message_about_an_output_that_vanishes_names_the_worker(source: Path, tmp_path: Path) -> None:
    def remove(*_: Any) -> None:
        for output in tmp_path.glob(".out.gguf.*.part/output"):
            output.unlink()

    with pytest.raises(WriteError) as caught:
        squish.convert(
            source, tmp_path / "out.gguf", encode="q8_0", job=squish.Job("local:1", task_bytes=TASK), progress=remove
        )
    assert caught.value.code == "unwritable"
    assert f"{socket.gethostname()}:" in caught.value.message
    assert not (tmp_path / "out.gguf").exists()


@pytest.mark.parametrize("as_json", [True, False])
def test_an_interrupt_says_how_to_go_on(
    source: Path, tmp_path: Path, as_json: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    count = Progress.task_finished
    calls: list[int] = []

    def interrupt(self: Progress, *facts: Any) -> None:
        count(self, *facts)
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt

    words = ["convert", str(source), str(tmp_path / "out.gguf"), "--encode", "q8_0", "--scheduler", "local:1"]
    words += ["--task-bytes", str(TASK), *(["--json-lines"] if as_json else [])]
    with monkeypatch.context() as patch:
        patch.setattr(Progress, "task_finished", interrupt)
        assert main(words) == 130
    out, err = capsys.readouterr()
    assert err.splitlines()[-2:] == ["2 of 8 tasks done: go on with --resume.", "interrupted"]
    assert main([*words, "--resume"]) == 0
    if not as_json:
        return
    documents = [json.loads(line) for line in [*out.splitlines(), *capsys.readouterr().out.splitlines()]]
    events = [each for each in documents if each["schema"] == "squish/task/1"]
    assert documents[-1]["schema"] == "squish/convert/1"
    assert len({event["worker"] for event in events}) == 2  # one process in each run
    assert sum(event["read"] for event in events) == len(NAMES) * 256 * 256 * 4
    assert sum(event["written"] for event in events) == len(NAMES) * 256 * 8 * 34


def test_a_temporary_of_another_size_is_refused(source: Path, tmp_path: Path) -> None:
    interrupted(source, tmp_path / "out.gguf")
    (output,) = tmp_path.glob(".out.gguf.*.part/output")
    os.truncate(output, 1000)
    with pytest.raises(FormatError) as caught:
        job(source, tmp_path / "out.gguf", resume=True)
    assert caught.value.code == "changed"


def test_a_removed_temporary_starts_the_job_anew(source: Path, serial: Any, tmp_path: Path) -> None:
    interrupted(source, tmp_path / "out.gguf")
    squish.save(tmp_path / "out.gguf", {"w": np.ones((2, 32), "f4")})  # removes what a dead writer left
    report = job(source, tmp_path / "out.gguf", resume=True)
    assert ((tmp_path / "out.gguf").read_bytes(), facts(report)) == serial
    assert any("anew" in note for note in report.notes)


def kill_worker_once(message: Any) -> Any:
    """`write_task` that kills its process the first time it gets task 2."""
    mark = Path(message.job).with_name("killed")
    if message.task == 2 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return worker.write_task(message)


def kill_worker_always(message: Any) -> Any:
    """`write_task` that kills its process at task 2."""
    if message.task == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return worker.write_task(message)


def test_a_killed_worker_costs_its_tasks(
    source: Path, serial: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("squish_convert.job.run.write_task", kill_worker_once)
    report = job(source, tmp_path / "out.gguf", "local:2")
    assert ((tmp_path / "out.gguf").read_bytes(), facts(report)) == serial


def test_the_text_about_a_script_without_a_guard_says_where_to_put_the_call(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)  # as in such a worker
    with pytest.raises(UsageError) as caught:
        squish.convert(source, tmp_path / "out.gguf", job="local:2")
    assert "__main__" in (caught.value.hint or "")


def test_a_task_that_kills_every_worker_ends_the_job_resumably(
    source: Path, serial: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("squish_convert.job.run.write_task", kill_worker_always)
    with pytest.raises(SquishError) as caught:
        job(source, tmp_path / "out.gguf", "local:2")
    assert caught.value.code == "worker"
    assert "resume" in (caught.value.hint or "")
    monkeypatch.undo()
    report = job(source, tmp_path / "out.gguf", resume=True)
    assert ((tmp_path / "out.gguf").read_bytes(), facts(report)) == serial


def run_client(source: Path, target: Path, flags: str = "{}") -> subprocess.Popen[bytes]:
    script = target.with_name("client.py")
    script.write_text(KILLING)
    return subprocess.Popen([sys.executable, str(script), str(source), str(target), flags])


def lines_of(journal: Path) -> int:
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


def test_a_killed_client_takes_its_workers_along_and_the_job_goes_on(
    source: Path, serial: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "out.gguf"
    journal = tmp_path / "out.gguf.squish-journal"
    client = run_client(source, target)
    while lines_of(journal) < 3 and client.poll() is None:
        time.sleep(0.01)
    client.kill()
    assert client.wait() == -signal.SIGKILL
    workers = {int(json.loads(line)["worker"].split(":")[1]) for line in journal.read_text().splitlines()[1:]}
    deadline = time.monotonic() + 120
    while any(Path(f"/proc/{pid}").exists() for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]
    assert not target.exists()
    lines = lines_of(journal) - 1
    remaining: list[int] = []
    run = Workers.map

    def counted(self: Workers, function: Any, items: Any, memory: int = 0) -> Any:
        remaining.append(len(items))
        return run(self, function, items, memory)

    monkeypatch.setattr(Workers, "map", counted)
    report = job(source, target, resume=True)
    assert remaining == [len(NAMES) - lines]  # what was in flight is done again, and nothing else
    assert (target.read_bytes(), facts(report)) == serial
    assert left_over(tmp_path) == ["client.py"]


def test_a_second_client_is_refused_with_the_name_of_the_first(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.gguf"
    refused: list[SquishError] = []

    def second(*_: Any) -> None:
        for resume in (True, False):
            try:
                job(source, target, resume=resume)
            except SquishError as error:
                refused.append(error)
        raise Killed

    with pytest.raises(Killed):
        job(source, target, progress=second)
    assert [(type(error), error.code) for error in refused] == [(WriteError, "locked")] * 2
    assert all(f"process {os.getpid()}" in (error.hint or "") for error in refused)


def test_clients_that_start_at_once_leave_what_the_first_has_created(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.gguf"
    staging = Staging(target, "0" * 16, is_folder=False)
    staging.create({"": 100}, None)
    with pytest.raises(WriteError) as caught:
        Staging(target, "0" * 16, is_folder=False).create({"": 100}, None)
    assert caught.value.code == "locked"
    assert staging.exists
    staging.remove()
    journal = tmp_path / "out.gguf.squish-journal"
    first = Journal(journal)
    first.start({})
    with pytest.raises(WriteError):
        Journal(journal).start({})
    second = Journal(journal)
    second.read()
    with pytest.raises(WriteError) as caught:
        second.resume()
    assert caught.value.code == "locked"
    assert journal.exists()
    first.remove()


def test_a_journal_that_cannot_be_written_leaves_nothing(source: Path, tmp_path: Path) -> None:
    with pytest.raises(WriteError) as caught:
        job(source, tmp_path / "out.gguf", journal=tmp_path / "none" / "journal")
    assert caught.value.code == "unwritable"
    assert not list(tmp_path.iterdir())
