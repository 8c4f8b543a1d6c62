"""Jobs on a real cluster: the same bytes and report as without it, whatever happens to its workers."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import distributed
import numpy as np
import pytest

import squish_core as squish
from squish_core.api import SquishError
from squish_core.conversion import job_run, worker

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


def job(cluster: distributed.LocalCluster, source: Path, target: Path, **arguments: Any) -> squish.Conversion:
    scheduler = f"dask:{cluster.scheduler_address}"
    return squish.convert(source, target, **{"encode": "q8_0", "scheduler": scheduler, "task_bytes": TASK, **arguments})


def killing(message: Any, times: int) -> Any:
    """`write_task` that kills its process at task 2, the first few times."""
    marks = [Path(message.job).with_name(f"killed-{number}") for number in range(times)]
    if message.task == 2 and (unused := [mark for mark in marks if not mark.exists()]):
        unused[0].touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return worker.write_task(message)


def kill_once(message: Any) -> Any:
    return killing(message, 1)


def kill_always(message: Any) -> Any:
    return killing(message, 100)


def test_a_cluster_writes_the_bytes_and_the_report_of_a_serial_conversion(
    cluster: distributed.LocalCluster, source: Path, serial: Any, tmp_path: Path
) -> None:
    report = job(cluster, source, tmp_path / "out.gguf")
    assert ((tmp_path / "out.gguf").read_bytes(), facts(report)) == serial
    assert [path.name for path in tmp_path.iterdir()] == ["out.gguf"]


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


def test_a_task_that_kills_every_worker_ends_the_job_resumably(
    cluster: distributed.LocalCluster, source: Path, serial: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_run, "write_task", kill_always)
    with pytest.raises(SquishError) as caught:
        job(cluster, source, tmp_path / "out.gguf")
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


def test_an_address_without_a_scheduler_is_an_error(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("squish_dask.scheduler.TIMEOUT", 1)
    with pytest.raises(SquishError) as caught:
        squish.convert(source, tmp_path / "out.gguf", scheduler="dask:tcp://127.0.0.1:9")
    assert caught.value.code == "unreachable"
    assert not list(tmp_path.iterdir())


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
