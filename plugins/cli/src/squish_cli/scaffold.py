"""`squish new-plugin NAME`: a working plugin, copied from the example."""

from __future__ import annotations

import importlib.util
import keyword
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

import squish_core
from squish_core.codes import ErrorCode
from squish_core.errors import UsageError
from squish_core.plugins.registry import registry

from .output import Answer

NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
SUFFIXES = (".py", ".toml", ".typed")
MAGIC = 4
"""Length of the example's magic, in bytes."""


def new_plugin(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the new distribution, such as my-format.")],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FOLDER", help="Where to create the plugin's folder.")
    ] = Path(),
) -> Answer:
    """Create a working plugin to start from.

    It contains a format, a refinement, two codecs, a backend and their tests: the example of docs/writing-a-plugin.md.
    """
    from squish_core.io.atomic import atomic_folder

    names = names_for(name)
    files = {substitute(path, names): substitute(text, names) for path, text in example_files()}
    target = output / name
    with atomic_folder(target) as sink:
        for path, text in sorted(files.items()):
            folder, _, file = path.rpartition("/")
            with sink.member(file, folder) as member:
                member.write(text.encode())
    lines = [f"wrote {target}: {len(files)} files", f"next: cd {target} && pip install -e '.[test]' && pytest"]
    return Answer({"folder": str(target), "files": sorted(files)}, lines)


def example_files() -> Iterator[tuple[str, str]]:
    """Path and text of each file of the example, from the installed package or else from the checkout."""
    package = Path(squish_core.__file__).parent
    folders = (package / "example", package.parent / "examples" / "acme_format")
    folder = next(folder for folder in folders if folder.is_dir())
    for file in sorted(folder.rglob("*")):
        if file.suffix in SUFFIXES and file.is_file():
            yield file.relative_to(folder).as_posix(), file.read_text(encoding="utf-8")


def names_for(name: str) -> dict[str, str]:
    """Return the new name for each name of the example; UsageError if the plugin's name cannot be used."""
    if not NAME.fullmatch(name):
        expected = "a lower-case letter, then lower-case letters, digits and single dashes"
        raise _name_error("is not a valid distribution name", name, expected)
    package = name.replace("-", "_")
    if name == "squish" or name.startswith("squish-"):
        raise _name_error("is reserved for Squish's own plugins", name, "another name, such as my-format")
    is_reserved = package in sys.stdlib_module_names or keyword.iskeyword(package)
    if is_reserved or importlib.util.find_spec(package) is not None:
        raise _name_error("is the name of an existing module", name, "an unused name, such as my-format")
    vendor = name.removesuffix("-format").removesuffix("-plugin").replace("-", "_")
    magic = vendor.replace("_", "").upper()[:MAGIC].ljust(MAGIC, "_")
    for entry in registry().containers.values():
        signatures = [signature.bytes for signature in entry.info.signatures]
        if entry.info.id.partition(".")[0] == vendor or magic.encode() in signatures:
            raise _name_error(f"collides with the format {entry.info.id}", name, "another name")
    return {
        'b"ACME"': f'b"{magic}"',
        "acme_format": package,
        "acme-format": name,
        "acme": vendor,
        "ACME": vendor.upper(),
    }


def substitute(text: str, names: dict[str, str]) -> str:
    """Return a text of the example with all names replaced in one pass."""
    return re.sub("|".join(map(re.escape, names)), lambda match: names[match[0]], text)


def _name_error(why: str, name: str, expected: str) -> UsageError:
    return UsageError(
        f"{name!r} {why}",
        expected=expected,
        code=ErrorCode.USAGE,
        hint="See `squish new-plugin --help`.",
    )
