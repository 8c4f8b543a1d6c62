"""The format and the compression that a target's name implies."""

from __future__ import annotations

from pathlib import Path

from squish_core.errors import FormatError
from squish_core.plugins.catalog import SUFFIXES
from squish_core.plugins.registry import Registry


def packed_by(target: Path, registry: Registry) -> tuple[Path, str | None]:
    """The name of the content, and the byte codec that compresses the whole file if the suffix names one."""
    for entry in registry.find("codec", kind="bytes"):
        suffix = getattr(entry.info, "suffix", "")
        if suffix and target.name.lower().endswith(suffix):
            return target.with_name(target.name[: -len(suffix)] or target.name), entry.info.id
    return target, None


def format_for(target: Path, registry: Registry) -> str:
    """The writable format that a file name's suffix names."""
    writable = registry.find("container", can_write=True)
    for entry in writable:
        if any(target.name.lower().endswith(suffix) for suffix in getattr(entry.info, "suffixes", ())):
            return entry.info.id
    if (usual := SUFFIXES.get(target.suffix.lower())) and usual not in registry.containers:
        return usual  # not installed: looking it up raises the install hint
    raise FormatError(
        "the target format is not clear from the name", file=str(target), code="format",
        hint=f"Pass to=..., one of {', '.join(entry.info.id for entry in writable)}.",
    )  # fmt: skip
