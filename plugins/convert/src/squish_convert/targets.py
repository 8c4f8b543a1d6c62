"""The format of a target: that of its name, and whether it can be written."""

from __future__ import annotations

from pathlib import Path

from squish_core.codes import ErrorCode
from squish_core.errors import FormatError, UsageError
from squish_core.formats.base import WritableContainer
from squish_core.plugins import catalog
from squish_core.plugins.registry import Registry
from squish_core.text import did_you_mean


def writable(format_id: str, registry: Registry) -> WritableContainer:
    """Return the format; UsageError if it cannot be written."""
    container = registry.container(format_id)
    if not registry.containers[format_id].info.can_write:
        ids = ", ".join(entry.info.id for entry in registry.find("container", can_write=True))
        raise UsageError(f"{format_id} cannot be written", code="read-only", hint=f"These can: {ids}.")
    if not isinstance(container, WritableContainer):
        raise FormatError(
            f"{format_id} is declared with can_write=True",
            code=ErrorCode.PLUGIN_BUG,
            expected="a WritableContainer",
            found=type(container).__name__,
        )
    return container


def packed_by(target: Path, registry: Registry) -> tuple[Path, str | None]:
    """Split a name into the name of the content and the byte codec of its compression suffix, if any."""
    for entry in registry.find("codec", kind="bytes"):
        suffix = entry.info.suffix
        if suffix and target.name.lower().endswith(suffix):
            return target.with_name(target.name[: -len(suffix)] or target.name), entry.info.id
    return target, None


def format_for(target: Path, registry: Registry) -> str:
    """Return the writable format with the suffix of a file name."""
    writable = registry.find("container", can_write=True)
    for entry in writable:
        if any(target.name.lower().endswith(suffix) for suffix in entry.info.suffixes):
            return entry.info.id
    if (usual := catalog.suffixes().get(target.suffix.lower())) and usual not in registry.containers:
        return usual  # not installed: raises with an install hint
    suffixes = [suffix for entry in writable for suffix in entry.info.suffixes]
    ids = ", ".join(entry.info.id for entry in writable)
    raise UsageError(
        "the target format is not clear from the name",
        file=str(target),
        code="format",
        hint=f"{did_you_mean(target.suffix.lower(), suffixes)} Pass {{option:to=...}}, one of {ids}.".lstrip(),
    )
