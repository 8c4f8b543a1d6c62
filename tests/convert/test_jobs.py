"""Conversions as jobs: tasks in other processes, which write the bytes of a serial conversion."""

from __future__ import annotations

import pickle
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from squish_cli.app import run
from squish_cli.spellings import normalize
from squish_convert.api import output_image, plan_conversion
from squish_convert.job.tasks import JobPartition
from squish_convert.job.worker import Message
from toys import files_of

import squish_core as squish
from squish_core.api import UsageError

RANDOM = np.random.default_rng(5)
WIDE = "model.layers.0.mlp.up_proj.weight"
TALL = "model.embed_tokens.weight"
ARRAYS = {
    TALL: RANDOM.standard_normal((6000, 256), np.float32),
    "model.norm.weight": RANDOM.standard_normal(96, np.float32),
    WIDE: RANDOM.standard_normal((160, 256), np.float32),
    "model.layers.0.mlp.half.weight": RANDOM.standard_normal((7, 3)).astype(np.float16),
    "model.empty": np.zeros((0, 32), np.float32),
}
TARGETS = [
    ("gguf", "q8_0"), ("gguf", {"*embed*": "q4_k"}), ("safetensors:max_shard_size=1MB", "f16"), ("npydir", "int8"),
    ("ztensor:encoding=zstd", {"*embed*": "int8"}), ("squizd", {"*embed*": "int4"}), ("mlx", "q4"),
]  # fmt: skip
"""The layout of zTensor with compression and of SQUIZD follows from the data."""
TASK = 1 << 20


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("jobs") / "model.safetensors"
    squish.save(path, ARRAYS, metadata={"format": "pt"})
    return path


def facts(report: squish.Conversion) -> dict[str, Any]:
    """A report but for its time and target."""
    return {key: value for key, value in report.to_dict().items() if key not in ("seconds", "target")}


@pytest.mark.parametrize(("to", "encode"), TARGETS)
def test_a_job_writes_the_bytes_and_the_report_of_a_serial_conversion(
    source: Path, tmp_path: Path, to: str, encode: Any
) -> None:
    serial = squish.convert(source, tmp_path / "serial", to, encode)
    job = squish.convert(source, tmp_path / "job", to, encode, job=squish.Job("local:2", task_bytes=TASK))
    assert files_of(tmp_path / "job") == files_of(tmp_path / "serial")
    assert facts(job) == facts(serial)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job", "serial"]


def test_any_number_of_workers_writes_the_file_with_one_digest(source: Path, tmp_path: Path) -> None:
    squish.convert(source, tmp_path / "out.gguf", encode="q4_k")
    digests = {sha256((tmp_path / "out.gguf").read_bytes()).hexdigest()}
    for count in (1, 2, 4):
        job = squish.Job(f"local:{count}", task_bytes=TASK // 16)
        squish.convert(source, tmp_path / "out.gguf", encode="q4_k", job=job)
        digests.add(sha256((tmp_path / "out.gguf").read_bytes()).hexdigest())
    assert len(digests) == 1


def test_the_command_line_runs_a_job(source: Path, tmp_path: Path) -> None:
    words = ["convert", str(source), str(tmp_path / "job.gguf"), "--encode", "q8_0", "--scheduler", "local:1"]
    assert run([*words, "--task-bytes", "1MiB", "--resume"]) == 0
    squish.convert(source, tmp_path / "serial.gguf", encode="q8_0")
    assert files_of(tmp_path / "job.gguf") == files_of(tmp_path / "serial.gguf")


def test_resume_takes_a_file_in_other_commands() -> None:
    assert normalize(["convert", "--resume", "a", "b"]) == ["convert", "--resume=True", "a", "b"]
    assert normalize(["eval", "a", "--state", "state"]) == ["eval", "a", "--state", "state"]
    assert normalize([]) == []


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ("cluster", "no such scheduler"), ("local:0", "processes"), ("local:x", "processes"), ("", "no such scheduler"),
        (8, "invalid job="), ({"scheduler": "local"}, "invalid job="), (True, "invalid job="),
    ],
)  # fmt: skip
def test_the_message_about_an_invalid_scheduler_says_so(source: Path, tmp_path: Path, job: Any, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        squish.convert(source, tmp_path / "out.gguf", job=job)
    assert caught.value.code == "usage"
    assert message in caught.value.message
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "value"),
    [("task_bytes", "much"), ("task_bytes", 0), ("task_bytes", -1), ("resume", "yes"), ("resume", None)],
)
def test_the_message_about_an_invalid_option_of_a_job_names_it(name: str, value: Any) -> None:
    with pytest.raises(UsageError) as caught:
        squish.Job("local", **{name: value})
    assert (caught.value.code, caught.value.message) == ("usage", f"invalid {name}=")


@pytest.mark.parametrize(
    ("words", "option"),
    [(["--task-bytes", "1MiB"], "--task-bytes"), (["--resume"], "--resume"), (["--journal", "j"], "--journal")],
)
def test_an_option_of_a_job_needs_a_scheduler(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], option: str
) -> None:
    assert run(["convert", str(source), str(tmp_path / "out.gguf"), *words]) == 2
    assert f"{option} needs --scheduler" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_job_is_plain_data() -> None:
    job = squish.Job("local:8", task_bytes="1MiB", resume=True)
    assert job == squish.Job("local:8", task_bytes=1 << 20, resume=True)
    assert pickle.loads(pickle.dumps(job)) == job
    assert squish.Job("local", task_bytes=None).task_bytes == squish.Job("local").task_bytes == 256 << 20


def test_arrays_in_memory_are_no_source_of_a_job(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        squish.convert({"w": np.ones((4, 4), "f4")}, tmp_path / "out.gguf", job="local")
    assert not list(tmp_path.iterdir())


def test_a_large_tensor_is_cut_at_panels_and_small_ones_share_a_task(source: Path, tmp_path: Path) -> None:
    with squish.open(source) as file:
        plan = plan_conversion(file, tmp_path / "out.gguf", encode="q8_0")
        tasks = JobPartition(plan, output_image(plan, file), file, None).tasks(TASK)
        whole = JobPartition(plan, output_image(plan, file), file, None).tasks(1 << 30)
    names = {number: step.name for number, step in enumerate(plan.steps)}
    pieces = [piece for task in tasks for piece in task.pieces]
    assert [piece.stop for piece in pieces if names[piece.step] == TALL] == [1, 2]
    assert {names[piece.step] for piece in pieces if piece.stop is None} == ARRAYS.keys() - {TALL}
    assert (len(tasks), len(whole)) == (2, 1)
    assert len(pickle.dumps(Message("job", "0" * 64, 3))) < 1000
