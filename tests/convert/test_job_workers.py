"""A worker's side of a job: what it refuses, retries and reports."""

from __future__ import annotations

import errno
import pickle
import sys
import tempfile
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attrs import evolve
from squish_convert.api import job_document, output_image, plan_conversion
from squish_convert.job import worker
from squish_convert.job.tasks import JobPartition, PieceRange
from squish_convert.job.worker import JobDescription, Message, OpenJob, RangeWriter, canaries, write_task

import squish_core as squish
from squish_core.api import ErrorCode, SquishError, UsageError, WriteError
from squish_core.checking.maps import path_of

RANDOM = np.random.default_rng(8)
ARRAYS = {
    f"model.layers.{number}.mlp.up_proj.weight": RANDOM.standard_normal((64, 256), np.float32) for number in range(3)
}


@pytest.fixture
def job(tmp_path: Path) -> Iterator[JobDescription]:
    squish.save(tmp_path / "in.safetensors", ARRAYS)
    with squish.open(tmp_path / "in.safetensors") as file:
        plan = plan_conversion(file, tmp_path / "out.gguf", encode="q8_0")
        image = output_image(plan, file)
        document = job_document(plan, file, {})
        output = tmp_path / "output"
        output.write_bytes(bytes(image.size))
        yield JobDescription(
            plan=plan,
            image=image,
            source=path_of(file),
            format=file.format,
            assets=None,
            activations=None,
            limits=file.limits,
            pins=document["source"]["files"],
            lock=document["lock"],
            canaries=canaries(plan, file, None),
            files=(str(output),),
            tasks=JobPartition(plan, image, file, None).tasks(20_000),
        )


def message_for(job: JobDescription, folder: Path, task: int = 0) -> Message:
    data = pickle.dumps(job)
    (folder / "job").write_bytes(data)
    return Message(str(folder / "job"), sha256(data).hexdigest(), task)


def test_a_task_gives_the_same_answer_twice(job: JobDescription, tmp_path: Path) -> None:
    opened = OpenJob(job)
    first, second = (opened.write(1) for _ in range(2))
    assert evolve(first, seconds=0) == evolve(second, seconds=0)
    assert len(pickle.dumps(first)) < 1000


def test_canaries_name_the_encoders_and_are_the_same_each_time(job: JobDescription) -> None:
    assert job.canaries.keys() == {"ggml.q8_0"}
    with squish.open(job.source) as file:
        assert canaries(job.plan, file, None) == job.canaries


@pytest.mark.parametrize(
    ("change", "code", "word"),
    [
        ({"lock": {"versions": {"squish-gguf": "0.0.1"}, "encoders": {}}}, "lock", "squish-core"),
        ({"canaries": {"ggml.q8_0": "0" * 64}}, "canary", "ggml.q8_0"),
        ({"pins": [{"name": "in.safetensors", "size": 1}]}, "changed", "source"),
    ],
)
def test_the_message_about_another_worker_names_it(
    job: JobDescription, change: dict[str, Any], code: str, word: str
) -> None:
    with pytest.raises(SquishError) as caught:
        OpenJob(evolve(job, **change))
    assert caught.value.code == code
    assert worker.worker_name() in caught.value.message
    assert word in caught.value.message


def test_a_source_with_fewer_files_than_the_clients_is_another_one(job: JobDescription) -> None:
    with pytest.raises(SquishError) as caught:
        OpenJob(evolve(job, pins=[*job.pins, {"name": "more.safetensors", "size": 1}]))
    assert (caught.value.code, caught.value.found) == ("changed", None)


def test_the_message_of_a_worker_names_the_plugin_of_another_version(job: JobDescription) -> None:
    versions = {**job.lock["versions"], "squish-gguf": "0.0.1"}
    with pytest.raises(SquishError) as caught:
        OpenJob(evolve(job, lock={**job.lock, "versions": versions}))
    assert (caught.value.code, caught.value.expected) == ("lock", "0.0.1")
    assert "squish-gguf" in caught.value.message


def test_a_changed_description_of_a_job_is_never_unpickled(job: JobDescription, tmp_path: Path) -> None:
    message = message_for(job, tmp_path)
    (tmp_path / "job").write_bytes(b"cos\nsystem\n(S'touch hacked'\ntR.")
    with pytest.raises(SquishError) as caught:
        write_task(message)
    assert caught.value.code == "changed"


def test_a_source_that_cannot_be_reached_is_tried_again(
    job: JobDescription, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[int] = []
    opened = OpenJob(job)

    def flaky(path: str, digest: str) -> OpenJob:
        attempts.append(1)
        if len(attempts) < 3:
            raise SquishError("no answer", code=ErrorCode.UNREACHABLE)
        return opened

    monkeypatch.setattr(worker, "opened_job", flaky)
    monkeypatch.setattr(worker.time, "sleep", lambda seconds: None)
    assert write_task(Message("", "", 0)).task == 0
    attempts.clear()
    monkeypatch.setattr(worker, "RETRIES", 1)
    with pytest.raises(SquishError):
        write_task(Message("", "", 0))
    assert len(attempts) == 2


def test_a_refusal_is_not_tried_again(job: JobDescription, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[int] = []

    def refusing(path: str, digest: str) -> OpenJob:
        attempts.append(1)
        raise UsageError("no", code="plan")

    monkeypatch.setattr(worker, "opened_job", refusing)
    with pytest.raises(UsageError):
        write_task(Message("", "", 0))
    assert len(attempts) == 1


def mapped_bytes() -> int:
    """Resident bytes of mapped files of this process."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssFile"))
    return int(line.split()[1]) << 10


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_pages_of_a_mapped_source_are_given_back_and_views_stay_valid(tmp_path: Path) -> None:
    squish.save(tmp_path / "in.safetensors", {"w": np.ones((4096, 2048), np.float32)})
    with squish.open(tmp_path / "in.safetensors") as file:
        values, before = file["w"].numpy(), mapped_bytes()
        assert values.sum() == values.size
        assert mapped_bytes() > before + (30 << 20)
        file.source.release_pages()
        assert mapped_bytes() < before + (2 << 20)
        assert values.sum() == values.size


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize("encode", ["q8_0", None])
def test_a_worker_does_not_keep_the_pages_of_its_source(tmp_path: Path, encode: str | None) -> None:
    arrays = {f"{number}.weight": np.ones((2048, 2048), np.float32) for number in range(4)}
    squish.save(tmp_path / "in.safetensors", arrays)
    with squish.open(tmp_path / "in.safetensors") as file:
        plan = plan_conversion(file, tmp_path / "out.gguf", encode=encode)
        image, document = output_image(plan, file), job_document(plan, file, {})
        (tmp_path / "output").write_bytes(bytes(image.size))
        opened = OpenJob(
            JobDescription(
                plan=plan,
                image=image,
                source=path_of(file),
                format=file.format,
                assets=None,
                activations=None,
                limits=file.limits,
                pins=document["source"]["files"],
                lock=document["lock"],
                canaries=canaries(plan, file, None),
                files=(str(tmp_path / "output"),),
                tasks=JobPartition(plan, image, file, None).tasks(1 << 30),
            )
        )
    before = mapped_bytes()
    opened.write(0)
    assert mapped_bytes() < before + (8 << 20)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_the_message_about_a_full_disk_names_the_worker() -> None:
    place = PieceRange("data", 0, 4, 0, 0)
    with pytest.raises(WriteError) as caught, RangeWriter(("/dev/full",)) as writer:
        writer.write(place, memoryview(b"four"))
    assert (caught.value.code, caught.value.file) == ("unwritable", "/dev/full")
    assert worker.worker_name() in caught.value.message


def test_a_vanished_output_names_the_worker(job: JobDescription) -> None:
    Path(job.files[0]).unlink()
    with pytest.raises(WriteError) as caught:
        OpenJob(job).write(0)
    assert (caught.value.code, caught.value.file) == ("unwritable", job.files[0])


@pytest.mark.parametrize("size", [3, 5])
def test_a_part_of_another_size_is_an_error(tmp_path: Path, size: int) -> None:
    (tmp_path / "out").write_bytes(bytes(8))
    with pytest.raises(SquishError) as caught, RangeWriter((str(tmp_path / "out"),)) as writer:
        writer.write_all(PieceRange("data", 0, 4, 0, 0), [bytes(size)])
    assert (caught.value.code, caught.value.expected, caught.value.found) == ("size", 4, size)


def test_a_bad_tensor_ends_a_job_with_the_error_of_a_serial_conversion(tmp_path: Path) -> None:
    values = np.ones((64, 256), np.float32)
    values[5, 7] = 1e30
    name = "model.layers.1.mlp.up_proj.weight"
    squish.save(tmp_path / "in.safetensors", ARRAYS | {name: values})
    errors = []
    for job in (None, squish.Job("local:1", task_bytes=20_000)):
        with pytest.raises(SquishError) as caught:
            squish.convert(tmp_path / "in.safetensors", tmp_path / "out.gguf", encode="q8_0", job=job)
        error = caught.value
        errors.append((type(error), error.code, error.tensor, error.message, error.found))
    assert errors[0] == errors[1]
    assert errors[0][1:3] == ("range", name)
    assert not (tmp_path / "out.gguf").exists()


def test_damage_that_a_digest_shows_ends_a_job_as_it_ends_a_serial_conversion(tmp_path: Path) -> None:
    squish.save(tmp_path / "in.safetensors", ARRAYS)
    squish.convert(tmp_path / "in.safetensors", tmp_path / "in.zt", "ztensor:digest=sha256")
    data = bytearray((tmp_path / "in.zt").read_bytes())
    place = data.index(ARRAYS["model.layers.2.mlp.up_proj.weight"].tobytes()[:64])
    data[place + 3] ^= 1
    (tmp_path / "in.zt").write_bytes(data)
    errors = []
    for job in (None, squish.Job("local:1", task_bytes=20_000)):
        with pytest.raises(SquishError) as caught:
            squish.convert(tmp_path / "in.zt", tmp_path / "out.gguf", job=job)
        errors.append((type(caught.value), caught.value.code, caught.value.tensor, caught.value.message))
    assert errors[0] == errors[1]
    assert errors[0][1] == "digest"


@pytest.mark.parametrize("instructions", ["portable", "avx2", "avx512"])
def test_other_instructions_of_workers_give_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, instructions: str
) -> None:
    library = pytest.importorskip("squish_cpu.library", reason="the compiled kernels are not installed").library()
    if instructions not in library.instructions:
        pytest.skip(f"this processor has no {instructions}, only {', '.join(library.instructions)}")
    squish.save(tmp_path / "in.safetensors", ARRAYS)
    squish.convert(tmp_path / "in.safetensors", tmp_path / "serial.gguf", encode="q4_k")
    monkeypatch.setenv("SQUISH_CPU_INSTRUCTIONS", instructions)
    squish.convert(tmp_path / "in.safetensors", tmp_path / "job.gguf", encode="q4_k", job="local:1")
    assert (tmp_path / "job.gguf").read_bytes() == (tmp_path / "serial.gguf").read_bytes()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_the_message_about_a_full_temporary_folder_names_the_worker(
    job: JobDescription, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        """A temporary folder whose files are full."""

        def __init__(self, prefix: str) -> None:
            (tmp_path / "0").symlink_to("/dev/full")

        def __enter__(self) -> str:
            return str(tmp_path)

        def __exit__(self, *exception: object) -> None: ...

    monkeypatch.setattr(worker, "TemporaryDirectory", Full)
    monkeypatch.setattr(worker.os, "truncate", lambda path, size: None)
    tasks = (evolve(job.tasks[0], files=(0,)),)
    with pytest.raises(WriteError) as caught:
        OpenJob(evolve(job, tasks=tasks, files=("s3://bucket/out.gguf",))).write(0)
    assert caught.value.code == "unwritable"
    assert worker.worker_name() in caught.value.message


def test_the_message_about_a_temporary_folder_that_cannot_be_created_names_the_worker(
    job: JobDescription, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(prefix: str) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(worker, "TemporaryDirectory", fail)
    tasks = (evolve(job.tasks[0], files=(0,)),)
    with pytest.raises(WriteError) as caught:
        OpenJob(evolve(job, tasks=tasks, files=("s3://bucket/out.gguf",))).write(0)
    assert (caught.value.code, caught.value.file, caught.value.found) == (
        "unwritable",
        tempfile.gettempdir(),
        "Read-only file system",
    )
    assert worker.worker_name() in caught.value.message


def test_the_message_about_a_job_that_a_worker_cannot_find_names_it(tmp_path: Path) -> None:
    with pytest.raises(SquishError) as caught:
        write_task(Message(str(tmp_path / "job"), "0" * 64, 0))
    assert (caught.value.code, caught.value.file) == ("missing", str(tmp_path / "job"))
    assert worker.worker_name() in caught.value.message
