"""What Tab offers, from the table that is shipped, and how `--install-completion` installs the shells' scripts."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("typer")

from squish_cli import complete, main, shells, tensor_names

import squish_core as squish

DATA = Path(__file__).parents[1] / "data"
SHIPPED: dict[str, Any] = json.loads(Path(complete.TABLE).read_text("utf-8"))


def offered(line: str) -> list[str]:
    words, _ = complete.split(line, "")
    return [candidate for candidate, _ in complete.complete(words[1:], SHIPPED)[1]]


@pytest.mark.parametrize(
    ("line", "candidates"),
    [
        ("squish conv", ["convert"]),
        ("squish cache ", ["build", "clear", "list"]),
        ("squish cache c", ["clear"]),
        ("squish help conv", ["convert"]),
        ("squish --vers", ["--version"]),
        ("squish --show-completion z", ["zsh"]),
        ("squish ls --so", ["--sort"]),
        ("squish ls --sort ", ["bits", "file", "name", "size"]),
        ("squish ls --sort size --so", []),
        ("squish ls a.gguf --sort=s", ["--sort=size"]),
        ("squish convert a b --enc", ["--encode"]),
        ("squish convert a b --encode q4_0 --enc", ["--encode"]),
        ("squish convert a b --encode q4_k", ["q4_k", "q4_k_m", "q4_k_s"]),
        ("squish convert a b --encode '*embed*=kee", ["*embed*=keep"]),
        ("squish convert a b --to mlp", ["mlpackage"]),
        ("squish convert a b --to=sq", ["--to=squizd"]),
        ("squish convert a b --to safetensors:max", ["safetensors:max_shard_size="]),
        ("squish convert a b --names ", ["gguf", "hf", "keep"]),
        ("squish convert a b --part vis", ["vision"]),
        ("squish convert a b --scheduler ", ["dask", "local"]),
        ("squish convert a b --res", ["--resume", "--resume="]),
        ("squish plan a --backend ", ["ane", "cpu", "cuda", "metal", "numpy"]),
        ("squish plan a --op lin", ["linear"]),
        ("squish run m --prompt ", []),
        ("squish check-model m --for ml", ["mlx"]),
        ("squish families qwen3v", ["qwen3vl", "qwen3vl.vision", "qwen3vlmoe"]),
        ("squish formats gg", ["gguf"]),
        ("squish plugins squish-z", ["squish-zstd", "squish-ztensor"]),
        ("squish config get cpu_t", ["cpu_threads"]),
        ("squish schema conv", ["convert"]),
        ("squish explain miss", ["missing", "missing-tensor"]),
        ("squish nothing ", []),
    ],
)
def test_the_last_word_is_completed(line: str, candidates: list[str]) -> None:
    assert offered(line) == candidates


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("squish ls s", ["sample.gguf", "sample.npydir/", "sample.onnx", "sample.safetensors", "sample.squizd"]),
        ("squish sample.g", ["sample.gguf"]),
        ("squish doctor ", ["sample.npydir/"]),
        ("squish convert a b --imatrix READ", ["README.md"]),
        ("squish convert a b --family ", ["sample.npydir/"]),
        ("squish ls ./sample.z", ["./sample.zt"]),
    ],
)
def test_files_are_offered_by_suffix(line: str, names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(DATA)
    assert [each for each in offered(line) if each in names] == names
    assert "make_samples.py" not in offered(line)


@pytest.mark.parametrize("sample", sorted(DATA.glob("sample.*")), ids=lambda path: path.suffix)
def test_names_of_tensors_are_those_of_the_file(sample: Path) -> None:
    with squish.open(str(sample)) as file:
        names = list(file)
    assert sorted(tensor_names.tensor_names(str(sample))) == sorted(names)
    assert set(offered(f"squish ls {sample} ")) == set(names)
    assert set(offered(f"squish convert {sample} out --only ")) == set(names)
    first = names[0]
    assert f"{first}=" in offered(f"squish convert {sample} out --encode {first[:-1]}")


@pytest.mark.parametrize("data", [b"", b"GGUF", b"GGUF\3\0\0\0" + b"\xff" * 16, b"\xff" * 8 + b"{", b"no weights here"])
def test_a_damaged_file_has_no_names(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "m.gguf").write_bytes(data)
    assert tensor_names.tensor_names(str(tmp_path / "m.gguf")) == []


@pytest.mark.parametrize(
    ("line", "start"),
    [("squish a --to=gg", 5), ("squish 'a=b", 0), ("squish a='b", 2), ("squish a\\ b", 0), ("squish gguf:v", 5)],
)
def test_bash_completes_the_part_after_a_break(line: str, start: int) -> None:
    assert complete.split(line, "=:")[1] == start


def answer_of(*argv: str, **environment: str) -> list[str]:
    settings = {**os.environ, "_SQUISH_COMPLETE": "bash", "_SQUISH_BREAKS": "=:", **environment}
    command = [sys.executable, "-m", "squish_core", *argv]
    return subprocess.run(command, env=settings, capture_output=True, text=True, check=True).stdout.splitlines()


def test_bash_gets_no_name_that_it_would_run(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    header = json.dumps({name: {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]} for name in ("a$(id)", "a.b")})
    path.write_bytes(len(header).to_bytes(8, "little") + header.encode())
    assert answer_of(f"squish ls {path} a") == ["words", "a.b"]
    assert answer_of(f"squish convert {path} b --encode '*embed*=kee") == ["words", "*embed*=keep"]
    assert answer_of("ls", str(path), "a", _SQUISH_COMPLETE="zsh") == ["words", "a$(id)", "a.b"]


def test_a_plugin_of_others_is_completed(tmp_path: Path) -> None:
    """Its commands and ids are listed once, and kept."""
    folder = tmp_path / "acme_hello-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Name: acme-hello\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[squish]\nhello = acme_hello\n")
    (tmp_path / "acme_hello.py").write_text(
        "from squish_core.api import CodecInfo, hookimpl\n\n"
        "@hookimpl\ndef squish_commands(app):\n"
        "    @app.command('hello')\n    def hello(file: str) -> None:\n        'Say hello.'\n\n"
        "@hookimpl\ndef squish_codecs():\n"
        "    return [CodecInfo(id='acme.hello', title='hello', factory='acme_hello:none')]\n"
    )
    settings = {"PYTHONPATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert answer_of("squish hel", **settings) == ["words", "hello"]
    assert (tmp_path / "cache" / "squish-completion" / "commands.json").exists()
    assert answer_of("squish codecs acme", **settings) == ["words", "acme.hello"]
    assert answer_of("squish hel")[1:] == []


def test_only_commands_of_installed_packages_are_offered() -> None:
    table = complete.restricted(SHIPPED, {"squish-gguf"})
    assert {"convert", "ls", "cache list"} <= table["commands"].keys()
    assert "run" not in table["commands"]
    assert (list(table["ids"]["format"]), complete.restricted(SHIPPED, set())) == (["gguf"], SHIPPED)


def cost(*command: str, **environment: str) -> float:
    """Return the least CPU time of three runs."""

    def run() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, env={**os.environ, **environment}, stdout=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime

    return min(run() for _ in range(3))


@pytest.mark.parametrize("line", ["squish conv", "squish convert a b --encode q4", "squish explain mis"])
def test_a_tab_is_cheap(line: str) -> None:
    limit = 1.5 * cost(sys.executable, "-c", "pass") + 0.05
    assert cost(sys.executable, "-m", "squish_core", line, _SQUISH_COMPLETE="bash") <= limit


@pytest.mark.parametrize("sample", ["sample.gguf", "sample.safetensors"])
def test_names_of_tensors_take_half_a_second(sample: str) -> None:
    line = f"squish ls {DATA / sample} "
    assert cost(sys.executable, "-m", "squish_core", line, _SQUISH_COMPLETE="bash") <= 0.5


def test_a_tab_imports_neither_typer_nor_the_registry() -> None:
    heavy = "{'typer', 'attrs', 'numpy', 'squish_core.plugins.registry', 'subprocess'} & set(sys.modules)"
    script = f"import sys; from squish_cli.complete import answer; answer('zsh', ['ls', '--sort', '']); print({heavy})"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "set()"


@pytest.mark.parametrize("shell", shells.SCRIPTS)
@pytest.mark.parametrize("spelling", ["--show-completion {}", "--show-completion={}"])
def test_the_script_of_a_shell_is_printed(capsys: pytest.CaptureFixture[str], shell: str, spelling: str) -> None:
    assert main(spelling.format(shell).split()) == 0
    assert capsys.readouterr().out == (shells.FOLDER / shells.SCRIPTS[shell]).read_text()


def test_the_shell_is_found(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shells, "current_shell", lambda: "fish")
    assert main(["--show-completion"]) == 0
    assert "commandline" in capsys.readouterr().out
    monkeypatch.setattr(shells, "current_shell", lambda: "tcsh")
    assert main(["--show-completion"]) == 2


@pytest.mark.parametrize("shell", shells.SCRIPTS)
def test_a_script_is_installed_once(shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "ZDOTDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    startup = {"bash": ".bashrc", "zsh": ".zshrc"}.get(shell)
    if startup:
        (tmp_path / startup).write_text("# mine")
    assert main(["--install-completion", shell]) == main(["--install-completion", shell]) == 0
    script, _, _ = shells.places()[shell]
    assert script.read_text() == shells.script(shell)
    if startup:
        text = (tmp_path / startup).read_text()
        assert text.startswith("# mine\n")
        assert len(re.findall(re.escape(str(script.parent if shell == "zsh" else script)), text)) == (
            1 if shell == "zsh" else 2
        )
