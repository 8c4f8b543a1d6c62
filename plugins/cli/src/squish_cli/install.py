"""`squish install NAME...`: install packages into the environment of Squish with the tool that manages it."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from squish_core.codes import ErrorCode
from squish_core.errors import SquishError, UsageError
from squish_core.plugins import catalog
from squish_core.text import did_you_mean

from .output import TEXT, Answer, style

REQUIREMENT = re.compile(r"([A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?)(\[[\w.,-]+\])?((?:[=!<>~]=|[<>])[\w.*+!-]+)?")
"""Name of a distribution, perhaps its extras and a version."""


def install(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME", help="A package, such as squish-gguf or 'squish-remote[fsspec]'.")
    ],
    find_links: Annotated[
        str | None, typer.Option("--find-links", metavar="DIR", help="A folder of wheels to install from.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the command, and run nothing.")] = False,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Run the command without asking.")] = False,
) -> Answer:
    """Install packages into the environment of Squish.

    Prints the command of the tool that manages this environment (pip, uv, pipx or conda), asks, and runs it. The
    packages come from where Squish itself came from: a checkout, a folder of wheels, a repository.
    """
    links = None if find_links is None else wheel_folder(find_links)
    commands = catalog.install_commands(*map(checked, names), find_links=links)
    text = " && ".join(map(shlex.join, commands))
    facts = {"packages": names, "command": text, "commands": commands}
    if dry_run:
        return Answer({**facts, "executed": False}, [text], verbatim=True)
    if not yes and not is_confirmed(text):
        hint = "Nothing was installed." if sys.stdin.isatty() else "Nothing was installed: --yes runs this command."
        return Answer({**facts, "executed": False}, [text, hint], 2, verbatim=True)
    run(commands)
    return Answer({**facts, "executed": True}, [f"installed {', '.join(names)}"])


def checked(name: str) -> str:
    """Return a name; UsageError if it is not that of a package, since installers take options and addresses, too."""
    match = REQUIREMENT.fullmatch(name)
    if match is None:
        expected = "the name of a package, such as squish-gguf"
        raise UsageError("cannot install this", expected=expected, found=repr(name), code=ErrorCode.USAGE)
    package, ours = re.sub(r"[-_.]+", "-", match[1]).lower(), catalog.distributions()
    if package.startswith("squish-") and package not in ours:
        hint = f"{did_you_mean(package, ours)} `squish plugins --available` lists all.".lstrip()
        raise UsageError("there is no such package of Squish", found=repr(name), code=ErrorCode.USAGE, hint=hint)
    if package in ours and match[3]:
        raise UsageError("the version of a package of Squish follows Squish", found=repr(name), code=ErrorCode.USAGE)
    return name if package not in ours else f"{package}{match[2] or ''}"


def wheel_folder(folder: str) -> str:
    """Return a folder of wheels as the installers of any folder find it; UsageError if it contains none."""
    path = Path(folder)
    if not path.is_dir():
        raise UsageError("--find-links needs a folder", found=repr(folder), code=ErrorCode.USAGE)
    if not any(path.glob("*.whl")):
        raise UsageError("the folder contains no wheels (*.whl)", found=repr(folder), code=ErrorCode.USAGE)
    return str(path.absolute())


def is_confirmed(text: str) -> bool:
    """Ask on a terminal whether to run a command; False without one."""
    if not sys.stdin.isatty():
        return False
    print(text, file=sys.stderr)
    return typer.confirm("Run this command?", default=True, err=True)


def run(commands: Sequence[Sequence[str]]) -> None:
    """Run commands one after the other; SquishError at the first that fails."""
    for command in commands:
        program = shutil.which(command[0])
        if program is None:
            text = " && ".join(map(shlex.join, commands))
            hint = f"Run `{text}` where it is."
            raise SquishError(f"{command[0]} is not on the path", code=ErrorCode.NOT_INSTALLED, hint=hint)
        # what an installer prints is not the document that --json prints
        output = None if style() == TEXT else sys.stderr
        status = subprocess.run([program, *command[1:]], stdout=output, check=False).returncode
        if status:
            hint = "" if catalog.RELEASED else " --find-links names a folder with Squish's wheels."
            raise SquishError(
                f"`{shlex.join(command)}` failed with status {status}",
                code=ErrorCode.NOT_INSTALLED,
                hint=f"See its messages above.{hint}",
            )
