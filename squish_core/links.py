"""Files of a model that are links to somewhere else."""

from __future__ import annotations

from pathlib import Path

from squish_core.containers import Layout
from squish_core.handles import File

MOST_LINKS = 4
"""Links that a note names."""


def link_notes(file: File, layout: Layout) -> tuple[str, ...]:
    """A note of the assets that are carried and are links to files outside their folder."""
    dropped = {item.name for item in layout.dropped if item.kind == "asset"}
    targets = {}
    for name, part in file.index.assets.items():
        number = part.segments[0].file if part.segments else None
        if number is not None and file.index.files[number].name == name and name not in dropped:
            target = outside_link(file.file(number).path)
            if target is not None:
                targets[name] = target
    if not targets:
        return ()
    shown = ", ".join(f"{name} -> {target}" for name, target in list(targets.items())[:MOST_LINKS])
    more = f" and {len(targets) - MOST_LINKS} more" if len(targets) > MOST_LINKS else ""
    return (f"assets are links to files outside the folder, whose content is carried: {shown}{more}",)


def outside_link(path: Path | None) -> Path | None:
    """Where a file really lies if it is a link out of its folder; else None."""
    if path is None or not path.is_symlink():
        return None
    target = path.resolve()
    return None if target.is_relative_to(path.parent.resolve()) else target
