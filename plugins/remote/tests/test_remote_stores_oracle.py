"""S3 by moto, and the Hub by a stand-in that redirects: read by the clients that users have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import oracles
import pytest

import squish_core as squish

pytestmark = pytest.mark.oracle


def in_s3(folder: str) -> dict[str, Any]:
    import contextlib
    import os
    import pathlib

    import boto3
    from moto.server import ThreadedMotoServer

    import squish_core as squish

    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    os.environ |= {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "s3cret",
    }  # fmt: skip
    client = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"], region_name="us-east-1")
    client.create_bucket(Bucket="models")
    client.create_bucket(Bucket="plain")
    client.put_bucket_versioning(Bucket="models", VersioningConfiguration={"Status": "Enabled"})
    for path in pathlib.Path(folder).iterdir():
        client.put_object(Bucket="models", Key=f"tiny/{path.name}", Body=path.read_bytes())
    results: dict[str, Any] = {}
    with squish.open("s3://models/tiny/model.safetensors") as file:
        results["values"], results["assets"] = file["w"].numpy(), sorted(file.assets)
        results["rows"] = file["w"][[1, 50, 99]]
        results["pin"] = file.source.pin.to_dict()
    with squish.open("s3://models/tiny/") as file:
        results["folder"] = sorted(file)
    with squish.open("s3://models/tiny") as file:
        results["bare folder"] = sorted(file)

    def code(call: Any) -> str:
        try:
            call()
        except squish.SquishError as error:
            return f"{error.code}{' secret' if 's3cret' in str(error) else ''}"
        return "nothing"

    results["missing"] = code(lambda: squish.open("s3://models/tiny/no.gguf"))
    body = pathlib.Path(folder, "model.safetensors").read_bytes()
    client.put_object(Bucket="plain", Key="model.safetensors", Body=body)
    old = client.list_object_versions(Bucket="models", Prefix="tiny/model.safetensors")["Versions"][0]["VersionId"]
    file = squish.open("s3://models/tiny/model.safetensors")
    pinned = squish.open(f"s3://models/tiny/model.safetensors?versionId={old}")
    unversioned = squish.open("s3://plain/model.safetensors")
    for bucket, key in (("models", "tiny/model.safetensors"), ("plain", "model.safetensors")):
        client.put_object(Bucket=bucket, Key=key, Body=body[:-4] + b"\0\0\0\0")
    results["after"] = [code(lambda: unversioned["w"][50:60]), *(float(f["w"][99:100].sum()) for f in (file, pinned))]
    with contextlib.suppress(Exception):
        server.stop()
    return results


def into_s3(folder: str) -> dict[str, Any]:
    import concurrent.futures
    import contextlib
    import os
    import pathlib
    import threading
    from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

    import boto3
    from moto.server import DomainDispatcherApplication, create_backend_app

    import squish_core as squish

    class Server(WSGIServer):
        request_queue_size = 64

    class Quiet(WSGIRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    moto, broken = DomainDispatcherApplication(create_backend_app), []

    def application(environ: dict[str, Any], start_response: Any) -> Any:
        query = environ.get("QUERY_STRING", "")
        if broken and environ["REQUEST_METHOD"] == "PUT" and "partNumber=2&" in query:
            environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
            start_response(broken[0], [("Content-Length", "0")])
            return [b""]
        return moto(environ, start_response)

    server = make_server("127.0.0.1", 0, application, server_class=Server, handler_class=Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.environ |= {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}", "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "s3cret",
    }  # fmt: skip
    client = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"], region_name="us-east-1")
    client.create_bucket(Bucket="out")
    source, results = pathlib.Path(folder, "model.safetensors"), {}

    def state() -> tuple[list[str], int]:
        keys = [entry["Key"] for entry in client.list_objects_v2(Bucket="out").get("Contents", [])]
        return keys, len(client.list_multipart_uploads(Bucket="out").get("Uploads", []))

    def body(key: str) -> bytes:
        return client.get_object(Bucket="out", Key=key)["Body"].read()

    def failure(target: str, **options: Any) -> list[Any]:
        try:
            squish.convert(source, target, **options)
        except (squish.SquishError, KeyboardInterrupt) as error:
            return [getattr(error, "code", "interrupted"), "s3cret" in str(error), *state()]
        return ["nothing", False, *state()]

    def race(target: str, **options: Any) -> list[str]:
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            return sorted(future.result()[0] for future in [pool.submit(failure, target, **options) for _ in range(2)])

    def stopped(tensor: str, done: int, total: int | None) -> None:
        if done > 20 << 20:
            raise KeyboardInterrupt

    broken.append("403 Forbidden")
    results["denied midway"] = failure("s3://out/broken.gguf")
    broken.clear()
    results["stopped"] = failure("s3://out/stopped.gguf", progress=stopped)
    local = pathlib.Path(folder).parent
    for name in ("model.gguf", "model.zt", "model.gguf.zst"):
        squish.convert(source, local / name)
        report = squish.convert(source, f"s3://out/large/{name}")
        results[name] = [body(f"large/{name}") == (local / name).read_bytes(), report.size, report.target]
    results["small"] = squish.save("s3://out/small.safetensors", {"w": np.ones(4, "f4")}).size
    results["small again"] = failure("s3://out/small.safetensors")[:2]
    results["large again"] = failure("s3://out/large/model.gguf")[:2]
    results["prefix"] = failure("s3://out/large", to="npydir")[:2]
    results["replaced"] = failure("s3://out/small.safetensors", overwrite=True)[0]
    results["same"] = body("small.safetensors") == source.read_bytes()
    squish.convert(source, "s3://out/folder/", "hf")
    with squish.open("s3://out/folder/") as file:
        results["folder"] = [sorted(file), sorted(file.assets)]
    results["races"] = [race("s3://out/race.gguf"), *(race(f"s3://out/{n}.gguf", only="b") for n in range(4))]
    client.put_object(Bucket="out", Key="two.gguf.squish-lock", Body=b"{}")
    results["second writer"] = failure("s3://out/two.gguf")[:2]
    client.delete_object(Bucket="out", Key="two.gguf.squish-lock")
    results["state"] = state()
    with contextlib.suppress(Exception):
        server.shutdown()
    return results


def on_the_hub(folder: str) -> dict[str, Any]:
    import http.server
    import json
    import os
    import pathlib
    import threading

    commit, requests = "a" * 40, []
    files = {path.name: path.read_bytes() for path in pathlib.Path(folder).iterdir()}

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
            self.send_response(status)
            for key, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(key.replace("_", "-"), value)
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            requests.append((self.server.server_port, self.path, self.headers.get("Authorization")))
            pieces = self.path.partition("?")[0].strip("/").split("/")
            if pieces[:2] == ["api", "models"]:
                if pieces[3] == "gated":
                    return self.answer(
                        403, b"{}", X_Error_Code="GatedRepo", X_Error_Message="Access to this model is restricted."
                    )
                if pieces[3] != "tiny" or pieces[4:] not in ([], ["revision", "v1"]):
                    return self.answer(404, b"{}", X_Error_Code="RepoNotFound", X_Error_Message="Repository not found")
                siblings = [{"rfilename": name} for name in files]
                info = {"id": "acme/tiny", "modelId": "acme/tiny", "sha": commit, "siblings": siblings, "tags": []}
                return self.answer(200, json.dumps(info).encode(), Content_Type="application/json")
            if self.server is first:
                return self.answer(302, Location=f"http://localhost:{second.server_port}{self.path}")
            data = files.get(pieces[-1])
            if data is None or pieces[3] != commit:
                return self.answer(404)
            low, high = self.headers["Range"].removeprefix("bytes=").split("-")
            body = data[int(low) : int(high) + 1]
            span = f"bytes {low}-{int(low) + len(body) - 1}/{len(data)}"
            return self.answer(206, body, Content_Range=span, ETag='"x"')

    first, second = (http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) for _ in range(2))
    for server in (first, second):
        threading.Thread(target=server.serve_forever, daemon=True).start()
    os.environ |= {"HF_ENDPOINT": f"http://127.0.0.1:{first.server_port}", "HF_TOKEN": "hf_s3cret"}

    import squish_core as squish

    results: dict[str, Any] = {}
    for address in ("hf://acme/tiny", "hf://acme/tiny@v1/model.safetensors"):
        requests.clear()
        with squish.open(address) as file:
            results[address] = [file["w"].numpy(), file.name, sorted(file.assets)]
            results["version"] = file.source.member("model.safetensors").pin.version
        results["api requests"] = sum(path.startswith("/api") for _, path, _ in requests)
        results["tokens"] = sorted({(port == first.server_port, str(token)) for port, _, token in requests})

    def error(address: str) -> list[Any]:
        try:
            squish.open(address)
        except squish.SquishError as refusal:
            return [refusal.code, str(refusal)]
        return ["nothing"]

    addresses = ("hf://acme/gated/x.gguf", "hf://acme/none", "hf://acme/tiny/no.gguf", "hf://acme")
    results["errors"] = {address: error(address) for address in addresses}
    return results


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    values = np.arange(100_000, dtype="f4").reshape(100, 1000)
    squish.save(folder / "model.safetensors", {"w": values})
    (folder / "config.json").write_text('{"vocab_size": 8}')
    return folder


def test_s3_is_read_with_pins_versions_and_listings(folder: Path) -> None:
    values = np.arange(100_000, dtype="f4").reshape(100, 1000)
    results = oracles.peer("stores").run(in_s3, folder=str(folder))
    np.testing.assert_array_equal(results["values"], values)
    np.testing.assert_array_equal(results["rows"], values[[1, 50, 99]])
    assert results["assets"] == ["config.json"]
    assert results["folder"] == results["bare folder"] == ["w"]
    assert results["pin"]["url"] == "s3://models/tiny/model.safetensors"
    assert results["pin"]["tag"]
    assert results["missing"] == "missing"
    assert results["after"] == ["changed", *[float(values[99].sum())] * 2]  # a version stays readable


def test_s3_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    values = np.arange(10_000_000, dtype="f4").reshape(100, 100_000)  # 40 MB: five parts
    squish.save(tmp_path / "tiny" / "model.safetensors", {"w": values, "b": values[0]})
    (tmp_path / "tiny" / "config.json").write_text('{"vocab_size": 8}')
    results = oracles.peer("stores").run(into_s3, folder=str(tmp_path / "tiny"))
    assert results["denied midway"] == ["denied", False, [], 0]  # no object, and no part of one
    assert results["stopped"] == ["interrupted", False, [], 0]
    for name in ("model.gguf", "model.zt", "model.gguf.zst"):
        is_same, size, target = results[name]
        assert (is_same, size, target) == (True, (tmp_path / name).stat().st_size, f"s3://out/large/{name}")
    assert results["small again"] == results["large again"] == results["prefix"] == ["exists", False]
    assert (results["replaced"], results["same"]) == ("nothing", True)
    assert results["folder"] == [["b", "w"], ["config.json"]]
    for one, other in results["races"]:  # one wins
        assert (one in ("exists", "locked"), other) == (True, "nothing")
    assert results["second writer"] == ["locked", False]
    keys, uploads = results["state"]
    assert uploads == 0
    assert not [key for key in keys if key.startswith("two") or key.endswith("lock")]


@pytest.mark.peers
def test_the_hub_is_queried_once_and_read_at_a_commit(folder: Path) -> None:
    values = np.arange(100_000, dtype="f4").reshape(100, 1000)
    results = oracles.peer("stores").run(on_the_hub, folder=str(folder))
    for address in ("hf://acme/tiny", "hf://acme/tiny@v1/model.safetensors"):
        tensors, name, assets = results[address]
        np.testing.assert_array_equal(tensors, values)
        assert name.startswith(f"hf://acme/tiny@{'a' * 40}/")
        assert assets == ["config.json"]
    assert results["version"] == "a" * 40
    assert results["api requests"] == 1
    assert results["tokens"] == [[False, "None"], [True, "Bearer hf_s3cret"]]
    codes = {address: answer[0] for address, answer in results["errors"].items()}
    assert codes == {
        "hf://acme/gated/x.gguf": "denied",
        "hf://acme/none": "missing",
        "hf://acme/tiny/no.gguf": "missing",
        "hf://acme": "usage",
    }
    assert "Access to this model is restricted" in results["errors"]["hf://acme/gated/x.gguf"][1]
    assert "hf_s3cret" not in str(results["errors"])
