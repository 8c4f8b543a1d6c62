"""Notes about the source in a conversion's report: its errors, and assets that are links."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from squish_core.codes import ErrorCode
from squish_core.errors import MAX_MESSAGE, shorten
from squish_core.file import File
from squish_core.formats.dropped import Dropped

MOST = 4
"""Number of errors noted, and of links named in a note."""


def source_notes(file: File, dropped: Iterable[Dropped]) -> tuple[str, ...]:
    """Notes about the source for users of the target."""
    problems = (f"{problem.where}: {problem.message}" for problem in file.source.problems())
    return (*problems, *error_notes(file), *code_notes(file), *link_notes(file, dropped))


def error_notes(file: File) -> tuple[str, ...]:
    """Errors that opening the source reported: converted values may be wrong."""
    errors = [f"{problem.where}: {problem.message}" for problem in file.problems if problem.severity == "error"]
    notes = [f"the source has an error: {shorten(error, MAX_MESSAGE)}" for error in errors[:MOST]]
    if len(errors) > MOST:
        notes.append(f"the source has {len(errors) - MOST} more errors; `squish verify` lists them")
    return tuple(notes)


def code_notes(file: File) -> tuple[str, ...]:
    """A note about quantized codes that the source lists, and the target holds, as numbers."""
    apart = [problem for problem in file.problems if problem.code == ErrorCode.CODES]
    if not apart:
        return ()
    more = f"; so do {len(apart) - 1} more tensors, which `squish verify` lists" if len(apart) > 1 else ""
    return (f"{apart[0].where}: {apart[0].message}{more}",)


def link_notes(file: File, dropped: Iterable[Dropped]) -> tuple[str, ...]:
    """A note about carried assets that are links to files outside their folder."""
    absent = {item.name for item in dropped if item.kind == "asset"}
    targets = {}
    for name, part in file.original.index.assets.items():
        number = part.segments[0].file if part.segments else None
        if number is not None and file.index.files[number].name == name and name not in absent:
            target = outside_link(file.source_for(number).path)
            if target is not None and file.index.assets.get(name) is part:
                targets[name] = target
    if not targets:
        return ()
    links = ", ".join(f"{name} -> {target}" for name, target in list(targets.items())[:MOST])
    more = f" and {len(targets) - MOST} more" if len(targets) > MOST else ""
    return (f"assets are links to files outside the folder, whose content is carried: {links}{more}",)


def outside_link(path: Path | None) -> Path | None:
    """The target of a link that leaves its folder; else None."""
    if path is None or not path.is_symlink():
        return None
    target = path.resolve()
    return None if target.is_relative_to(path.parent.resolve()) else target
