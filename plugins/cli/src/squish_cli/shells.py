"""`squish --install-completion` and `squish --show-completion`: the scripts of the shells, and where they go.

On its own because no command needs it.
"""

from __future__ import annotations

import os
from pathlib import Path
from shlex import quote

import typer

from squish_core.codes import ErrorCode
from squish_core.errors import UsageError, WriteError

from .output import print_stderr

SCRIPTS = {"bash": "squish.bash", "zsh": "_squish", "fish": "squish.fish"}
"""Shell -> its script."""
FOLDER = Path(__file__).with_name("shell")


def show_completion(shell: str | None) -> None:
    """Print the script of a shell and stop, on request."""
    if shell is not None:
        print(script(shell or current_shell()), end="")
        raise typer.Exit


def install_completion(shell: str | None) -> None:
    """Install the script of a shell for this user and stop, on request."""
    if shell is None:
        return
    name = shell or current_shell()
    text, (path, startup, lines) = script(name), places()[name]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        added = startup is not None and _add_lines(startup, lines)
    except OSError as error:
        raise WriteError(f"cannot be written: {error.strerror}", file=str(path), code="unwritable") from None
    print_stderr(f"wrote {path}" + (f", and a line in {startup} that loads it" if added else ""))
    print_stderr(f"Start a new {name} to use it.")
    raise typer.Exit


def script(shell: str) -> str:
    """Return the completion script of a shell; UsageError if there is none for it."""
    if shell not in SCRIPTS:
        shells = ", ".join(SCRIPTS)
        hint = "Name one: `squish --show-completion bash`."
        raise UsageError(
            "no completion for this shell", found=repr(shell), expected=shells, code=ErrorCode.USAGE, hint=hint
        )
    return (FOLDER / SCRIPTS[shell]).read_text(encoding="utf-8")


def current_shell() -> str:
    """Return the name of the shell that started this process, else of the user's shell."""
    try:
        parent = Path(f"/proc/{os.getppid()}/comm").read_text(encoding="utf-8").strip()
    except OSError:
        parent = ""
    return parent if parent in SCRIPTS else Path(os.environ.get("SHELL") or "unknown").name


def places() -> dict[str, tuple[Path, Path | None, tuple[str, ...]]]:
    """Return shell -> where its script goes, the startup file that must load it, and the lines that do."""
    home = Path.home()
    data, config = (
        Path(os.environ.get(name) or home / default)
        for name, default in (("XDG_DATA_HOME", ".local/share"), ("XDG_CONFIG_HOME", ".config"))
    )
    bash, zsh = data / "bash-completion" / "completions" / "squish", data / "zsh" / "site-functions"
    zsh_lines = (f"fpath+=({quote(str(zsh))})", "autoload -Uz compinit && compinit")
    return {
        "bash": (bash, home / ".bashrc", (f"[ -f {quote(str(bash))} ] && . {quote(str(bash))}",)),
        "zsh": (zsh / "_squish", Path(os.environ.get("ZDOTDIR") or home) / ".zshrc", zsh_lines),
        "fish": (config / "fish" / "completions" / "squish.fish", None, ()),
    }


def _add_lines(startup: Path, lines: tuple[str, ...]) -> bool:
    """Append lines to a startup file, unless it has the first; returns whether they were added."""
    text = startup.read_text(encoding="utf-8") if startup.exists() else ""
    if lines[0] in text.splitlines():
        return False
    with startup.open("a", encoding="utf-8") as file:
        file.write("" if not text or text.endswith("\n") else "\n")
        file.writelines(f"{line}\n" for line in lines)
    return True
