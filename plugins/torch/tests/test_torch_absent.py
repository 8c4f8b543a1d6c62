"""What holds without torch: names say what to install, and so does the command."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import squish_torch
from squish_cli import main

import squish_core as squish

pytestmark = [pytest.mark.alone, pytest.mark.skipif(find_spec("torch") is not None, reason="torch is installed here")]


def test_names_say_what_to_install() -> None:
    with pytest.raises(squish.MissingPluginError) as caught:
        squish_torch.from_pretrained
    assert caught.value.code == "not-installed"
    assert "torch" in caught.value.hint
    assert "cuda" not in str(caught.value).lower()


@pytest.mark.parametrize(
    "words",
    [
        ["run", "model.gguf", "--prompt", "Hello"],
        ["eval", "model.gguf", "--text", "text.txt"],
        ["activations", "model.gguf", "--text", "text.txt", "-o", "out.gguf"],
        ["tune", "model.gguf", "--target", "bpw=4.5", "--text", "text.txt"],
    ],
)
def test_the_commands_exist_and_say_what_to_install(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "not-installed"
    assert "`pip install torch transformers`" in error["hint"]


def test_other_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError):
        squish_torch.nothing


def test_the_message_is_as_a_user_reads_it() -> None:
    with pytest.raises(squish.MissingPluginError) as caught:
        squish_torch.from_pretrained
    assert str(caught.value) == (
        "squish-torch needs torch, which is not installed. Run `pip install torch` (a CPU build of torch is enough)."
    )


def test_the_tensors_of_a_file_need_torch(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    squish.save(path, {"w": np.ones((2, 32), np.float32)})
    with squish.open(path) as file, pytest.raises(squish.MissingPluginError) as caught:
        file.to_torch()
    assert caught.value.code == "not-installed"
    assert "`pip install torch`" in caught.value.hint


@pytest.mark.skip(reason="needs torch and transformers: `make oracles` runs these tests in an environment of their own")
def test_everything_else() -> None: ...
