"""Jobs on a real cluster: the same bytes and report as without it, whatever happens to its workers."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import distributed
import numpy as np
import pytest
from squish_convert.job import run as job_run
from squish_convert.job import worker
from squish_dask import scheduler
from squish_dask.scheduler import DaskScheduler

import squish_core as squish
from squish_core.api import SquishError, WriteError, workers

pytestmark = pytest.mark.filterwarnings("ignore")

RANDOM = np.random.default_rng(6)
NAMES = [f"model.layers.{number}.mlp.up_proj.weight" for number in range(8)]
TASK = 70_000
"""One tensor a task."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[distributed.LocalCluster]:
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None, memory_limit="2GB", resources={"memory": 2e9}
    ) as cluster:
        yield cluster


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
    cluster: distributed.LocalCluster,
    source: Path,
    target: Path,
    *,
    scheduler: str | None = None,
    resume: bool = False,
    **arguments: Any,
) -> squish.Conversion:
    scheduler = scheduler or f"dask:{cluster.scheduler_address}"
    options = squish.Job(scheduler, task_bytes=TASK, resume=resume)
    return squish.convert(source, target, **{"encode": "q8_0", "job": options, **arguments})


def killing(message: Any, times: int) -> Any:
    """`write_task` that kills its process at task 2, the first few times."""
    marks = [Path(message.job).with_name(f"killed-{number}") for number in range(times)]
    if message.task == 2 and (unused := [mark for mark in marks if not mark.exists()]):
        unused[0].touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return worker.write_task(message)


def kill_once(message: Any) -> Any:
    return killing(message, 1)


def kill_each_once(message: Any) -> Any:
    """`write_task` that kills every worker the first time that it gets a task."""
    mark = Path(message.job).with_name(f"killed-{distributed.get_worker().name}")
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return worker.write_task(message)


def kill_always(message: Any) -> Any:
    return killing(message, 100)


def test_a_cluster_writes_the_bytes_and_the_report_of_a_serial_conversion(
    cluster: distributed.LocalCluster, source: Path, serial: Any, tmp_path: Path
) -> None:
    report = job(cluster, source, tmp_path / "out.gguf")
    assert ((tmp_path / "out.gguf").read_bytes(), facts(report)) == serial
    assert [path.name for path in tmp_path.iterdir()] == ["out.gguf"]


def test_loops_of_a_worker_use_one_thread_by_default(
    cluster: distributed.LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SQUISH_THREADS", raising=False)
    answers = DaskScheduler().map(cluster.scheduler_address, threads_of, [None, "3"])
    assert sorted(answers) == [(0, 1), (1, 3)]


def threads_of(value: str | None) -> int:
    """Number of threads of this process's loops, with this value of SQUISH_THREADS."""
    if value is None:
        return workers()
    os.environ["SQUISH_THREADS"] = value
    try:
        return workers()
    finally:
        os.environ["SQUISH_THREADS"] = "1"


def test_the_current_client_is_used(
    cluster: distributed.LocalCluster, source: Path, serial: Any, tmp_path: Path
) -> None:
    with distributed.Client(cluster):
        report = job(cluster, source, tmp_path / "out.gguf", scheduler="dask")
    assert ((tmp_path / "out.gguf").read_bytes(), facts(report)) == serial


def test_a_killed_worker_costs_its_tasks(
    cluster: distributed.LocalCluster, source: Path, serial: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_run, "write_task", kill_once)
    report = job(cluster, source, tmp_path / "out.gguf")
    assert ((tmp_path / "out.gguf").read_bytes(), facts(report)) == serial


def test_all_workers_killed_once_cost_their_tasks(
    cluster: distributed.LocalCluster, source: Path, serial: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_run, "write_task", kill_each_once)
    report = job(cluster, source, tmp_path / "out.gguf")
    assert ((tmp_path / "out.gguf").read_bytes(), facts(report)) == serial


CLIENT = """
import sys
import squish_core as squish

if __name__ == "__main__":
    source, target, scheduler = sys.argv[1:]
    squish.convert(source, target, encode="q8_0", job=squish.Job(scheduler, task_bytes=70_000))
"""


def test_a_killed_client_leaves_a_job_that_goes_on(
    cluster: distributed.LocalCluster, source: Path, serial: Any, tmp_path: Path
) -> None:
    target, journal = tmp_path / "out.gguf", tmp_path / "out.gguf.squish-journal"
    (tmp_path / "client.py").write_text(CLIENT)
    words = [sys.executable, str(tmp_path / "client.py"), str(source), str(target), f"dask:{cluster.scheduler_address}"]
    client = subprocess.Popen(words)
    while client.poll() is None and not (journal.exists() and journal.read_bytes().count(b"\n") >= 3):
        time.sleep(0.01)
    client.kill()
    assert client.wait() == -signal.SIGKILL
    assert not target.exists()
    report = job(cluster, source, target, resume=True)
    assert (target.read_bytes(), facts(report)) == serial
    assert sorted(path.name for path in tmp_path.iterdir()) == ["client.py", "out.gguf"]


def limit_files(size: int) -> None:
    """Let a worker write files of this size at most, as on a disk that is full; -1 for any."""
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def test_the_message_about_a_full_disk_names_the_worker(
    cluster: distributed.LocalCluster, source: Path, serial: Any, tmp_path: Path
) -> None:
    with distributed.Client(cluster, set_as_default=False) as client:
        client.wait_for_workers(2)
        names = client.run(worker.worker_name)
        address = next(iter(names))
        client.run(limit_files, 1000, workers=[address])
        try:
            with pytest.raises(WriteError) as caught:
                job(cluster, source, tmp_path / "out.gguf")
        finally:
            client.run(limit_files, -1, workers=[address])
    assert caught.value.code == "unwritable"
    assert names[address] in caught.value.message
    assert not (tmp_path / "out.gguf").exists()
    journal = tmp_path / "out.gguf.squish-journal"
    report = job(cluster, source, tmp_path / "out.gguf", resume=journal.exists())
    assert ((tmp_path / "out.gguf").read_bytes(), facts(report)) == serial


MOUNTS = {
    "unwritable": "mount --bind {0} {0} && mount -o remount,ro,bind {0}",
    "missing": "mount -t tmpfs none {0}",
}
"""Code of the error -> how a worker sees the target's folder: read-only, or as another file system."""


@pytest.mark.parametrize("code", MOUNTS)
def test_the_message_about_a_folder_that_a_worker_cannot_write_or_see_names_the_worker(
    cluster: distributed.LocalCluster, source: Path, tmp_path: Path, code: str
) -> None:
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        pytest.skip("this user cannot mount folders for a process of its own (unshare -m)")
    mount, address = MOUNTS[code].format(tmp_path), cluster.scheduler_address
    command = [sys.executable, "-m", "distributed.cli.dask_worker", address, "--no-dashboard", "--no-nanny"]
    odd = subprocess.Popen(
        ["unshare", "-m", "sh", "-c", f'{mount} && exec "$@"', "sh", *command], stderr=subprocess.DEVNULL
    )
    try:
        with distributed.Client(cluster, set_as_default=False) as client:
            client.wait_for_workers(3)
        with pytest.raises(SquishError) as caught:
            job(cluster, source, tmp_path / "out.gguf")
    finally:
        odd.terminate()
        odd.wait()
    assert caught.value.code == code
    assert f"the worker {socket.gethostname()}:{odd.pid}" in caught.value.message
    assert not (tmp_path / "out.gguf").exists()


def exhaust_once(message: Any) -> Any:
    """`write_task` that takes memory until its process is killed, the first time that it gets task 2."""
    mark = Path(message.job).with_name("exhausted")
    if message.task == 2 and not mark.exists():
        mark.touch()
        memory = [bytes(range(256)) * (1 << 16) for _ in range(128)]
        time.sleep(30)
        assert len(memory) == 0, "the worker was not killed"
    return worker.write_task(message)


def test_a_worker_without_memory_costs_its_tasks_even_where_the_cluster_allows_no_failure(
    source: Path, serial: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with distributed.LocalCluster(
        n_workers=1,
        threads_per_worker=1,
        dashboard_address=None,
        memory_limit="800MB",
        scheduler_kwargs={"allowed_failures": 0},
    ) as other:
        for function in (exhaust_once, kill_always):
            monkeypatch.setattr(job_run, "write_task", function)
            if function is exhaust_once:
                report = job(other, source, tmp_path / "out.gguf")
                continue
            monkeypatch.setattr(DaskScheduler, "retries", 1)
            with pytest.raises(SquishError) as caught:
                job(other, source, tmp_path / "never.gguf")
    assert ((tmp_path / "out.gguf").read_bytes(), facts(report)) == serial
    assert caught.value.code == "worker"
    assert len(list(tmp_path.glob(".never.gguf.*.part/killed-*"))) == 2


def put_first(folder: str) -> None:
    """Let a worker find the packages of a folder before others."""
    sys.path.insert(0, folder)


def replace_canaries() -> None:
    """Make a worker encode to other bytes, as far as its canaries show."""
    worker.canaries = lambda *_: {"ggml.q8_0": "0" * 64}


@pytest.mark.parametrize(("code", "word"), [("lock", "squish-gguf"), ("canary", "ggml.q8_0")])
def test_the_message_about_another_version_or_encoder_names_the_worker(
    source: Path, tmp_path: Path, code: str, word: str
) -> None:
    folder = tmp_path / "packages" / "squish_gguf-9.9.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: squish-gguf\nVersion: 9.9\n")
    (folder / "entry_points.txt").write_text("[squish]\ngguf = squish_gguf\n")
    change, arguments = {"lock": (put_first, (str(folder.parent),)), "canary": (replace_canaries, ())}[code]
    with distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as other:
        with distributed.Client(other, set_as_default=False) as client:
            client.run(change, *arguments)
        with pytest.raises(SquishError) as caught:
            job(other, source, tmp_path / "out.gguf")
    assert caught.value.code == code
    assert f"{socket.gethostname()}:" in caught.value.message
    assert word in caught.value.message
    assert [path.name for path in tmp_path.iterdir()] == ["packages"]


def test_a_task_that_kills_every_worker_ends_the_job_resumably(
    cluster: distributed.LocalCluster, source: Path, serial: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_run, "write_task", kill_always)
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as dying,  # and stays dead
        pytest.raises(SquishError) as caught,
    ):
        job(dying, source, tmp_path / "out.gguf")
    assert caught.value.code == "worker"
    monkeypatch.undo()
    report = job(cluster, source, tmp_path / "out.gguf", resume=True)
    assert ((tmp_path / "out.gguf").read_bytes(), facts(report)) == serial


def test_a_bad_tensor_ends_the_job_with_the_error_of_a_serial_conversion(
    cluster: distributed.LocalCluster, tmp_path: Path
) -> None:
    values = np.ones((64, 64), np.float32)
    values[5, 7] = 1e30
    arrays = {name: np.ones((64, 64), np.float32) for name in NAMES}
    squish.save(tmp_path / "in.safetensors", arrays | {NAMES[3]: values})
    errors = []
    for run in (squish.convert, lambda *paths, **more: job(cluster, *paths, **more)):
        with pytest.raises(SquishError) as caught:
            run(tmp_path / "in.safetensors", tmp_path / "out.gguf", encode="q8_0")
        error = caught.value
        errors.append((type(error), error.code, error.tensor, error.message, error.found))
    assert errors[0] == errors[1]
    assert errors[0][1:3] == ("range", NAMES[3])
    assert not (tmp_path / "out.gguf").exists()


def test_the_message_about_a_worker_with_other_plugins_names_them(source: Path, tmp_path: Path) -> None:
    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, dashboard_address=None, env={"SQUISH_PLUGINS": "-squish-cpu"}
        ) as other,
        pytest.raises(SquishError) as caught,
    ):
        job(other, source, tmp_path / "out.gguf")
    assert caught.value.code == "lock"
    assert "squish-cpu" in caught.value.message
    assert not list(tmp_path.iterdir())


def test_the_message_about_an_address_without_a_scheduler_names_it(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("squish_dask.scheduler.TIMEOUT", 1)
    with pytest.raises(SquishError) as caught:
        squish.convert(source, tmp_path / "out.gguf", job="dask:tcp://127.0.0.1:9")
    assert caught.value.code == "unreachable"
    message = (
        "the Dask scheduler cannot be reached (expected an address such as dask:tcp://10.0.0.1:8786, "
        "found tcp://127.0.0.1:9: "  # and what Dask says
    )
    assert str(caught.value).startswith(message)
    assert not list(tmp_path.iterdir())


def double(number: int) -> int:
    return 2 * number


def end_process(number: int) -> None:
    os._exit(number)


def test_a_job_warns_while_a_cluster_has_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "PATIENCE", 0.2)
    with distributed.LocalCluster(n_workers=0, dashboard_address=None) as empty:
        waiting = DaskScheduler().map(empty.scheduler_address, double, [1, 2])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warnings.showwarning = lambda *_, **__: caught.append(empty.scale(1))  # a worker arrives after the warning
            assert sorted(waiting) == [(0, 2), (1, 4)]
    assert caught


def test_a_job_warns_after_the_last_worker_is_lost(
    cluster: distributed.LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [sys.executable, "-m", "distributed.cli.dask_worker", "--no-dashboard", "--no-nanny"]
    with distributed.LocalCluster(n_workers=0, dashboard_address=None) as empty:
        last = subprocess.Popen([*command, empty.scheduler_address], stderr=subprocess.DEVNULL)
        with distributed.Client(empty, set_as_default=False) as client:
            client.wait_for_workers(1)
        monkeypatch.setattr(scheduler, "PATIENCE", 0.5)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(UserWarning, match="has no worker;"):
                next(DaskScheduler().map(empty.scheduler_address, end_process, [3]))
        assert last.wait() == 3


def test_a_job_warns_if_every_worker_has_too_little_memory(
    cluster: distributed.LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "PATIENCE", 0.2)
    answers = DaskScheduler().map(cluster.scheduler_address, double, [1], memory=int(3e9))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="has no worker with --resources memory=3000000000"):
            next(answers)


def test_the_limit_of_a_cluster_on_the_wait_ends_the_job() -> None:
    with (
        dask.config.set({"distributed.scheduler.no-workers-timeout": "100ms"}),
        distributed.LocalCluster(n_workers=0, dashboard_address=None) as empty,
        pytest.raises(SquishError) as caught,
    ):
        list(DaskScheduler().map(empty.scheduler_address, double, [1]))
    assert caught.value.code == "worker"


def test_messages_and_answers_are_small(cluster: distributed.LocalCluster, source: Path, tmp_path: Path) -> None:
    sizes: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        job(cluster, source, tmp_path / "out.gguf", progress=lambda *_: sizes.append(1) or stop(sizes))
    lines = (tmp_path / "out.gguf.squish-journal").read_text().splitlines()[1:]
    assert all(len(line) < 1000 for line in lines)
    assert {json.loads(line)["task"] for line in lines} <= set(range(8))
    job(cluster, source, tmp_path / "out.gguf", resume=True)


def stop(sizes: list[int]) -> None:
    if len(sizes) == 3:
        raise KeyboardInterrupt
