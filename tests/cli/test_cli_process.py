"""The `squish` command as a process of its own, its progress lines, and what it tells of a compressed file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("typer")

from squish_cli import main, output

DATA = Path(__file__).parents[1] / "data"


def run(*argv: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *argv], capture_output=True, text=True, env={**os.environ, **environment}, timeout=300
    )


@pytest.mark.parametrize("command", ["formats", "codecs", "backends", "plugins"])
def test_listings_import_nothing_heavy(command: str) -> None:
    heavy = "{'numpy', 'ml_dtypes', 'rich', 'cbor2', 'pydantic'} & set(sys.modules)"
    ran = run("-c", f"import sys; from squish_cli import main; main(['{command}']); print('loaded', {heavy})")
    assert ran.stdout.splitlines()[-1] == "loaded set()"


@pytest.mark.parametrize("command", [["--help"], ["ls", str(DATA / "sample.gguf"), "--json"], ["plugins", "--json"]])
def test_classes_of_documents_are_not_built_to_print_one(command: list[str]) -> None:
    modules = "[name for name in sys.modules if name.endswith('documents') or '.documents.' in name]"
    ran = run("-c", f"import sys; from squish_cli import main; main({command}); print('loaded', {modules})")
    assert ran.stdout.splitlines()[-1] == "loaded []"


@pytest.mark.parametrize(
    "command",
    [
        ["convert", "{model}", "out.zt", "--dry-run", "--quiet", "--only", "*", "--to", "ztensor"],
        ["ls", "{model}", "*", "--sort", "size"],
        ["bench", "--help"],
        ["cache", "list"],
    ],
)
def test_text_and_switches_need_no_pydantic(command: list[str]) -> None:
    argv = [word.format(model=DATA / "sample.safetensors") for word in command]
    ran = run(
        "-c",
        f"import sys; from squish_cli import main; code = main({argv}); "
        "print('ended', code, 'pydantic' in sys.modules)",
    )
    assert ran.stdout.splitlines()[-1] == "ended 0 False", ran.stderr


def test_the_module_is_the_command() -> None:
    ran = run("-m", "squish_core", "--version")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith("squish-core ")
    assert run("-m", "squish_core", "ls", "missing").returncode == 2


def test_only_a_process_of_its_own_leaves_its_garbage() -> None:
    script = "import gc, sys; from squish_cli import main, process; sys.argv = ['squish', '--version']"
    frozen = run("-c", f"{script}; main(); kept = gc.get_freeze_count(); process(); print(kept, gc.get_freeze_count())")
    kept, left = map(int, frozen.stdout.splitlines()[-1].split())
    assert kept == 0 < left


def test_a_program_that_calls_the_command_keeps_its_own_signals_and_warnings() -> None:
    before = signal.getsignal(signal.SIGTERM), warnings.showwarning
    assert main(["ls", "missing"]) == 2
    assert (signal.getsignal(signal.SIGTERM), warnings.showwarning) == before


def test_a_warning_is_a_line_on_stderr() -> None:
    ran = run("-m", "squish_core", "plugins", SQUISH_PLUGINS="-squish-gguff")
    assert ran.returncode == 0
    assert ran.stderr.startswith("warning: SQUISH_PLUGINS: no plugin is called squish-gguff; installed: ")
    assert ran.stderr.count("\n") == 1


def test_without_squish_cli_it_says_what_to_install(tmp_path: Path) -> None:
    absent = "raise ModuleNotFoundError(\"No module named 'squish_cli'\", name='squish_cli')\n"
    (tmp_path / "squish_cli.py").write_text(absent)
    ran = run("-m", "squish_core", "formats", PYTHONPATH=str(tmp_path))
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("error: the command line is not installed. Run `")


def test_an_interrupt_while_modules_load_prints_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt\n")
    ran = run("-m", "squish_core", "formats", PYTHONPATH=str(tmp_path))
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "interrupted\n")


@pytest.mark.parametrize("command", [["codecs"], ["info", "nowhere", "--json"]])
def test_a_closed_pipe_is_not_an_error(command: list[str]) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "squish_core", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 141


def test_a_terminal_that_is_not_utf8_gets_escapes(tmp_path: Path) -> None:
    ran = run("-m", "squish_core", "ls", str(tmp_path / "\u00fc"), PYTHONIOENCODING="ascii")
    assert "\\xfc" in ran.stderr


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A clock that only the test moves."""
    now = [100.0]
    monkeypatch.setattr(output.time, "monotonic", lambda: now[0])
    return now


def test_progress_is_a_plain_line_at_most_every_two_seconds(clock: Any, capsys: Any) -> None:
    with output.Progress("writing") as report:
        for second in range(7):
            clock[0] = 100.0 + second
            report("blk.0\n", second * 1_000_000, 8_000_000)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "writing: 2 MB of 8 MB (25%), 1 MB/s, blk.0\\n",
        "writing: 4 MB of 8 MB (50%), 1 MB/s, blk.0\\n",
        "writing: 6 MB of 8 MB (75%), 1 MB/s, blk.0\\n",
    ]


def test_progress_counts_another_unit(clock: Any, capsys: Any) -> None:
    with output.Progress("evaluating", unit="tokens") as report:
        clock[0] = 104.0  # loading
        report("model.gguf", 1_024, 8_192)
        clock[0] = 108.0
        report("model.gguf", 2_048, 8_192)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[-1] == "evaluating: 2,048 of 8,192 tokens (25%), 256 tokens/s, model.gguf"


def test_quiet_shows_no_progress(clock: Any, capsys: Any) -> None:
    with output.Progress("writing", quiet=True) as report:
        clock[0] = 200.0
        report("blk.0", 1, 2)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("variable", "painted"), [("FORCE_COLOR", True), ("NO_COLOR", False)])
def test_a_terminal_gets_a_bar_without_color_under_no_color(
    monkeypatch: pytest.MonkeyPatch, capsys: Any, variable: str, painted: bool
) -> None:
    pytest.importorskip("rich")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv(variable, "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with output.Progress("writing") as report:
        report("[red]blk.0\x1b[31m", 1_000_000, 2_000_000)
    shown = capsys.readouterr().err
    assert r"[red]blk.0\x1b[31m" in shown
    assert ("\x1b[3" in shown) is painted


@pytest.mark.parametrize("unit", ["", "tokens"])
@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_the_bar_is_one_line_on_a_terminal_of_any_width(monkeypatch: pytest.MonkeyPatch, width: int, unit: str) -> None:
    console = pytest.importorskip("rich.console")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with output.Progress("comparing", unit=unit) as report:
        report("model.layers.12.mlp.down_proj.weight", 3_000_000_000, 12_345_678_901)
        assert len(console.Console(width=width).render_lines(report._bar.get_renderable())) == 1


def test_info_of_a_compressed_file_tells_both_sizes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    target = tmp_path / "sample.gguf.zst"
    assert main(["convert", str(DATA / "sample.gguf"), str(target)]) == 0
    capsys.readouterr()
    assert main(["info", str(target)]) == 0
    size_text = f"1.056 kB unpacked, {target.stat().st_size} B compressed with zstd, in 1 file"
    assert f"size        {size_text}" in capsys.readouterr().out.splitlines()
    assert main(["info", str(target), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["size"], data["packed"]) == (1056, {"codec": "zstd", "size": target.stat().st_size})
