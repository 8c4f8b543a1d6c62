"""`squish edit`: change metadata, names and tensors of a file in its own format.

Apart from the other commands, because it takes options of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from squish_core.codes import ErrorCode
from squish_core.errors import SquishError, UsageError
from squish_core.io.paths import missing
from squish_core.text import counted

from .options import FileName
from .output import Answer

Add = Annotated[
    str | None,
    typer.Option("--add", metavar="SOURCE", help="Add all tensors of this file, of any format; codes are kept."),
]
Replace = Annotated[
    str | None,
    typer.Option("--replace", metavar="SOURCE", help="Replace the tensors of the same names by those of this file."),
]
Remove = Annotated[
    list[str] | None,
    typer.Option("--remove", metavar="PATTERN", help="Remove tensors with matching names; repeatable."),
]
Rename = Annotated[
    list[str] | None,
    typer.Option(
        "--rename",
        metavar="PATTERN=NAME",
        help="Rename tensors: each * in NAME stands for what that of PATTERN matched; repeatable.",
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY[:TYPE]=TEXT",
        help="Set a metadata key, in the type that it has, or in TYPE (u32, f32, bool, array:str, ...); repeatable.",
    ),
]
SetFile = Annotated[
    list[str] | None,
    typer.Option("--set-file", metavar="KEY=FILE", help="Set a metadata key to the text of a file; repeatable."),
]
RenameKey = Annotated[
    list[str] | None, typer.Option("--rename-key", metavar="KEY=NEW", help="Rename a metadata key; repeatable.")
]
Unset = Annotated[list[str] | None, typer.Option("--unset", metavar="KEY", help="Delete a metadata key; repeatable.")]
Template = Annotated[
    str | None, typer.Option("--chat-template", metavar="FILE", help="Set the chat template to the text of a file.")
]
Out = Annotated[
    str | None, typer.Option("--output", "-o", metavar="OUT", help="Write a copy there; FILE stays as it is.")
]
Recover = Annotated[
    bool, typer.Option("--recover", help="Remove what an interrupted edit left behind; every edit does this first.")
]
LARGEST_TEXT = 1 << 26
FORMS = {"--set-file": "KEY=FILE", "--rename": "PATTERN=NAME", "--rename-key": "KEY=NEW"}


def edit(
    file: FileName,
    add: Add = None,
    replace: Replace = None,
    remove: Remove = None,
    rename: Rename = None,
    put: Set = None,
    set_file: SetFile = None,
    rename_key: RenameKey = None,
    unset: Unset = None,
    chat_template: Template = None,
    output: Out = None,
    recover: Recover = False,
) -> Answer:
    """Change metadata, names and tensors in place or in a copy.

    The format stays. Bytes are overwritten only where one write suffices; otherwise the file is written beside and
    renamed (zTensor 2: appended to), so an edit that is interrupted changes nothing. Edits of one file wait for each
    other.
    """
    from squish_convert.editing.changes import Changes
    from squish_convert.editing.edit import edit as edit_file

    from squish_core.opening import open as open_file

    with ExitStack() as stack:
        texts = {key: _text(path) for key, path in map(_pair("--set-file"), set_file or ())}
        changes = Changes(
            put={**dict(map(_pair("--set"), put or ())), **texts},
            unset=tuple(unset or ()),
            rename_keys=dict(map(_pair("--rename-key"), rename_key or ())),
            template=None if chat_template is None else _text(chat_template),
            rename=dict(map(_pair("--rename"), rename or ())),
            remove=tuple(remove or ()),
            add=stack.enter_context(open_file(add)) if add else None,
            replace=stack.enter_context(open_file(replace)) if replace else None,
        )
        if changes.is_empty and not recover:
            raise SquishError(
                "nothing to change",
                file=file,
                expected="--set, --rename, --add, --remove, --chat-template or another change",
                code=ErrorCode.USAGE,
                hint="Run `squish edit --help` for examples.",
            )
        report = edit_file(file, changes, output, recover=recover)
    lines = [f"note: {note}" for note in report.notes]
    if report.recovered:
        lines.insert(0, f"recovered {file}: removed {counted(report.recovered, 'byte')} of an interrupted edit")
    elif recover:
        lines.insert(0, f"nothing to recover in {file}")
    if not changes.is_empty:
        counts = {"added": report.added, "removed": report.removed, "replaced": report.replaced}
        tensors = [f"{len(names):,} {word}" for word, names in {**counts, "renamed": report.renamed}.items() if names]
        parts = [f"tensors: {', '.join(tensors)}"] if tensors else []
        parts += [f"{counted(len(report.attributes), 'metadata key')} changed"] if report.attributes else []
        parts += [f"files: {', '.join(report.assets)}"] if report.assets else []
        lines.insert(0, f"edited {report.file} ({report.how}): {'; '.join(parts)}; {report.size:,} bytes")
    return Answer(report.to_dict(), lines)


def _pair(option: str) -> Callable[[str], tuple[str, str]]:
    """Return a function that splits a value of an option at the first `=`."""

    def split(text: str) -> tuple[str, str]:
        key, equals, value = text.partition("=")
        if not (key and equals):
            expected = FORMS.get(option, "KEY=TEXT")
            raise UsageError(f"invalid value of {option}", found=repr(text), expected=expected, code=ErrorCode.USAGE)
        return key, value

    return split


def _text(path: str) -> str:
    """Return the text of a file; an error unless it is UTF-8."""
    try:
        with open(path, "rb") as file:
            data = file.read(LARGEST_TEXT + 1)
    except OSError as error:
        raise missing(Path(path), error) from None
    try:
        if len(data) > LARGEST_TEXT:
            raise ValueError
        return data.decode()
    except ValueError:
        raise UsageError(
            "is not a text", file=path, expected=f"UTF-8 of at most {LARGEST_TEXT} bytes", code=ErrorCode.USAGE
        ) from None
