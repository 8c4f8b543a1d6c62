"""`squish serve`: a checkpoint over HTTP as another format, nothing written."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from squish_cli.app import run
from squish_convert.virtual import ImageReader
from squish_remote.serve import ImageServer, byte_range

import squish_core as squish

PATIENCE = 120
"""Seconds for what takes a moment, however loaded the machine is."""
ARRAYS = {
    "up.weight": np.random.default_rng(3).standard_normal((64, 256), np.float32),
    "norm.weight": np.ones(256, np.float32),
}


class Served:
    """An image server in a thread."""

    def __init__(self, server: ImageServer) -> None:
        self.names, self.port = list(server.files), 0
        self._server, self._ready, self._stop = server, threading.Event(), asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._ready.wait(PATIENCE)

    def _run(self) -> None:
        self._loop.run_until_complete(self._main())
        self._loop.close()

    async def _main(self) -> None:
        runner = web.AppRunner(self._server.application())
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.port = runner.addresses[0][1]
        self._ready.set()
        await self._stop.wait()
        await runner.cleanup()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def get(self, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request(method, path, headers={key.replace("_", "-"): value for key, value in headers.items()})
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("served")
    squish.save(path / "model.safetensors", ARRAYS)
    squish.convert(path / "model.safetensors", path / "model.gguf", encode="q4_0")
    return path


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Served]:
    with squish.open(folder / "model.safetensors") as file:
        server = Served(ImageServer(file, squish.as_format(file, "gguf", "q4_0")))
        yield server
        server.close()


def test_the_whole_file_is_what_convert_writes(served: Served, folder: Path) -> None:
    status, headers, body = served.get("/model.gguf")
    assert (status, body) == (200, (folder / "model.gguf").read_bytes())
    assert headers["Accept-Ranges"] == "bytes"
    assert served.get("/model.gguf", "HEAD")[1]["Content-Length"] == str(len(body))


@pytest.mark.parametrize(
    "range_", ["bytes=0-0", "bytes=100-4000", "bytes=4000-", "bytes=-5", "bytes=-999999999", "bytes=5-999999999"]
)
def test_one_range_is_answered_with_it(served: Served, folder: Path, range_: str) -> None:
    data = (folder / "model.gguf").read_bytes()
    status, headers, body = served.get("/model.gguf", Range=range_)
    start, stop = byte_range(range_, len(data)) or (0, 0)
    assert (status, body) == (206, data[start:stop])
    assert headers["Content-Range"] == f"bytes {start}-{stop - 1}/{len(data)}"


@pytest.mark.parametrize("range_", ["bytes=0-1,4-5", "bytes=", "bytes=b-a", "lines=0-1", "bytes=5-2"])
def test_a_range_that_is_several_or_unreadable_is_ignored(served: Served, folder: Path, range_: str) -> None:
    status, _, body = served.get("/model.gguf", Range=range_)
    assert (status, len(body)) == (200, (folder / "model.gguf").stat().st_size)


def test_a_range_past_the_end_is_416_with_the_size(served: Served, folder: Path) -> None:
    size = (folder / "model.gguf").stat().st_size
    status, headers, _ = served.get("/model.gguf", Range=f"bytes={size}-")
    assert (status, headers["Content-Range"]) == (416, f"bytes */{size}")


def test_a_range_of_head_is_ignored(served: Served, folder: Path) -> None:
    status, headers, body = served.get("/model.gguf", "HEAD", Range="bytes=0-9")
    assert (status, headers["Content-Length"], body) == (200, str((folder / "model.gguf").stat().st_size), b"")


def test_the_tag_is_strong_and_obeyed(served: Served) -> None:
    tag = served.get("/model.gguf", "HEAD")[1]["ETag"]
    assert tag.startswith('"')
    for tags in (tag, f"W/{tag}", f'"other", {tag}', "*"):  # If-None-Match compares weakly, the others strongly
        assert served.get("/model.gguf", If_None_Match=tags)[0] == 304
    assert served.get("/model.gguf", If_None_Match='"other"', Range="bytes=0-3")[0] == 206
    assert served.get("/model.gguf", If_Match=f"W/{tag}")[0] == 412
    assert served.get("/model.gguf", If_Range=f"W/{tag}", Range="bytes=0-3")[0] == 200
    assert served.get("/model.gguf", If_Match=tag, Range="bytes=0-3")[0] == 206
    assert served.get("/model.gguf", If_Match='"other"')[0] == 412
    assert served.get("/model.gguf", If_Range='"other"', Range="bytes=0-3")[0] == 200


@pytest.mark.parametrize(
    "path", ["/", "/model.safetensors", "/../model.safetensors", "/%2e%2e/model.gguf", "/model.gguf/"]
)
def test_nothing_else_is_reachable(served: Served, path: str) -> None:
    assert served.get(path)[0] == 404


def test_a_header_of_a_mebibyte_is_refused(served: Served) -> None:
    with pytest.raises((OSError, http.client.HTTPException, AssertionError)):
        assert served.get("/model.gguf", X_Long="x" * (1 << 20))[0] < 400
    assert served.get("/model.gguf", "HEAD")[0] == 200


def test_a_hundred_clients_read_backwards(served: Served, folder: Path) -> None:
    data = (folder / "model.gguf").read_bytes()

    def read(number: int) -> bool:
        start = len(data) - 60 * (number + 1)
        return served.get("/model.gguf", Range=f"bytes={start}-{start + 59}")[2] == data[start : start + 60]

    with ThreadPoolExecutor(100) as clients:
        assert all(clients.map(read, range(100)))


def test_our_own_reader_opens_the_address(served: Served, folder: Path) -> None:
    with (
        squish.open(f"http://127.0.0.1:{served.port}/model.gguf") as remote,
        squish.open(folder / "model.gguf") as real,
    ):
        np.testing.assert_array_equal(remote["up.weight"].numpy(), real["up.weight"].numpy())


def test_each_file_of_a_folder_has_an_address(folder: Path) -> None:
    with squish.open(folder / "model.safetensors") as file:
        server = Served(ImageServer(file, squish.as_format(file, "safetensors:max_shard_size=40KB")))
        try:
            assert len(server.names) == 3
            assert all(server.get(f"/{name}")[0] == 200 for name in server.names)
        finally:
            server.close()


def test_a_source_that_changes_is_an_error_and_never_other_bytes(tmp_path: Path) -> None:
    squish.save(tmp_path / "model.safetensors", ARRAYS)
    with squish.open(tmp_path / "model.safetensors") as file:
        server = Served(ImageServer(file, squish.as_format(file, "gguf")))
        try:
            assert server.get("/model.gguf", "HEAD")[0] == 200
            os.utime(tmp_path / "model.safetensors", ns=(1, 1))
            status, headers, _ = server.get("/model.gguf", Range="bytes=0-3")
            assert (status, headers["Connection"]) == (503, "close")
        finally:
            server.close()


def test_an_answer_under_way_is_cut_where_the_source_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    squish.save(tmp_path / "model.safetensors", ARRAYS)
    chunks = ImageReader.chunks

    def changed_after_one(*arguments: Any) -> Iterator[Any]:
        for chunk in chunks(*arguments):
            yield chunk
            os.utime(tmp_path / "model.safetensors", ns=(1, 1))

    monkeypatch.setattr(ImageReader, "chunks", changed_after_one)
    with squish.open(tmp_path / "model.safetensors") as file:
        server = Served(ImageServer(file, squish.as_format(file, "gguf")))
        try:
            with pytest.raises((http.client.IncompleteRead, ConnectionError)):
                server.get("/model.gguf")
            assert server.get("/model.gguf")[0] == 503
        finally:
            server.close()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--to", "nosuch"], "no format 'nosuch'"), ([], "'--to'"),
        (["--to", "ztensor:encoding=zstd"], "its bytes depend on those of the tensors"),
        (["--to", "gguf", "--port", "{used}"], "in use"), (["--to", "gguf", "--port", "65536"], "'--port'"),
        (["--to", "gguf", "--host", "host.invalid"], "cannot listen"),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_refused(
    folder: Path, served: Served, options: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    filled = [option.format(used=served.port) for option in options]
    assert run(["serve", str(folder / "model.safetensors"), *filled]) == 2
    assert why in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_the_command_prints_its_address_first(folder: Path, tmp_path: Path, words: tuple[str, ...]) -> None:
    """It can be opened as it is printed, whatever the file is called."""
    source = tmp_path / "my model #1.safetensors"
    source.write_bytes((folder / "model.safetensors").read_bytes())
    command = [sys.executable, "-m", "squish_core", "serve", str(source), "--to", "gguf", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        if words:
            document = json.loads(address)
            assert list(document) == ["schema", "file", "format", "urls"]
            assert (document["schema"], document["format"]) == ("squish/serve/1", "gguf")
            [address] = document["urls"]
        with squish.open(address) as file:
            np.testing.assert_array_equal(file["up.weight"].numpy(), ARRAYS["up.weight"])
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE)


def test_fsspec_reads_the_same_bytes(folder: Path) -> None:
    import fsspec

    options: dict[str, Any] = {"source": folder / "model.safetensors", "format": "gguf", "encode": "q4_0"}
    data = (folder / "model.gguf").read_bytes()
    with fsspec.open("squish://model.gguf", **options) as file:
        assert file.read() == data
        file.seek(-7, 2)
        assert file.read(3) == data[-7:-4]
    system = fsspec.filesystem("squish", **options)
    assert system.ls("", detail=False) == ["model.gguf"]
    assert system.cat_file("model.gguf", 3, 9) == data[3:9]
    with pytest.raises(FileNotFoundError):
        system.info("other")
