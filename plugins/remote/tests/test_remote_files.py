"""Files by URL, from end to end: the public functions and the command line, with requests counted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from squish_cli import main
from squish_testing import expect_error

import squish_core as squish


@pytest.fixture
def model(tmp_path: Path, server: Any) -> Path:
    """A GGUF of 60 tensors, the server's `model.gguf` too."""
    random, path = np.random.default_rng(1), tmp_path / "model.gguf"
    tensors = {f"blk.{n}.ffn_up.weight": random.normal(size=(64, 256)).astype("f4") for n in range(60)}
    squish.save(path, tensors, encode="q8_0")
    server.files["model.gguf"] = path.read_bytes()
    return path


def test_a_file_is_listed_sliced_and_converted_by_its_url(model: Path, server: Any, tmp_path: Path) -> None:
    with squish.open(model) as local, squish.open(server.url("model.gguf")) as remote:
        assert (remote.format, list(remote), remote.path) == ("gguf", list(local), None)
        assert len(server.requests) == 2  # the first 64 KiB and the last 64 bytes
        server.forget()
        name = "blk.40.ffn_up.weight"
        np.testing.assert_array_equal(remote[name][3:5], local[name][3:5])
        start = local[name].spec.encodings[0].parts["data"].segments[0].offset
        assert [request.range for request in server.requests] == [f"bytes={start + 3 * 272}-{start + 5 * 272 - 1}"]
        assert server.sent == 2 * 272
        squish.convert(remote, tmp_path / "remote.safetensors", encode="f16")
        squish.convert(local, tmp_path / "local.safetensors", encode="f16")
    assert (tmp_path / "remote.safetensors").read_bytes() == (tmp_path / "local.safetensors").read_bytes()


@pytest.mark.parametrize(
    "arguments",
    [
        ("ls", "{url}"),
        ("info", "{url}"),
        ("info", "{url}", "blk.0.*"),
        ("verify", "{url}"),
        ("verify", "{url}", "--deep"),
        ("plan", "{url}", "blk.0.*"),
        ("diff", "{url}", "{path}"),
        ("convert", "{url}", "{out}"),
        ("bench", "{url}"),
    ],
    ids=" ".join,
)
def test_every_command_that_takes_a_file_takes_a_url(
    model: Path, server: Any, arguments: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = server.url("model.gguf").replace("//", "//user:passw0rd@") + "?signature=s3cret"
    places = {"url": url, "path": model, "out": tmp_path / "out.gguf"}
    assert main([*(argument.format(**places) for argument in arguments), "--json"]) == 0
    output = capsys.readouterr()
    json.loads(output.out)
    assert "passw0rd" not in output.out + output.err
    assert "s3cret" not in output.out + output.err
    assert all(request.headers["authorization"].startswith("Basic ") for request in server.requests)


def test_an_open_file_shows_no_secret(model: Path, server: Any) -> None:
    url = server.url("model.gguf").replace("//", "//user:passw0rd@") + "?signature=s3cret"
    with squish.open(url) as file:
        assert file.source.pin is not None
        shown = f"{file!r} {file.name} {file.source.pin} {file.source.filename} {file.summary()}"
        with pytest.raises(TypeError):
            file.source.__reduce__()
    assert "passw0rd" not in shown
    assert "s3cret" not in shown


def test_importing_the_core_and_listing_sources_imports_no_client() -> None:
    code = (
        "import sys, squish_core as squish\n"
        "entry = squish.registry().find('sources', id='http')[0]\n"
        "assert entry.info.schemes == ('http', 'https') and entry.info.options['deadline']\n"
        "assert not {'obstore', 'asyncio', 'numpy', 'fsspec'} & set(sys.modules), sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_cp_fetches_the_bytes_of_the_tensors_that_match(
    model: Path, server: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with squish.open(model) as local:
        first = local["blk.7.ffn_up.weight"].numpy()
        stored = local["blk.7.ffn_up.weight"].nbytes
    target = tmp_path / "layer.safetensors"
    server.forget()
    assert main(["cp", server.url("model.gguf"), str(tmp_path / "layer.gguf"), "--only", "blk.7.*", "--json"]) == 0
    assert server.sent <= 64 * 1024 + 64 + stored
    with squish.open(tmp_path / "layer.gguf") as part:
        assert list(part) == ["blk.7.ffn_up.weight"]
        np.testing.assert_array_equal(part["blk.7.ffn_up.weight"].numpy(), first)
    assert main(["cp", server.url("model.gguf"), str(target), "--only", "no.such"]) == 2
    assert main(["cp", server.url("model.gguf"), str(target), "--only", "blk.7.*"]) == 2
    assert "`squish convert --only` encodes them" in " ".join(capsys.readouterr().err.split())
    assert not target.exists()


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ("{web}", "read-only"), ("memory://out.gguf", "read-only"), ("hf://acme/tiny/out.gguf", "read-only"),
        ("s3://bucket", "usage"), ("s3://bucket/key.gguf?versionId=1", "usage"), ("gs:///key.gguf", "usage"),
    ],
)  # fmt: skip
def test_a_url_that_cannot_be_written_is_refused_before_the_source_is_read(
    model: Path, server: Any, capsys: pytest.CaptureFixture[str], target: str, code: str
) -> None:
    url = target.format(web=server.url("out.gguf"))
    assert main(["convert", server.url("model.gguf"), url, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == code
    assert len(server.requests) == 2  # the source's first and last bytes


def test_a_plan_of_a_remote_file_has_its_pin_and_no_secret(model: Path, server: Any, tmp_path: Path) -> None:
    url = server.url("model.gguf").replace("//", "//user:passw0rd@") + "?signature=s3cret"
    squish.convert(url, tmp_path / "out.safetensors", encode="f16", plan=tmp_path / "plan.json", dry_run=True)
    text = (tmp_path / "plan.json").read_text()
    (pin,) = json.loads(text)["source"]["files"]
    assert (pin["tag"], pin["size"], pin["url"]) == ('"one"', model.stat().st_size, server.url("model.gguf"))
    assert "passw0rd" not in text
    assert "s3cret" not in text


def test_the_message_about_a_reference_manifest_comes_before_any_request(server: Any, tmp_path: Path) -> None:
    """It may name any host and any range."""
    references = {f"w/c/{number}": [server.url("model.gguf"), number, 2**62] for number in range(20_000)}
    manifest = json.dumps({"version": 1, "refs": references})
    (tmp_path / "refs.json").write_text(manifest)
    server.files["refs.json"] = manifest.encode()
    targets = {
        str(tmp_path / "refs.json"): "lookalike", server.url("refs.json"): "lookalike",
        f"reference://{tmp_path}/refs.json": "usage", f"zip://x::reference://{tmp_path}/refs.json": "usage",
    }  # fmt: skip
    for target, code in targets.items():
        with expect_error(squish.SquishError, code=code, hint="zarr") as caught:
            squish.open(target)
        assert "reference manifest" in caught.value.message
    assert {request.path for request in server.requests} == {"refs.json"}


@pytest.mark.parametrize("options", ["digest=sha256", "encoding=zstd,digest=crc32c", "wire=2,encoding=zstd"])
def test_verify_fetches_each_byte_once(server: Any, tmp_path: Path, options: str) -> None:
    random = np.random.default_rng(0)
    tensors = {f"w{number}": random.normal(size=(500, 500)).astype("f4") for number in range(8)}
    squish.save(tmp_path / "m.zt", tensors, format=f"ztensor:{options}")
    data = bytearray((tmp_path / "m.zt").read_bytes())
    server.files["m.zt"] = bytes(data)
    with squish.open(server.url("m.zt"), source_options={"piece": 1_000_000}) as file:
        part = file["w3"].spec.encodings[0].parts["data"]
        server.forget()
        server.gather = 2
        report = squish.verify(file, deep=True)
        assert (report.ok, report.decoded, report.digests) == (True, 8, 8)
        assert server.sent <= len(data) + 8 * 65536
        assert server.most_in_flight > 1
        assert file["w3"].numpy()[0, 0] == tensors["w3"][0, 0]  # the caller's file is still open
    server.gather = 1
    data[part.segments[0].offset + part.segments[0].length // 2] ^= 1
    server.files["m.zt"], server.tag = bytes(data), '"two"'
    report = squish.verify(server.url("m.zt"), deep=True)
    assert {problem.code for problem in report.problems if problem.severity == "error"} & {"digest", "zstd"}


def test_traffic_says_what_was_fetched_and_not_used(model: Path, server: Any, tmp_path: Path) -> None:
    with squish.open(server.url("model.gguf")) as file:
        start = file.source.traffic()
        server.forget()
        file["blk.40.ffn_up.weight"][[0, 10]]
        once = file.source.traffic() - start
        assert (once.requests, once.fetched, once.unused) == (len(server.requests), server.sent, server.sent - 2 * 272)
        server.forget()
        report = squish.convert(file, tmp_path / "out.safetensors", encode="f16")
        assert report.notes[-1] == f"fetched {server.sent:,} bytes in 1 request"
        assert len(server.requests) == 1
    assert squish.open(model).source.traffic() is None


def test_a_remote_source_is_not_deleted(model: Path, server: Any, tmp_path: Path) -> None:
    with pytest.raises(squish.SquishError) as caught:
        squish.convert(server.url("model.gguf"), tmp_path / "out.safetensors", encode="f16", delete_source=True)
    assert caught.value.code == "delete"
    assert not (tmp_path / "out.safetensors").exists()
