"""No command, result or error shows the password or the signature of an address, whatever the server answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from squish_cli import app, main

import squish_core as squish

NAME = "model.safetensors"
SECRETS = ("hunter2", "s1gnature", "fragm3nt")
ADDRESS = "{url}?X-Signature=s1gnature#fragm3nt"
FAULTS = {
    "missing": (NAME, "404"),
    "denied": (NAME, "403"),
    "refused": (NAME, "400"),
    "ranges ignored": (NAME, "ignores"),
    "another range": (NAME, "shifts"),
    "no weights": ("page.html", "ok"),
    "a damaged file": ("damaged.safetensors", "ok"),
    "a sound file": (NAME, "ok"),
}
COMMANDS: dict[str, list[list[str]]] = {
    "ls": [["ls", "URL"]],
    "info": [["info", "URL"], ["info", "URL", "w"], ["info", "URL", "--format", "gguf"]],
    "plan": [["plan", "URL"], ["plan", "URL", "w", "--backend", "numpy"]],
    "verify": [
        ["verify", "URL"],
        ["verify", "URL", "--deep"],
        ["verify", "URL", "LOCAL"],
        ["verify", "URL", "--key", "text.txt"],
        ["verify", "URL", "--key", "text.txt", "--signature", "text.txt"],
    ],
    "diff": [["diff", "URL", "LOCAL"], ["diff", "LOCAL", "URL"]],
    "convert": [
        ["convert", "URL", "out.gguf"],
        ["convert", "URL", "out.gguf", "--dry-run"],
        ["convert", "LOCAL", "URL"],
    ],
    "cp": [["cp", "URL", "out.safetensors"]],
    "hash": [["hash", "URL", "--manifest", "manifest.json"], ["hash", "URL", "--sign", "text.txt"]],
    "prove": [["prove", "LOCAL", "URL"]],
    "merge": [["merge", "URL", "LOCAL", "-o", "out.gguf"], ["merge", "LOCAL", "URL", "-o", "out.gguf"]],
    "fit": [["fit", "URL", "--memory", "1GB"]],
    "card": [["card", "URL", "--base", "LOCAL"]],
    "report": [["report", "URL", "--values"], ["report", "LOCAL", "URL"]],
    "browse": [["browse", "URL", "--json"]],
    "bench": [["bench", "URL"]],
    "needs": [["needs", "URL"], ["needs", "URL", "--backend", "numpy"], ["stat", "URL"], ["URL"]],
    "check-model": [["check-model", "URL", "--for", engine] for engine in ("llama.cpp", "mlx", "transformers")],
    "refs": [["refs", "URL", "refs.json"]],
    "edit": [["edit", "URL", "--remove", "w"]],
    "cache": [["cache", "build", "URL", "--tier", "4bit"]],
    "run": [["run", "URL", "--prompt", "hello"]],
    "eval": [["eval", "URL", "--text", "text.txt"]],
    "activations": [["activations", "URL", "--text", "text.txt", "-o", "imatrix.gguf"]],
    "tune": [["tune", "URL", "--target", "bpw=4", "--text", "text.txt"]],
    "serve": [["serve", "URL", "--to", "nonsense"]],
    "doctor": [["doctor", "URL"]],
}
WITHOUT_FILES = {
    "schema", "formats", "codecs", "backends", "plugins", "matrix", "new-plugin", "families", "config", "explain",
    "install",
}  # fmt: skip


def secrets_in(text: str) -> list[str]:
    return [secret for secret in SECRETS if secret in text]


def model() -> bytes:
    header = json.dumps({"w": {"dtype": "F32", "shape": [4, 32], "data_offsets": [0, 512]}}).encode()
    return len(header).to_bytes(8, "little") + header + np.arange(128, dtype="<f4").tobytes()


@pytest.fixture
def address(server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """The address, with a password and a signature, under which the server answers with a fault."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "local.safetensors").write_bytes(model())
    (tmp_path / "text.txt").write_text("some words")
    server.files = {NAME: model(), "page.html": b"<html>no</html>", "damaged.safetensors": model()[:200]}

    def with_secrets(fault: str) -> str:
        url = server.url(*FAULTS[fault]).replace("http://", "http://me:hunter2@")
        return ADDRESS.format(url=url)

    return with_secrets


def test_every_command_is_here_or_takes_no_file() -> None:
    from typer.main import get_command

    assert set(get_command(app.build([])).commands) <= set(COMMANDS) | WITHOUT_FILES  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("fault", "as_json"), [*((fault, False) for fault in FAULTS), ("denied", True), ("a sound file", True)]
)
def test_no_command_shows_a_secret(
    fault: str, as_json: bool, address: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    shown = {}
    for lines in COMMANDS.values():
        for line in lines:
            words = [{"URL": address(fault), "LOCAL": "local.safetensors"}.get(word, word) for word in line]
            main([*words, *(["--json"] if as_json else [])])
            if found := secrets_in("".join(capsys.readouterr())):
                shown[" ".join(line)] = found
    assert not shown
    written = [path for path in Path().rglob("*") if path.is_file() and secrets_in(path.read_bytes().decode("latin1"))]
    assert not written


@pytest.mark.parametrize("fault", FAULTS)
def test_no_result_or_error_of_a_call_holds_a_secret(fault: str, address: Callable[[str], str]) -> None:
    url = address(fault)
    calls: list[Callable[[], Any]] = [
        lambda: squish.open(url),
        lambda: squish.verify(url),
        lambda: squish.verify(url, deep=True).to_dict(),
        lambda: squish.diff(url, "local.safetensors"),
        lambda: squish.diff("local.safetensors", url),
        lambda: squish.convert(url, "out.gguf", dry_run=True),
        lambda: squish.convert("local.safetensors", url),
    ]
    for call in calls:
        try:
            result = call()
        except squish.SquishError as error:
            result = (error, vars(error))
        assert not secrets_in(f"{result} {result!r}")
