"""Jobs whose source is at a URL: every byte is fetched once, and nothing again that is done."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from inline_scheduler import inline_registry
from squish_convert.job.worker import opened_job

import squish_core as squish
from squish_core.errors import TensorError

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

RANDOM = np.random.default_rng(4)
ARRAYS = {
    "wide.weight": RANDOM.standard_normal((3072, 2048), np.float32),
    "tall.weight": RANDOM.standard_normal((512, 2048), np.float32),
}
REGISTRY = inline_registry()


def inline(task_bytes: int, **options: Any) -> dict[str, Any]:
    """Arguments of a job in this process."""
    return {"job": squish.Job("inline", task_bytes=task_bytes, **options), "registry": REGISTRY}


SLACK = 400_000
"""Bytes of headers, fetched by the client and by the worker."""
PANEL = 590_000
"""Bytes of a panel of Q4_0: planning a repack reads the first one of each tensor."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    folder, ranges = Path(), list[tuple[int, int]]()

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        path = self.folder / self.path.strip("/")
        if not path.is_file():
            self.send_error(404)
            return
        data, match = path.read_bytes(), re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        start, stop = (int(match[1]), min(int(match[2]) + 1, len(data))) if match else (0, len(data))
        self.ranges.append((start, stop))
        self.send_response(206 if match else 200)
        self.send_header("ETag", '"one"')
        self.send_header("Content-Length", str(stop - start))
        if match:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(data)}")
        self.end_headers()
        self.wfile.write(data[start:stop])


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    pytest.importorskip("squish_remote", reason="http:// is opened by squish-remote")
    Handler.folder = folder = tmp_path_factory.mktemp("served")
    squish.save(folder / "f32.safetensors", ARRAYS)
    squish.convert(folder / "f32.safetensors", folder / "q4_0.gguf", encode="q4_0")
    squish.convert(folder / "f32.safetensors", folder / "f16.zt", "ztensor:encoding=zstd", "f16")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def fetched() -> Iterator[list[tuple[int, int]]]:
    """The ranges that were requested."""
    Handler.ranges.clear()
    yield Handler.ranges
    opened_job.cache_clear()


def size_of(ranges: list[tuple[int, int]]) -> int:
    """Bytes of ranges, repeats counted."""
    return sum(stop - start for start, stop in ranges)


@pytest.mark.parametrize(
    ("name", "to", "encode", "task_bytes"),
    [
        ("f32.safetensors", "gguf", "q8_0", 2 << 20), ("f32.safetensors", "ztensor", None, 4 << 20),
        ("q4_0.gguf", "safetensors", "f16", 4 << 20), ("q4_0.gguf", "mlx", None, 1 << 20),
        ("f16.zt", "gguf", "q8_0", 2 << 20), ("f16.zt", "ztensor:encoding=zstd", "int8", 2 << 20),
    ],
)  # fmt: skip
def test_a_job_fetches_every_byte_once_even_of_tensors_that_several_tasks_share(
    url: str, tmp_path: Path, fetched: list[tuple[int, int]], name: str, to: str, encode: Any, task_bytes: int
) -> None:
    report = squish.convert(f"{url}/{name}", tmp_path / "job", to, encode, requantize=True, **inline(task_bytes))
    planned = 2 * PANEL if report.steps[0].action == "repack" else 0
    assert size_of(fetched) <= report.source_size * 1.02 + SLACK + planned
    squish.convert(Handler.folder / name, tmp_path / "serial", to, encode, requantize=True)
    for path in (tmp_path / "serial").rglob("*") if (tmp_path / "serial").is_dir() else [tmp_path / "serial"]:
        relative = path.relative_to(tmp_path / "serial")
        assert (tmp_path / "job" / relative).read_bytes() == path.read_bytes()


def test_a_resumed_job_fetches_nothing_that_is_done(url: str, tmp_path: Path, fetched: list[tuple[int, int]]) -> None:
    journal = tmp_path / "out.gguf.squish-journal"

    def progress(*_: Any) -> None:
        if journal.read_bytes().count(b"\n") == 5:
            raise KeyboardInterrupt

    arguments = (f"{url}/f32.safetensors", tmp_path / "out.gguf", None, "q8_0")
    with pytest.raises(KeyboardInterrupt):
        squish.convert(*arguments, progress=progress, **inline(1 << 20))
    done = size_of(fetched)
    fetched.clear()
    opened_job.cache_clear()
    report = squish.convert(*arguments, **inline(1 << 20, resume=True))
    assert done + size_of(fetched) <= report.source_size + 2 * SLACK
    squish.convert(Handler.folder / "f32.safetensors", tmp_path / "serial.gguf", encode="q8_0")
    assert (tmp_path / "out.gguf").read_bytes() == (tmp_path / "serial.gguf").read_bytes()


def test_codes_of_a_late_panel_that_do_not_fit_end_a_job_as_they_end_a_serial_conversion(tmp_path: Path) -> None:
    squish.save(tmp_path / "q4_0.gguf", {"layer.weight": ARRAYS["wide.weight"]}, encode="q4_0")
    data = bytearray((tmp_path / "q4_0.gguf").read_bytes())
    data[-18:-16] = np.float16(30000).tobytes()  # the last scale: its offset is beyond f16
    (tmp_path / "q4_0.gguf").write_bytes(data)
    errors = []
    for more in ({}, inline(1 << 20)):
        with pytest.raises(TensorError) as caught:
            squish.convert(tmp_path / "q4_0.gguf", tmp_path / "mlx", "mlx", **more)
        errors.append((caught.value.code, caught.value.tensor, str(caught.value)))
    assert errors[0] == errors[1]
    assert errors[0][:2] == ("refused", "layer.weight")
    assert [path.name for path in tmp_path.iterdir()] == ["q4_0.gguf"]
