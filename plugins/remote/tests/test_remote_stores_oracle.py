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
    (folder / "config.json").write_text('{"model_type": "acme"}')
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


def test_the_hub_is_asked_once_and_read_at_a_commit(folder: Path) -> None:
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
        "hf://acme/gated/x.gguf": "denied", "hf://acme/none": "missing", "hf://acme/tiny/no.gguf": "missing",
        "hf://acme": "usage",
    }  # fmt: skip
    assert "Access to this model is restricted" in results["errors"]["hf://acme/gated/x.gguf"][1]
    assert "hf_s3cret" not in str(results["errors"])
