"""`squish doctor FOLDER`: temporary files and interrupted appends that killed writers left behind.

Apart from `diagnosis`, which knows the installation and no files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from squish_core.display import table
from squish_core.io.local import open_folder
from squish_core.io.paths import missing

from .output import Answer

UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def examine(folder: str, clean: bool) -> Answer:
    """List what interrupted writes left in a folder and its subfolders; `clean` removes dead writers' temporaries."""
    from squish_core.io.atomic import remove, temporaries, torn_appends

    open_folder(folder).close()  # its error says what is wrong with the path
    path = Path(folder)
    try:
        leftovers, torn = list(temporaries(path)), list(torn_appends(path))
    except OSError as error:
        raise missing(path, error) from None
    rows = []
    for leftover in leftovers:
        state, reason = leftover.state, None
        if clean and state == "dead":
            try:
                state = "removed" if remove(leftover) else "live"
            except OSError as error:
                reason = error.strerror or str(error)
        rows.append(
            {"file": str(leftover.path), "target": str(leftover.target), "size": leftover.size,
             "age": leftover.age, "state": state, "error": reason}
        )  # fmt: skip
    appends = [{"file": str(path), "bytes": count} for path, count in torn]
    ok = not any(row["error"] for row in rows)
    data = {"ok": ok, "folder": folder, "temporaries": rows, "torn_appends": appends}
    return Answer(data, list(lines(rows, appends)), 0 if ok else 1)


def lines(rows: Sequence[dict[str, Any]], appends: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The findings as text; for temporaries that may be in use, only their number."""
    from squish_core.text import counted, format_bytes

    removable = [row for row in rows if row["state"] in ("dead", "removed")]
    states = [f"dead ({row['error']})" if row["error"] else row["state"] for row in removable]
    cells = [(state, format_bytes(row["size"]), age(row["age"]), row["file"]) for state, row in zip(states, removable)]
    yield from table(("writer", "size", "age", "temporary"), "<>><", cells)
    dead = [row for row in removable if row["state"] == "dead"]
    total = format_bytes(sum(row["size"] for row in dead))
    if dead:
        yield f"{counted(len(dead), 'temporary file')} left by interrupted writes, {total}; remove with --clean"
    for state, text in (("live", "in use by a running write"), ("unknown", "of a writer that may still be running")):
        if count := sum(row["state"] == state for row in rows):
            yield f"{counted(count, 'temporary file')} {text}: left alone"
    for append in appends:
        size = format_bytes(append["bytes"])
        yield f"torn append: {append['file']}: {size} of an interrupted edit; `squish edit FILE --recover` removes it"
    if not removable and not appends:
        yield "nothing here was left by an interrupted write"


def age(seconds: float) -> str:
    """A duration in its largest unit: `3 d`, `20 min`."""
    size, unit = next(((size, unit) for size, unit in UNITS if seconds >= size), UNITS[-1])
    return f"{int(seconds // size)} {unit}"
