"""What `squish doctor` looks at; the one place that imports every installed implementation."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import typer

from squish_core import concurrency
from squish_core.cli.extras import add_commands
from squish_core.cli.listings import brought, conflicts, listed, missing_ids
from squish_core.cli.output import Answer
from squish_core.concurrency import cores, workers
from squish_core.display.tables import table
from squish_core.errors import SquishError
from squish_core.plugins import catalog

if TYPE_CHECKING:
    from squish_core.plugins.registry import Registry

LIBRARIES = ("numpy", "ml_dtypes", "attrs", "cbor2", "pluggy", "typer", "rich")


def diagnose() -> Answer:
    """The whole diagnosis; settings that cannot be read are a finding here, not the end."""
    from squish_core.plugins.entries import VARIABLE
    from squish_core.plugins.registry import registry

    data: dict[str, Any] = {"versions": versions(), "machine": machine(), "settings": os.environ.get(VARIABLE)}
    data["threads"] = threads()
    try:
        found = registry()
    except SquishError as error:
        data.update(conflict=str(error), conflicts=[], plugins=[], backends=[], missing={})
    else:
        data.update(
            conflict=None, conflicts=conflicts(found), plugins=plugins(found), backends=backends(found),
            missing=missing(found),
        )  # fmt: skip
    bad = (
        data["conflict"]
        or data["conflicts"]
        or data["threads"]["problem"]
        or any(not plugin["ok"] for plugin in data["plugins"])
    )
    return Answer({"ok": not bad, **data}, list(lines(data)), 1 if bad else 0)


def versions() -> dict[str, str | None]:
    """Versions of Python and of what the core and its command line use; None when not installed."""
    from importlib.metadata import PackageNotFoundError, version

    from squish_core import __version__

    found: dict[str, str | None] = {"squish-core": __version__, "python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def machine() -> dict[str, Any]:
    """System, processor, cores this process may use, memory in bytes (None: not known)."""
    total: int | None
    free: int | None
    try:
        page = os.sysconf("SC_PAGE_SIZE")
        total, free = (page * os.sysconf(name) for name in ("SC_PHYS_PAGES", "SC_AVPHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        total = free = None
    return {
        "system": f"{platform.system()} {platform.release()}", "processor": platform.machine(),
        "byteorder": sys.byteorder, "cores": cores(), "memory": total, "free_memory": free,
    }  # fmt: skip


def threads() -> dict[str, Any]:
    """How many threads Squish uses at once, what SQUISH_THREADS says, and why it cannot be read."""
    setting = os.environ.get(concurrency.VARIABLE)
    try:
        return {"workers": workers(), "setting": setting, "problem": None}
    except SquishError as error:
        return {"workers": None, "setting": setting, "problem": str(error)}


def plugins(found: Registry) -> list[dict[str, Any]]:
    """Every plugin with what is wrong with it: not loaded, an implementation that cannot be imported, commands."""
    rows = []
    commands = add_commands(typer.Typer())
    for plugin in found.plugins:
        reasons = [*failures(found, plugin.dist)]
        reasons += [f"its commands failed: {reason}" for dist, reason in commands if dist == plugin.name]
        rows.append(
            {"dist": plugin.dist, "version": plugin.version, "ok": not reasons, "reasons": reasons,
             "brings": brought(found, plugin.dist)}
        )  # fmt: skip
    broken = [{"dist": b.dist, "version": "", "ok": False, "reasons": [b.reason], "brings": {}} for b in found.broken]
    return [*rows, *broken]


def failures(found: Registry, dist: str) -> Iterable[str]:
    """Why implementations of a distribution cannot be imported."""
    for kind in ("container", "codec", "allocator", "backend"):
        for entry in found.find(kind):
            name = entry.info.id
            if entry.dist == dist:
                try:
                    found.instance(kind, entry)
                except Exception as error:  # a plugin may fail in any way at all
                    yield (
                        error.message if isinstance(error, SquishError) else f"{name}: {type(error).__name__}: {error}"
                    )


def backends(found: Registry) -> list[dict[str, Any]]:
    """Which backends run on this machine, and why not the others."""
    rows = []
    for name in sorted(found.backends):
        try:
            available = found.backend(name).probe()
            ok, reason, device, facts = available.ok, available.reason, available.device, dict(available.facts)
        except Exception as error:  # a probe must not stop the others
            ok, reason, device, facts = False, f"{type(error).__name__}: {error}", "", {}
        rows.append({"id": name, "ok": ok, "reason": reason, "device": device, "facts": facts})
    return rows


def missing(found: Registry) -> dict[str, dict[str, list[str]]]:
    """Package -> what it would bring, for the packages of this repository that are not installed."""
    absent: dict[str, dict[str, list[str]]] = {}
    for kind in catalog.PACKAGES:
        for package, ids in missing_ids(kind, found).items():
            absent.setdefault(package, {})["formats" if kind == "container" else f"{kind}s"] = ids
    return absent


def lines(data: dict[str, Any]) -> Iterable[str]:
    """The diagnosis for people."""
    from squish_core.text import format_bytes

    for name, version in data["versions"].items():
        yield f"{name:12} {version or 'not installed'}"
    this = data["machine"]
    memory = (
        f"{format_bytes(this['memory'])} ({format_bytes(this['free_memory'])} free)" if this["memory"] else "unknown"
    )
    yield from ("", f"machine      {this['system']}, {this['processor']}, {this['byteorder']}-endian")
    yield f"             {this['cores']} cores, memory {memory}"
    threads = data["threads"]
    source = f"SQUISH_THREADS={threads['setting']}" if threads["setting"] else "one per core; SQUISH_THREADS sets it"
    yield f"threads      {threads['problem'] or '{workers} ({source})'.format(source=source, **threads)}"
    if data["settings"]:
        yield f"settings     SQUISH_PLUGINS={data['settings']}"
    if data["conflict"]:
        yield from ("", f"broken: {data['conflict']}")
        return
    yield from ("", "plugins")
    for plugin in data["plugins"]:
        state, name = "ok" if plugin["ok"] else "broken", f"{plugin['dist']} {plugin['version']}".strip()
        yield f"  {state:6}  {name}" + (f": {listed(plugin['brings'])}" if plugin["ok"] or plugin["brings"] else "")
        yield from (f"          {reason}" for reason in plugin["reasons"])
    yield from (f"  conflict: {message}" for message in data["conflicts"])
    yield from ("", "backends")
    for backend in data["backends"]:
        facts = ", ".join(f"{key} {value}" for key, value in backend["facts"].items())
        told = "; ".join(text for text in (backend["device"], facts, backend["reason"]) if text)
        yield f"  {'ok' if backend['ok'] else 'no':6}  {backend['id']}: {told}"
    if data["missing"]:
        yield from ("", "not installed")
        rows = [(catalog.install_command(name), listed(ids)) for name, ids in data["missing"].items()]
        yield from table(("", ""), "<<", rows, "  ")[1:]
