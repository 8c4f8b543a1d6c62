"""Where a conversion writes and reads: what the name of a target says, sizes and paths."""

from __future__ import annotations

from pathlib import Path

from squish_core.errors import FormatError
from squish_core.file import File
from squish_core.plugins.catalog import SUFFIXES
from squish_core.plugins.registry import Registry


def packed_by(target: Path, known: Registry) -> tuple[Path, str | None]:
    """The name of the content, and the byte codec that compresses the file whole, if its suffix stands for one."""
    for entry in known.find("codec", kind="bytes"):
        suffix = getattr(entry.info, "suffix", "")
        if suffix and target.name.lower().endswith(suffix):
            return target.with_name(target.name[: -len(suffix)] or target.name), entry.info.id
    return target, None


def format_for(target: Path, known: Registry) -> str:
    """The writable format that a file name's suffix stands for."""
    writable = known.find("container", can_write=True)
    for entry in writable:
        if any(target.name.lower().endswith(suffix) for suffix in getattr(entry.info, "suffixes", ())):
            return entry.info.id
    if (usual := SUFFIXES.get(target.suffix.lower())) and usual not in known.containers:
        return usual  # not installed: what asks for it says so
    raise FormatError(
        "the target format is not clear from the name", file=str(target), code="format",
        hint=f"Give to=..., one of {', '.join(entry.info.id for entry in writable)}.",
    )  # fmt: skip


def size_of(target: Path) -> int:
    """Bytes of a file, or of all files of a folder."""
    files = target.rglob("*") if target.is_dir() else [target]
    return sum(path.stat().st_size for path in files if path.is_file())


def paths_of(file: File) -> list[Path]:
    """The files and the folder that a model lies in; none for bytes in memory."""
    place, source = file.path, file.source
    if place is None or source.packed:
        return [place] if place else []
    folder = place if source.is_dir else place.parent
    return [place, *(folder / ref.name for ref in file.index.files)]
