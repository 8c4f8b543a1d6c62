"""The Python environment that runs Squish, and the command that installs packages into it."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import sysconfig
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any


@cache
def installer() -> str:
    """Return the start of a shell command that installs packages into this environment; the packages follow it.

    That of the tool that manages the environment, because what another one installs is lost at the next upgrade, or
    goes to another environment.
    """
    prefix = Path(sys.prefix)
    if (prefix / "uv-receipt.toml").is_file():
        return _uv_tool(prefix / "uv-receipt.toml")
    if (prefix / "pipx_metadata.json").is_file():
        return f"pipx inject {shlex.quote(prefix.name)}"
    python = _python()
    if find_spec("pip") is not None:
        pip = "pip" if _is_own(shutil.which("pip")) else f"{python} -m pip"
        return f"{pip} install{_flags()}"
    if (prefix / "conda-meta").is_dir():
        return f"conda install --yes --prefix {shlex.quote(sys.prefix)} pip && {python} -m pip install"
    if shutil.which("uv"):
        return f"uv pip install --python {python}"
    return f"{python} -m ensurepip && {python} -m pip install{_flags()}"


def _python() -> str:
    """This interpreter for a shell command: relative if it is below the current folder."""
    path = Path(sys.executable)
    return shlex.quote(str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path))


def _is_own(command: str | None) -> bool:
    """Return whether a command on the path is that of this environment."""
    return command is not None and Path(command).parent == Path(sys.executable).parent


def _flags() -> str:
    """Return the option that pip requires in an environment that the operating system manages."""
    is_marked = os.path.exists(os.path.join(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED"))
    return " --break-system-packages" if is_marked and sys.prefix == sys.base_prefix else ""


def _uv_tool(receipt: Path) -> str:
    """`uv tool install` with the packages that the tool has now, since uv would remove them otherwise."""
    import tomllib

    try:
        requirements = tomllib.loads(receipt.read_text("utf-8"))["tool"]["requirements"]
        main, *others = [_requirement(item) for item in requirements]
    except (OSError, ValueError, KeyError, TypeError):
        return f"uv pip install --python {_python()}"
    return " ".join(["uv tool install", shlex.quote(main), *(f"--with {shlex.quote(name)}" for name in others)])


def _requirement(item: dict[str, Any]) -> str:
    """A requirement of uv's receipt as text that uv reads: `name[extra]>=1`, or with the address that it came from."""
    extras = f"[{','.join(item['extras'])}]" if item.get("extras") else ""
    folder = next((item[key] for key in ("editable", "directory", "path") if isinstance(item.get(key), str)), None)
    url = f"git+{item['git']}" if "git" in item else item.get("url") or (folder and Path(folder).absolute().as_uri())
    return f"{item['name']}{extras} @ {url}" if url else f"{item['name']}{extras}{item.get('specifier', '')}"


def command(targets: Sequence[str], wheels: str | None = None) -> str:
    """The command that installs these requirements (paths, names or addresses), some from a folder with wheels."""
    start = installer()
    with_ = "--with " if start.startswith("uv tool ") else ""
    links = ["--find-links", wheels] if wheels else []
    if links and start.startswith("pipx "):
        links = [f"--pip-args={shlex.join(links)}"]
    return " ".join([start, *map(shlex.quote, links), *(f"{with_}{shlex.quote(target)}" for target in targets)])
