"""What people type: each wrong line is answered by an error that names a command, and the command runs."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("typer")

from squish_cli import main

import squish_core as squish

COMMAND = re.compile(r"`(?:cat > (?P<input>\S+) && )?(?P<command>squish .+?)(?: && cat (?P<output>\S+))?`")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of small models and other files."""
    folder = tmp_path_factory.mktemp("models")
    rng = np.random.default_rng(0)
    tensors = {
        "token_embd.weight": rng.standard_normal((8, 32), np.float32),
        "blk.0.ffn_up.weight": rng.standard_normal((64, 32), np.float32),
    }
    for name in ("model.gguf", "m.gguf", "m.safetensors", "model.zt", "m.zt", "one/a.gguf", "two/a.gguf", "two/b.zt"):
        squish.save(folder / name, tensors)
    (folder / "empty").mkdir()
    return folder


@pytest.fixture
def run(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a command line in a copy of the folder; gives code, out, err."""
    import shutil

    shutil.copytree(models, tmp_path / "w")
    monkeypatch.chdir(tmp_path / "w")

    def line(text: str) -> Any:
        code = main(shlex.split(text))
        out, err = capsys.readouterr()
        return SimpleNamespace(code=code, out=out, err=err)

    return line


WRONG = [
    # commands of other tools
    ("quantize m.gguf out.gguf q8_0", "squish convert m.gguf out.gguf --encode q8_0"),
    ("quantize m.gguf Q8_0", "squish convert m.gguf m-q8_0.gguf --encode q8_0"),
    ("quantize m.gguf", "squish convert m.gguf m-q8_0.gguf --encode q8_0"),
    ("quantize", "squish convert --help"),
    ("dequantize m.gguf", "squish convert m.gguf m-f16.gguf --encode f16"),
    ("stat m.gguf", "squish info m.gguf"),
    ("dump m.gguf", "squish info m.gguf"),
    ("inspect m.gguf --json", "squish info m.gguf --json"),
    ("tree m.gguf", "squish ls m.gguf"),
    ("head m.gguf", "squish ls m.gguf"),
    ("list m.gguf", "squish ls m.gguf"),
    ("checksum m.gguf", "squish hash m.gguf"),
    ("check m.gguf", "squish verify m.gguf"),
    ("compare m.gguf m.zt", "squish diff m.gguf m.zt"),
    ("join m.gguf out.gguf", "squish convert m.gguf out.gguf"),
    ("fuse", "squish merge --help"),
    ("split m.safetensors", "squish convert m.safetensors m-split --to safetensors:max_shard_size=5GB"),
    ("copy m.gguf out.gguf", "squish cp m.gguf out.gguf"),
    ("explain m.gguf", "squish plan m.gguf"),
    ("requirements m.gguf", "squish needs m.gguf"),
    ("format gguf", "squish formats gguf"),
    ("verfiy m.gguf", "squish --help"),
    ("frobnicate", "squish --help"),
    # options of other tools
    ("convert m.gguf -o out.zt", "squish convert m.gguf out.zt"),
    ("convert m.gguf --outfile=out.zt", "squish convert m.gguf out.zt"),
    ("convert m.gguf out.zt --quantize q8_0", "squish convert m.gguf out.zt --encode q8_0"),
    ("convert m.gguf out.gguf --outtype=f16", "squish convert m.gguf out.gguf --encode=f16"),
    ("convert m.gguf out.zt q8_0", "squish convert m.gguf out.zt --encode q8_0"),
    ("convert m.gguf out.zt --include '*ffn*'", "squish convert m.gguf out.zt --only '*ffn*'"),
    ("plan m.gguf --device cpu", "squish plan m.gguf --backend cpu"),
    ("info m.gguf --layers", "squish info --help"),
    # what is no file
    ("info -", "squish info model.bin"),
    ("convert - out.zt", "squish convert model.bin out.zt"),
    ("convert m.gguf -", "squish convert m.gguf out.zt"),
    ("info owner/repo", "squish info hf://owner/repo"),
    ("owner/repo", "squish info hf://owner/repo"),
    ("ls huggingface.co/owner/repo", "squish ls hf://owner/repo"),
    ("convert owner/repo out.gguf", "squish convert hf://owner/repo out.gguf"),
    ("info two", "squish info two/a.gguf"),
    # targets
    ("convert m.gguf out.bin", "squish convert m.gguf out.bin --to gguf"),
    ("convert m.gguf mlx", "squish convert m.gguf m-mlx --to mlx"),
    ("convert m.gguf model-mlx", "squish convert m.gguf model-mlx --to mlx"),
    ("convert m.gguf out.mlx", "squish convert m.gguf out.mlx --to mlx"),
    ("convert m.safetensors gguf", "squish convert m.safetensors m.gguf"),
    ("convert m.gguf", "squish convert m.gguf m.zt"),
    # a command used wrongly
    ("edit m.gguf", "squish edit --help"),
    ("info", "squish info model.gguf"),
    ("diff m.gguf", "squish diff model.gguf model.zt"),
    ("codecs q4_kk", "squish codecs"),
    ("plugins nobody", "squish plugins"),
    ("run m.gguf", "squish run --help"),
    ("cache lst", "squish cache --help"),
    ("needs", "squish needs model.gguf --backend cpu"),
    ("matrix", "squish matrix squizd"),
]


@pytest.mark.parametrize(("line", "command"), WRONG, ids=[line for line, _ in WRONG])
def test_a_wrong_line_is_answered_with_a_command_that_runs(run: Any, line: str, command: str) -> None:
    answer = run(line)
    assert answer.code == 2
    assert answer.err.startswith("error: ") or "--json" in line
    commands = {match["command"]: match for match in COMMAND.finditer(answer.err + answer.out)}
    assert command in commands
    for text, match in commands.items():
        if match["input"]:
            Path(match["input"]).write_bytes(Path("m.gguf").read_bytes())
        if "hf://" not in text and not text.startswith("squish run model"):
            ran = run(text.removeprefix("squish "))
            assert ran.code == 0, ran.err
        assert not match["output"] or Path(match["output"]).exists()


RIGHT = [
    ("m.gguf", "info m.gguf"), ("ls one", "ls one/a.gguf"), ("./m.gguf", "info ./m.gguf"),
    ("--json m.gguf", "info m.gguf --json"),
    ("m.gguf *ffn*", "info m.gguf *ffn*"), ("help", "--help"), ("help ls", "ls --help"), ("-V", "--version"),
    ("version", "--version"), ("cache", "cache list"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "meant"), RIGHT, ids=[line for line, _ in RIGHT])
def test_a_short_line_is_understood(run: Any, line: str, meant: str) -> None:
    answer, expected = run(line), run(meant)
    assert (answer.code, answer.out, answer.err) == (0, expected.out, "")


def test_a_file_with_the_name_of_a_command_is_no_file(run: Any) -> None:
    Path("formats").write_bytes(Path("m.gguf").read_bytes())
    Path("edit").write_bytes(Path("m.gguf").read_bytes())
    assert run("formats").out.startswith("id ")
    assert "Missing argument" in run("edit").err
    assert run("./formats").out.startswith("file ")


@pytest.mark.parametrize(("line", "kind"), [("codecs q4_k", "ggml.q4_k"), ("codecs ggml", "ggml.q8_0"),
    ("codecs mixed", "mixed"), ("backends cpu", "squish-cpu"), ("plugins gguf", "squish-gguf")])  # fmt: skip
def test_a_list_may_be_narrowed_to_a_name(run: Any, line: str, kind: str) -> None:
    answer = run(line)
    assert (answer.code, kind in answer.out, "onnx" in answer.out) == (0, True, False)
    assert json.loads(run(f"{line} --json").out)


VARIABLES = [
    ("SQUISH_THREADS", "many"), ("SQUISH_THREADS", "0"), ("SQUISH_THREADS", "-1"), ("SQUISH_CACHE_SIZE", "1GB"),
    ("SQUISH_LIMITS", "tensors"), ("SQUISH_LIMITS", "tensor=3"), ("SQUISH_SOURCE", "deadline"),
    ("SQUISH_CPU_THREADS", "0"), ("SQUISH_CPU_INSTRUCTIONS", "sse"), ("SQUISH_METAL", "gpu"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), VARIABLES, ids=[f"{name}={value}" for name, value in VARIABLES])
@pytest.mark.parametrize("line", ["ls m.gguf", "formats"])
def test_a_variable_is_checked_when_a_command_starts(
    run: Any, monkeypatch: pytest.MonkeyPatch, line: str, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    answer = run(line)
    assert answer.code == 2
    assert answer.err.startswith(f"error: {name} is invalid")


def test_a_mistyped_variable_is_a_warning(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQUISH_THREAD", "4")
    monkeypatch.setenv("SQUISH_UNRELATED", "4")
    answer = run("ls m.gguf")
    assert (answer.code, answer.err) == (0, "warning: SQUISH_THREAD is not used; did you mean SQUISH_THREADS?\n")


def test_a_command_in_an_error_is_on_one_line(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    lines = run("convert m.gguf -o some/folder/with/a/long/name/out.zt").err.splitlines()
    assert "  `squish convert m.gguf some/folder/with/a/long/name/out.zt`." in lines


@pytest.mark.parametrize("width", [20, 30, 49])
def test_ls_on_a_narrow_terminal_has_the_name_on_its_own_line(
    run: Any, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    lines = run("ls m.gguf").out.splitlines()
    assert {"token_embd.weight", "blk.0.ffn_up.weight"} <= set(lines)
    assert max(map(len, lines)) <= max(width, len("blk.0.ffn_up.weight"))
    assert "[8, 32] f32 32.00 1.024 kB" in " ".join(" ".join(lines).split())
