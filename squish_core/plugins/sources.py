"""Sources of URLs: the plugin for a scheme, and its options."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from squish_core.codes import ErrorCode
from squish_core.errors import FormatError, MissingPluginError, UsageError, redact
from squish_core.guard import guarded
from squish_core.io.local import open_source
from squish_core.io.source import Source
from squish_core.log import log
from squish_core.plugins import catalog
from squish_core.plugins.entries import Conflict, Entry
from squish_core.plugins.hookspecs import SourceInfo
from squish_core.plugins.registry import Registry

if TYPE_CHECKING:
    from squish_core.io.pin import Pin
    from squish_core.io.urls import RemoteTarget, SourceOpener

VARIABLE = "SQUISH_SOURCE"
"""Environment variable with options of sources: `NAME=VALUE[,...]`."""
ANY = "*"
"""Matches every scheme that no other source declares."""
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


def open_target(target: Any, registry: Registry, options: Mapping[str, Any] | None = None) -> Source:
    """Open a path, bytes, or a URL or a pin (through the plugin for its scheme) as a source.

    `options` of the source override those in `SQUISH_SOURCE`.
    """
    if not isinstance(target, (str, os.PathLike, bytes)):
        from squish_core.io.pin import Pin

        if isinstance(target, Pin):
            return _open_pinned(target, registry, options or {})
    scheme = scheme_of(target)
    if scheme is None:
        if options:
            expected = "a URL such as https://..."
            found = ", ".join(sorted(options))
            raise UsageError("source options are for URLs", found=found, expected=expected, code=ErrorCode.USAGE)
        return open_source(target)
    entry = source_entry(scheme, registry, target)
    merged = _options(entry, options or {})
    log("opening %s through %s of %s", redact(target), entry.id, entry.dist)
    with guarded(FormatError, f"opening a source of {entry.info.id}", file=redact(target)):
        opener: SourceOpener = registry.instance("source", entry)
        return opener.open(_normalized(target), merged)


def _open_pinned(pin: Pin, registry: Registry, options: Mapping[str, Any]) -> Source:
    entry = source_entry(scheme_of(pin.url) or "", registry, pin.url)
    merged = _options(entry, options)
    with guarded(FormatError, f"opening a source of {entry.info.id}", file=redact(pin.url)):
        opener: SourceOpener = registry.instance("source", entry)
        source = opener.open_pinned(pin, merged)
    try:
        pin.check(source.pin)
    except BaseException:
        source.close()
        raise
    return source


def remote_target(url: str, registry: Registry) -> RemoteTarget:
    """Return a target at a URL, through the plugin for its scheme; nothing is written yet."""
    entry = source_entry(scheme_of(url) or "", registry, url)
    options = _options(entry, {})
    with guarded(FormatError, f"opening a target of {entry.info.id}", file=redact(url)):
        opener: SourceOpener = registry.instance("source", entry)
        return opener.create(_normalized(url), options)


def _options(entry: Entry[SourceInfo], options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a source, those in `SQUISH_SOURCE` included."""
    merged = {**options_from_environment(), **options}
    info = entry.info
    if unknown := sorted(set(merged) - set(info.options)):
        raise UsageError(
            f"the source {info.id!r} has no such option",
            found=", ".join(unknown),
            expected=", ".join(sorted(info.options)) or "no options",
            code=ErrorCode.OPTION,
        )
    return merged


def scheme_of(target: Any) -> str | None:
    """Return the scheme of a URL in lower case; None for text without `://` or an existing path."""
    match = _SCHEME.match(target) if isinstance(target, str) else None
    return match[1].lower() if match and not os.path.lexists(target) else None


def _normalized(url: str) -> str:
    """Return a URL with its scheme in lower case, as plugins declare it."""
    scheme, separator, rest = url.partition("://")
    return f"{scheme.lower()}{separator}{rest}"


def source_entry(scheme: str, registry: Registry, url: str) -> Entry[SourceInfo]:
    """Return the source for a scheme; an error lists those in conflict, or names the package to install."""
    entries = _declaring(scheme, registry) or _declaring(ANY, registry)
    preferences = registry.prefer
    preferred = [entry for entry in entries if entry.dist in (preferences.get(scheme), preferences.get(entry.id))]
    if len(preferred or entries) == 1:
        return (preferred or entries)[0]
    if entries:
        raise Conflict(kind="source", id=scheme, dists=tuple(entry.dist for entry in entries)).error()
    hint = f"Run `{catalog.install_command(source_package(scheme))}`."
    raise MissingPluginError(
        f"no installed plugin reads {scheme}:// addresses", file=redact(url), code=ErrorCode.NOT_INSTALLED, hint=hint
    )


def source_package(scheme: str) -> str:
    """Return the package that reads a scheme, with the extra for its library."""
    extra = {"hf": "[hf]"}.get(scheme, "" if scheme in catalog.packages("source") else "[fsspec]")
    return f"squish-remote{extra}"


def _declaring(scheme: str, registry: Registry) -> list[Entry[SourceInfo]]:
    return registry.find("source", schemes=scheme)


def options_from_environment() -> dict[str, str]:
    """Return the options in `SQUISH_SOURCE`; UsageError if it is invalid."""
    items = [item.partition("=") for item in os.environ.get(VARIABLE, "").split(",") if item.strip()]
    if wrong := [name for name, equals, _ in items if not name.strip() or not equals]:
        raise UsageError(
            f"{VARIABLE} is invalid", expected="NAME=VALUE[,...]", found=repr(wrong[0]), code=ErrorCode.USAGE
        )
    return {name.strip(): value.strip() for name, _, value in items}
