"""What the name of a target says: its format, and whether it is compressed whole."""

from __future__ import annotations

from pathlib import Path

from squish_core.errors import FormatError
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
