"""Jobs into a bucket: whole objects, each made by one task."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import boto3
import numpy as np
import pytest
from attrs import evolve
from moto.server import DomainDispatcherApplication, create_backend_app
from squish_convert.job import run as job_run
from squish_convert.job import worker
from squish_convert.job.staging import RemoteStaging as Staged
from squish_remote.store import Store

import squish_core as squish
from squish_core.api import RemoteTarget, SquishError
from squish_core.schedulers import local

pytestmark = pytest.mark.filterwarnings("ignore")

RANDOM = np.random.default_rng(6)
NAMES = [f"model.layers.{number}.mlp.up_proj.weight" for number in range(8)]
LOCAL = squish.Job("local:2", task_bytes=70_000)


class Server(WSGIServer):
    request_queue_size = 64


class Quiet(WSGIRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def bucket() -> Iterator[Any]:
    server = make_server(
        "127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), server_class=Server, handler_class=Quiet
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.environ |= {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}", "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "s3cret",
    }  # fmt: skip
    client = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"], region_name="us-east-1")
    client.create_bucket(Bucket="out")
    yield client
    server.shutdown()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("jobs") / "model.safetensors"
    squish.save(path, {name: RANDOM.standard_normal((256, 256), np.float32) for name in NAMES})
    return path


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def objects(bucket: Any, prefix: str) -> dict[str, bytes]:
    """The objects whose names begin so."""
    keys = [entry["Key"] for entry in bucket.list_objects_v2(Bucket="out", Prefix=prefix).get("Contents", [])]
    return {key.removeprefix(prefix): bucket.get_object(Bucket="out", Key=key)["Body"].read() for key in keys}


def files_of(path: Path) -> dict[str, bytes]:
    if path.is_file():
        return {"": path.read_bytes()}
    return {f"/{file.relative_to(path)}": file.read_bytes() for file in path.rglob("*") if file.is_file()}


def facts(report: squish.Conversion) -> dict[str, Any]:
    return {key: value for key, value in report.to_dict().items() if key not in ("seconds", "target", "notes")}


@pytest.mark.parametrize(
    ("name", "to", "encode"),
    [
        ("one.gguf", None, "q8_0"), ("shards", "safetensors:max_shard_size=100KB", "f16"),
        ("arrays", "npydir", "int8"), ("two.zt", "ztensor:encoding=zstd", "int8"),
    ],
)  # fmt: skip
def test_a_job_into_a_bucket_writes_the_bytes_of_a_serial_conversion(
    bucket: Any, source: Path, tmp_path: Path, name: str, to: str | None, encode: str
) -> None:
    serial = squish.convert(source, tmp_path / name, to, encode)
    report = squish.convert(source, f"s3://out/{name}", to, encode, job=LOCAL)
    assert objects(bucket, name) == files_of(tmp_path / name)
    assert facts(report) == facts(serial)
    assert report.target == f"s3://out/{name}"
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_an_existing_object_is_refused(bucket: Any, source: Path, tmp_path: Path) -> None:
    bucket.put_object(Bucket="out", Key="there.gguf", Body=b"old")
    with pytest.raises(SquishError) as caught:
        squish.convert(source, "s3://out/there.gguf", encode="q8_0", job=LOCAL)
    assert caught.value.code == "exists"
    assert objects(bucket, "there") == {".gguf": b"old"}
    assert not list(tmp_path.iterdir())
    squish.convert(source, "s3://out/there.gguf", encode="q8_0", overwrite=True, job=LOCAL)
    assert objects(bucket, "there").keys() == {".gguf"}
    assert len(objects(bucket, "there")[".gguf"]) > 1000


def test_of_two_clients_that_write_one_object_the_second_is_refused(bucket: Any, source: Path, tmp_path: Path) -> None:
    refused: list[SquishError] = []

    def second(*_: Any) -> None:
        for encode in ("q8_0", "q4_0"):
            other = evolve(LOCAL, journal=tmp_path / "second")
            with pytest.raises(SquishError) as caught:
                squish.convert(source, "s3://out/pair.gguf", encode=encode, job=other)
            refused.append(caught.value)

    started = Staged.store_job

    def store_job(self: Staged, data: bytes) -> str:
        url = started(self, data)
        if not refused:
            second()
        return url

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Staged, "store_job", store_job)
        squish.convert(source, "s3://out/pair.gguf", encode="q8_0", job=LOCAL)
    assert [(error.code, error.found) for error in refused] == [("locked", "s3://out/pair.gguf.squish-job")] * 2
    squish.convert(source, tmp_path / "serial.gguf", encode="q8_0")
    assert objects(bucket, "pair") == {".gguf": (tmp_path / "serial.gguf").read_bytes()}
    assert [path.name for path in tmp_path.iterdir()] == ["serial.gguf"]


LARGE = {
    f"model.layers.{number}.mlp.up_proj.weight": RANDOM.standard_normal((2048, 1024), np.float32) for number in range(3)
}
"""24 MiB: an upload of several parts."""


def write_killed(message: Any, times: int) -> Any:
    """`write_task` that kills its process between two parts of an upload, the first few times."""
    opened = RemoteTarget.opened

    @contextmanager
    def killing(self: RemoteTarget, path: str, **options: Any) -> Iterator[Any]:
        with opened(self, path, **options) as write:
            parts: list[int] = []

            def count(data: Any) -> None:
                write(data)
                parts.append(1)
                marks = [Path(f"killed-{number}") for number in range(times)]
                if len(parts) == 2 and (unused := [mark for mark in marks if not mark.exists()]):
                    unused[0].touch()
                    os.kill(os.getpid(), signal.SIGKILL)

            yield count

    RemoteTarget.opened = killing
    try:
        return worker.write_task(message)
    finally:
        RemoteTarget.opened = opened


def write_killed_once(message: Any) -> Any:
    return write_killed(message, 1)


def write_killed_always(message: Any) -> Any:
    return write_killed(message, 100)


def unfinished(bucket: Any, key: str) -> int:
    """The number of multipart uploads of an object that nobody has completed or aborted."""
    uploads = bucket.list_multipart_uploads(Bucket="out").get("Uploads", [])
    return sum(upload["Key"] == key for upload in uploads)


def test_a_worker_killed_in_an_upload_leaves_no_object_and_the_next_one_writes_it(
    bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    squish.save(tmp_path / "large.safetensors", LARGE)
    arguments = {"to": "safetensors", "encode": "f32", "job": "local:1"}
    with monkeypatch.context() as patch:
        patch.setattr(job_run, "write_task", write_killed_always)
        patch.setattr(local, "RETRIES", 0)
        with pytest.raises(SquishError) as caught:
            squish.convert(tmp_path / "large.safetensors", "s3://out/large.safetensors", **arguments)
    assert caught.value.code == "worker"
    assert objects(bucket, "large.safetensors") == {}
    assert unfinished(bucket, "large.safetensors") == 1
    for mark in tmp_path.glob("killed-*"):
        mark.unlink()
    monkeypatch.setattr(job_run, "write_task", write_killed_once)
    squish.convert(tmp_path / "large.safetensors", "s3://out/large.safetensors", **arguments)
    assert (tmp_path / "killed-0").exists()
    squish.convert(tmp_path / "large.safetensors", tmp_path / "serial.safetensors", "safetensors", "f32")
    assert objects(bucket, "large.safetensors") == {"": (tmp_path / "serial.safetensors").read_bytes()}
    assert unfinished(bucket, "large.safetensors") == 2


def complete_killed_once(message: Any) -> Any:
    """`write_task` that kills its process the first time that it completes an upload: its lock is there."""
    has = Store.has

    async def killing(self: Store, path: str) -> bool:
        if not Path("killed").exists():
            Path("killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return await has(self, path)

    Store.has = killing
    try:
        return worker.write_task(message)
    finally:
        Store.has = has


def test_a_worker_killed_as_it_completes_an_object_costs_its_task(
    bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    squish.save(tmp_path / "large.safetensors", LARGE)
    monkeypatch.setattr(job_run, "write_task", complete_killed_once)
    squish.convert(tmp_path / "large.safetensors", "s3://out/completed.gguf", job="local:1")
    assert (tmp_path / "killed").exists()
    squish.convert(tmp_path / "large.safetensors", tmp_path / "serial.gguf")
    assert objects(bucket, "completed") == {".gguf": (tmp_path / "serial.gguf").read_bytes()}


CLIENT = """
import sys
import squish_core as squish

if __name__ == "__main__":
    squish.convert(
        sys.argv[1], "s3://out/killed", "safetensors:max_shard_size=100KB", "f16",
        job=squish.Job("local:1", task_bytes=70_000),
    )
"""


def test_a_killed_client_leaves_a_job_that_other_clients_name(bucket: Any, source: Path, tmp_path: Path) -> None:
    (tmp_path / "client.py").write_text(CLIENT)
    client = subprocess.Popen([sys.executable, "client.py", str(source)])
    journal = tmp_path / "killed.squish-journal"
    while client.poll() is None and not (journal.exists() and journal.read_bytes().count(b"\n") >= 3):
        time.sleep(0.01)
    client.kill()
    assert client.wait() == -signal.SIGKILL
    assert ".squish-job" in objects(bucket, "killed")
    to = ("s3://out/killed", "safetensors:max_shard_size=100KB", "f16")
    with pytest.raises(SquishError) as caught:
        squish.convert(source, *to, overwrite=True, job=evolve(LOCAL, journal="other.journal"))
    assert (caught.value.code, caught.value.found) == ("locked", "s3://out/killed.squish-job")
    assert not (tmp_path / "other.journal").exists()
    squish.convert(source, *to, job=squish.Job("local:1", task_bytes=70_000, resume=True))
    squish.convert(source, tmp_path / "serial", *to[1:])
    assert objects(bucket, "killed") == files_of(tmp_path / "serial")


def test_an_interrupted_job_goes_on_and_keeps_no_secret(bucket: Any, source: Path, tmp_path: Path) -> None:
    done: list[int] = []

    def stop(*_: Any) -> None:
        done.append(1)
        if len(done) == 3:
            raise KeyboardInterrupt

    to = "safetensors:max_shard_size=100KB"
    with pytest.raises(KeyboardInterrupt):
        squish.convert(source, "s3://out/resumed", to, "f16", progress=stop, job=evolve(LOCAL, journal="the.journal"))
    journal = (tmp_path / "the.journal").read_text()
    assert len(journal.splitlines()) >= 3
    assert "s3cret" not in journal
    assert "/model.safetensors.index.json" not in objects(bucket, "resumed")
    squish.convert(source, "s3://out/resumed", to, "f16", job=evolve(LOCAL, resume=True, journal="the.journal"))
    squish.convert(source, tmp_path / "serial", to, "f16")
    assert objects(bucket, "resumed") == files_of(tmp_path / "serial")
    assert not (tmp_path / "the.journal").exists()
