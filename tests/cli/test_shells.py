"""Completion in bash, zsh and fish through a terminal, after `squish --install-completion`, and mandoc's opinion of the
man pages. Whatever is not installed here is left out (`make system` names it).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("typer")

from squish_cli import shells

if sys.platform == "win32":
    pytest.skip("Windows has no pseudo-terminals", allow_module_level=True)

from terminals import Terminal, without_spaces

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"
COMMANDS = {"bash": ["bash", "--noprofile", "-i"], "zsh": ["zsh", "-i"], "fish": ["fish", "-i"]}
LINES = [
    ("squish conv", "squish convert "),
    ("squish cache cl", "squish cache clear "),
    ("squish ls --so", "squish ls --sort "),
    ("squish convert a b --to=gg", "squish convert a b --to=gguf "),
    ("squish convert a b --encode q4_k_\t", "q4_k_m"),
    ("squish convert a b --encode '*embed*=kee", "*embed*=keep'"),
    ("squish ls sample.g", "squish ls sample.gguf "),
    ("squish ls sample.npyd", "squish ls sample.npydir/"),
    ("squish ls sample.gguf blk.0.f", "blk.0.ffn_up.weight "),
    ("squish ls sample.safetensors 'wei", "'weight' "),
    ("squish convert sample.gguf b --encode blk.0.ff", "blk.0.ffn_up.weight="),
    ("squish explain missing-", "squish explain missing-tensor "),
    ("squish config get cpu_t", "squish config get cpu_threads "),
    ("squish check-model m --for transf", "transformers "),
]
"""What is typed before Tab, and what the line has then."""


@pytest.fixture(scope="module", params=COMMANDS)
def shell(request: pytest.FixtureRequest) -> str:
    """A shell that is installed."""
    name = str(request.param)
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    return name


def started(shell: str, home: Path, install: bool) -> Terminal:
    """Return a terminal with a shell of a new user, whose prompt is there."""
    folders = (str(Path(sys.executable).parent), "/usr/local/bin", "/usr/bin", "/bin")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
    environment |= {"HOME": str(home), "ZDOTDIR": str(home), "PATH": os.pathsep.join(folders), "PS1": "$ "}
    if install:
        subprocess.run(["squish", "--install-completion", shell], env=environment, check=True, capture_output=True)
    terminal = Terminal(COMMANDS[shell], environment, str(DATA))
    terminal.read(quiet=1)
    terminal.type("echo re''ady\r")
    assert "ready" in terminal.read(until="ready")
    return terminal


@pytest.fixture(scope="module")
def terminal(shell: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    """A shell in which completion is installed."""
    terminal = started(shell, tmp_path_factory.mktemp(shell), install=True)
    yield terminal
    terminal.close()


@pytest.mark.parametrize(("typed", "completed"), LINES, ids=[typed for typed, _ in LINES])
def test_tab_completes_the_line(terminal: Terminal, typed: str, completed: str) -> None:
    terminal.type("\x05\x15")  # clears the line of the test before
    terminal.read(quiet=0.5)
    terminal.type(f"{typed}\t")
    shown = terminal.read(until=completed) + terminal.read(quiet=0.5)
    assert without_spaces(completed) in without_spaces(shown), shown


def test_the_script_that_is_shown_completes(shell: str, tmp_path: Path) -> None:
    (tmp_path / ".zshrc").touch()  # without one, zsh asks a new user questions
    load = f'source /dev/stdin <<< "$(squish --show-completion {shell})"'
    if shell != "bash":
        load = "squish --show-completion | source" if shell == "fish" else f"autoload -U compinit; compinit -u; {load}"
    terminal = started(shell, tmp_path, install=False)
    try:
        terminal.type(f"{load}\r")
        terminal.read(quiet=2)
        terminal.type("squish conv\t")
        shown = terminal.read(until="squish convert ")
    finally:
        terminal.close()
    assert "convert" in shown


def test_mandoc_finds_nothing_in_the_man_pages() -> None:
    if shutil.which("mandoc") is None:
        pytest.skip("mandoc is not installed")
    pages = sorted(map(str, (ROOT / "plugins" / "cli" / "man").glob("*.1")))
    ran = subprocess.run(["mandoc", "-Tlint", *pages], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def test_the_wheel_has_the_man_pages_and_the_scripts(tmp_path: Path) -> None:
    import zipfile

    uv = shutil.which("uv", path=str(Path(sys.executable).parent))
    if uv is None:
        pytest.skip("uv is not installed")
    command = [uv, "build", "--wheel", "--quiet", "--out-dir", str(tmp_path), str(ROOT / "plugins" / "cli")]
    subprocess.run(command, check=True)
    [wheel] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = {name.partition("/share/")[2] for name in archive.namelist()}
    pages = {f"man/man1/{path.name}" for path in (ROOT / "plugins" / "cli" / "man").iterdir()}
    places = {"bash-completion/completions/squish", "zsh/site-functions/_squish"}
    assert names >= pages | places | {"fish/vendor_completions.d/squish.fish"}
    assert shells.FOLDER.is_dir()
