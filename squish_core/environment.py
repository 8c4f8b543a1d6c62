"""The Python environment that runs Squish, and the commands that install packages into it."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import sysconfig
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

Commands = list[list[str]]
CONDA = ("conda", "mamba", "micromamba")


@cache
def installer() -> tuple[Commands, tuple[str, ...]]:
    """Return the start of the commands that install packages into this environment, and the tool's own options.

    The packages follow the last command, that of the tool that manages the environment: what another one installs is
    lost at the next upgrade, or goes elsewhere. The options say where the tool found packages for the environment.
    """
    prefix = Path(sys.prefix)
    if (prefix / "uv-receipt.toml").is_file():
        return _uv_tool(prefix / "uv-receipt.toml")
    if (prefix / "pipx_metadata.json").is_file():
        return [["pipx", "inject", prefix.name]], _pip_arguments(prefix / "pipx_metadata.json")
    python, managed = _python(), _flags()
    if find_spec("pip") is not None:
        is_own = Path(shutil.which("pip") or "").parent == Path(sys.executable).parent
        pip = ["pip"] if is_own else [python, "-m", "pip"]
        return [[*pip, "install", *managed]], ()
    conda = next(filter(shutil.which, CONDA), None) if (prefix / "conda-meta").is_dir() else None
    if conda:
        return [[conda, "install", "--yes", "--prefix", sys.prefix, "pip"], [python, "-m", "pip", "install"]], ()
    if shutil.which("uv"):
        return [["uv", "pip", "install", "--python", python, *managed]], ()
    return [[python, "-m", "ensurepip"], [python, "-m", "pip", "install", *managed]], ()


def _python() -> str:
    """This interpreter: relative if it is below the current folder."""
    path = Path(sys.executable)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _flags() -> list[str]:
    """Return the option that installers require in an environment that the operating system manages."""
    is_marked = (Path(sysconfig.get_path("stdlib")) / "EXTERNALLY-MANAGED").exists()
    return ["--break-system-packages"] if is_marked and sys.prefix == sys.base_prefix else []


def _uv_tool(receipt: Path) -> tuple[Commands, tuple[str, ...]]:
    """`uv tool install` with the packages that the tool has now, since uv would remove them otherwise."""
    import tomllib

    try:
        tool = tomllib.loads(receipt.read_text("utf-8"))["tool"]
        main, *others = [_requirement(item) for item in tool["requirements"]]
        links = tuple(f"--find-links={link}" for link in tool.get("options", {}).get("find-links", ()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return [["uv", "pip", "install", "--python", _python()]], ()
    return [["uv", "tool", "install", main, *(f"--with={each}" for each in others)]], links


def _requirement(item: dict[str, Any]) -> str:
    """A requirement of uv's receipt as text that uv reads: `name[extra]>=1`, or with the address that it came from."""
    extras = f"[{','.join(item['extras'])}]" if item.get("extras") else ""
    folder = next((item[key] for key in ("editable", "directory", "path") if isinstance(item.get(key), str)), None)
    url = f"git+{item['git']}" if "git" in item else item.get("url") or (folder and Path(folder).absolute().as_uri())
    return f"{item['name']}{extras} @ {url}" if url else f"{item['name']}{extras}{item.get('specifier', '')}"


def _pip_arguments(metadata: Path) -> tuple[str, ...]:
    """Return the options for pip with which pipx installed the application."""
    try:
        return tuple(map(str, json.loads(metadata.read_text("utf-8"))["main_package"]["pip_args"]))
    except (OSError, ValueError, KeyError, TypeError):
        return ()


def commands(targets: Sequence[str], wheels: str | None = None) -> Commands:
    """Return the commands that install these requirements (paths, names or addresses), some from a folder of wheels."""
    (*before, start), options = installer()
    links = [f"--find-links={wheels}"] if wheels else list(options)
    if start[0] == "pipx":
        arguments = [f"--pip-args={shlex.join(links)}"] if links else []
        groups = [[targets[0]]]
        for each in targets[1:]:  # pipx installs one at a time, sorted; a folder comes after those that it requires
            if "/" in each and each < groups[-1][-1]:
                groups.append([])
            groups[-1].append(each)
        return [[*start, *arguments, *group] for group in groups]
    is_tool = start[:2] == ["uv", "tool"]
    return [*before, [*start, *links, *(f"--with={each}" if is_tool else each for each in targets)]]
