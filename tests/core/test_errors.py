"""The text of errors: bounded in length, and without the secrets of an address."""

from __future__ import annotations

import json
import pickle
import time
from pathlib import Path

import pytest
from squish_cli import main

import squish_core as squish
from squish_core.errors import MissingPluginError, SquishError

ADDRESS = "https://user:pass/word@example.org:8080/model.gguf?signature=secret#fragment"
MODEL = Path(__file__).parents[2] / "plugins/gguf/tests/data/blocks.gguf"
SECRETS = ("user", "pass", "word", "secret", "fragment")


def secrets_in(text: str) -> list[str]:
    return [secret for secret in SECRETS if secret in text]


@pytest.mark.parametrize("field", ["message", "file", "expected", "found", "hint"])
def test_no_field_of_an_error_holds_the_secrets_of_an_address(field: str) -> None:
    error = SquishError(**{"message": "m", field: f"see {ADDRESS}"})
    for shown in (error, error.within(file=ADDRESS), pickle.loads(pickle.dumps(error))):
        assert not secrets_in(str(shown) + repr(shown) + repr(vars(shown)))
    assert getattr(error, field) == "see https://example.org:8080/model.gguf?..."


@pytest.mark.parametrize(
    "text", ["hf://org/model@main/x.gguf", "https://example.org/a", "C:/a@b", "s3://bucket:9000/a@b", "see a://b, c"]
)  # fmt: skip
def test_an_address_without_secrets_is_shown_as_written(text: str) -> None:
    assert SquishError("m", file=text).file == text


def test_opening_an_address_shows_no_secret() -> None:
    with pytest.raises(MissingPluginError) as caught:
        squish.open(ADDRESS, registry=squish.Registry(entry_points=tuple))
    assert (caught.value.code, caught.value.file) == ("not-installed", "https://example.org:8080/model.gguf?...")
    assert caught.value.__context__ is None


@pytest.mark.parametrize(
    "words",
    [
        ["info", ADDRESS],
        ["verify", ADDRESS, "--json"],
        ["edit", ADDRESS],
        ["cache", ADDRESS],
        ["convert", str(MODEL), ADDRESS, "--to", "gguf"],
    ],
)
def test_no_command_prints_the_secrets_of_an_address(
    words: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert not secrets_in("".join(capsys.readouterr()))


@pytest.mark.parametrize("field", ["message", "file", "tensor", "part", "expected", "found", "hint"])
def test_the_text_of_an_error_is_short_whatever_a_file_declares(field: str) -> None:
    value = "first" + "x\0" * (20_000_000 if field == "found" else 35_000) + "last"
    error, started = SquishError(**{"message": "m", field: value}), time.process_time()
    assert len(str(error)) < 8000
    assert time.process_time() - started < 1
    assert getattr(error, field) == value
    assert all(end in str(error) for end in ("first", "last"))


@pytest.mark.parametrize("command", ["verify", "info"])
def test_commands_shorten_the_findings_of_a_file(
    command: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    raw = json.dumps({"__metadata__": {"k" * 60_000: 1}}).encode()
    path = tmp_path / "a.safetensors"
    path.write_bytes(len(raw).to_bytes(8, "little") + raw)
    main([command, str(path)])
    assert max(map(len, capsys.readouterr().out.splitlines())) < 2000
