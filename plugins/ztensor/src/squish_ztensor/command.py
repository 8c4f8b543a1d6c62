"""`squish edit`: change tensors and metadata of a zTensor file in place."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer
from squish_cli.api import Answer
from squish_convert.api import check_patterns, locked_file

from squish_core.api import ErrorCode, SquishError, UsageError, counted
from squish_core.api import open as open_file

from .edit import change

EXAMPLES = (
    "squish edit model.zt --add lora.safetensors",
    "squish edit model.zt --remove 'blk.0.*' --set license=MIT --unset note",
    "squish edit model.zt --recover",
)


def edit(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A zTensor file of version 1.0 or later.")],
    add: Annotated[
        str | None,
        typer.Option(
            "--add", metavar="SOURCE", help="Add all tensors of this file, of any format; quantized codes are kept."
        ),
    ] = None,
    remove: Annotated[
        list[str] | None,
        typer.Option("--remove", metavar="PATTERN", help="Remove tensors with matching names; repeatable."),
    ] = None,
    put: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=TEXT", help="Set a metadata key; repeatable."),
    ] = None,
    unset: Annotated[
        list[str] | None, typer.Option("--unset", metavar="KEY", help="Delete a metadata key; repeatable.")
    ] = None,
    recover: Annotated[
        bool, typer.Option("--recover", help="Remove what an interrupted edit left behind; every edit does this first.")
    ] = False,
) -> Answer:
    """Change tensors and metadata of a zTensor file.

    A file of version 2 is appended to; one of 1.x is rewritten and replaced.
    """
    _check_format(file)
    edits = bool(add or remove or put or unset)
    if not (edits or recover):
        raise SquishError(
            "nothing to change",
            file=file,
            expected="--add, --remove, --set, --unset or --recover",
            code=ErrorCode.USAGE,
            hint="Run `squish edit --help` for examples.",
        )
    with locked_file(Path(file), recover) as lock, ExitStack() as stack:
        with open_file(file, "ztensor") as old:  # closed before the file is replaced
            removed = _matching(list(old), remove or [], file)
            deleted, limits = _keys(unset or [], old.meta, file), old.limits
        del old
        source = stack.enter_context(open_file(add)) if add else None
        added = list(source or ())
        attributes: dict[str, Any] = {**dict.fromkeys(deleted), **dict(map(_pair, put or []))}
        if edits:
            change(lock, add=source, remove=removed, attributes=attributes, limits=limits)
    size = Path(file).stat().st_size
    data = {
        "file": file, "added": added, "removed": removed, "attributes": sorted(attributes), "size": size,
        "recovered": lock.recovered, "notes": lock.notes,
    }  # fmt: skip
    lines = [f"note: {note}" for note in lock.notes]
    if lock.recovered:
        lines.insert(0, f"recovered {file}: removed {counted(lock.recovered, 'byte')} of an interrupted edit")
    elif recover:
        lines.insert(0, f"nothing to recover in {file}")
    keys = counted(len(attributes), "metadata key")
    counts = f"{counted(len(added), 'tensor')} added, {len(removed):,} removed, {keys} changed"
    return Answer(data, [*([f"edited {file}: {counts}; {size:,} bytes"] if edits else []), *lines])


def _check_format(file: str) -> None:
    """Raise UsageError for a file of another format, with the command that converts it to zTensor."""
    found = "ztensor"
    with suppress(SquishError), open_file(file) as opened:
        found = opened.format
    if found != "ztensor":
        target = str(Path(file).with_suffix(".zt"))
        raise UsageError(
            "squish edit changes zTensor files",
            found=f"{file}, which is {found}",
            expected="a file such as model.zt",
            code=ErrorCode.USAGE,
            hint=f"Run `squish convert {quote(file)} {quote(target)}`, then edit {target}.",
        )


def _matching(names: list[str], patterns: list[str], file: str) -> list[str]:
    check_patterns(patterns, names, file)
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]


def _keys(keys: list[str], meta: dict[str, Any], file: str) -> list[str]:
    for key in keys:
        if key not in meta:
            raise SquishError(
                "no such metadata key", file=file, found=key, code="key", hint="`squish info` lists the keys."
            )
    return keys


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise SquishError("invalid value of --set", found=repr(text), expected="KEY=TEXT", code=ErrorCode.USAGE)
    return key, value
