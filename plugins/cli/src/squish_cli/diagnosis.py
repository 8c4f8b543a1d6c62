"""`squish doctor` and `diagnose`: the state of the installation, and what interrupted writes left in a folder.

The only module that imports every implementation.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from attrs import asdict, field, frozen

from squish_core import concurrency
from squish_core.codes import ErrorCode
from squish_core.display import fit_all, table
from squish_core.errors import SquishError, UsageError
from squish_core.io import system
from squish_core.io.local import FileSource, open_folder
from squish_core.io.paths import missing
from squish_core.plugins import catalog
from squish_core.plugins.entries import VARIABLE
from squish_core.plugins.registry import Registry
from squish_core.plugins.registry import registry as installed
from squish_core.shown import Shown
from squish_core.text import escape, format_bytes

from .cache import cache_group
from .listings import conflicts, missing_packages, provided_ids, summarize
from .options import App
from .output import Answer
from .settings import Configuration, configuration

if TYPE_CHECKING:
    from squish_convert.html import Html

UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def leftovers(folder: str, clean: bool) -> Answer:
    """List what interrupted writes left in a folder and its subfolders; `clean` removes dead writers' temporaries."""
    from squish_core.io.atomic import remove, temporaries

    open_folder(folder).close()  # raises if the path is not a folder
    path = Path(folder)
    try:
        found, torn = list(temporaries(path)), list(_torn_appends(path))
    except OSError as error:
        raise missing(path, error) from None
    rows = []
    for leftover in found:
        state, reason = leftover.state, None
        if clean and state == "dead":
            try:
                state = "removed" if remove(leftover) else "live"
            except OSError as error:
                reason = error.strerror or str(error)
        rows.append(
            {
                "file": str(leftover.path),
                "target": str(leftover.target),
                "size": leftover.size,
                "age": leftover.age,
                "state": state,
                "error": reason,
            }
        )
    appends = [{"file": str(path), "size": count} for path, count in torn]
    ok = not any(row["error"] for row in rows)
    data = {"ok": ok, "folder": folder, "temporaries": rows, "torn_appends": appends}
    return Answer(data, list(_leftover_lines(rows, appends)), 0 if ok else 1)


def _torn_appends(folder: Path) -> Iterator[tuple[Path, int]]:
    """Files below a folder whose last append was interrupted, with the number of bytes it left."""
    for rollback in sorted(folder.rglob(".*.edit")):
        target = rollback.with_name(rollback.name[1:].removesuffix(".edit"))
        with suppress(SquishError), closing(FileSource(target)) as source:
            if any(finding.code == ErrorCode.TORN_APPEND for finding in source.findings):
                yield target, target.stat().st_size - source.size


def _leftover_lines(rows: Sequence[dict[str, Any]], appends: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the findings as text; for temporaries that may be in use, only their number."""
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
        size = format_bytes(append["size"])
        yield f"torn append: {append['file']}: {size} of an interrupted edit; `squish edit FILE --recover` removes it"
    if not removable and not appends:
        yield "nothing here was left by an interrupted write"


def age(seconds: float) -> str:
    """Return a duration in its largest unit: `3 d`, `20 min`."""
    size, unit = next(((size, unit) for size, unit in UNITS if seconds >= size), UNITS[-1])
    return f"{int(seconds // size)} {unit}"


LIBRARIES = ("numpy", "ml_dtypes", "attrs", "cbor2", "pluggy", "typer", "rich")


@frozen(kw_only=True)
class Machine:
    """The system, the processor, the cores available to this process, and memory in bytes (None: unknown)."""

    system: str
    processor: str
    byteorder: str
    cores: int
    memory: int | None
    free_memory: int | None


@frozen(kw_only=True)
class Threads:
    """Number of threads in use, value of SQUISH_THREADS, and why that is invalid."""

    workers: int | None
    setting: str | None
    problem: str | None


@frozen(kw_only=True)
class PluginState:
    """A plugin: the ids it provides by kind, and its faults."""

    package: str
    version: str
    ok: bool
    reasons: tuple[str, ...]
    brings: Mapping[str, list[str]]

    @property
    def title(self) -> str:
        """Package and version."""
        return f"{self.package} {self.version}".strip()


@frozen(kw_only=True)
class BackendState:
    """Whether a backend runs on this machine, else the reason; the facts from its probe.

    `unverified`: the hardware on which it has never run.
    """

    id: str
    ok: bool
    reason: str
    device: str
    facts: Mapping[str, Any]
    unverified: str

    @property
    def about(self) -> str:
        """Device and facts, why it does not run, and what has never run it."""
        facts = ", ".join(f"{key} {value}" for key, value in self.facts.items())
        return "; ".join(filter(None, (self.device, facts, self.reason, self.unverified)))


@frozen(kw_only=True)
class Diagnosis(Shown):
    """What works here and what does not. `print(diagnosis)` shows what `squish doctor` prints.

    `settings` is the value of SQUISH_PLUGINS; if it is invalid, `conflict` says why and the rest is empty. `conflicts`
    lists ids that several distributions provide, `missing` the packages of this repository that are not installed.
    `configuration` is the user's file, what is wrong with it, and each setting with where it comes from.
    """

    versions: Mapping[str, str | None]
    machine: Machine
    threads: Threads
    settings: str | None
    configuration: Configuration = field(factory=configuration)
    conflict: str | None = None
    conflicts: tuple[str, ...] = ()
    plugins: tuple[PluginState, ...] = ()
    backends: tuple[BackendState, ...] = ()
    missing: Mapping[str, Mapping[str, list[str]]] = {}

    @property
    def ok(self) -> bool:
        """Whether every plugin works, no ids conflict and the settings are valid."""
        faults = self.conflict or self.conflicts or self.threads.problem or self.configuration.problem
        return not faults and all(plugin.ok for plugin in self.plugins)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON.

        Returns
        -------
        dict
            What `squish doctor --json` prints.

        Examples
        --------
        >>> squish.diagnose().to_dict()["machine"]["cores"] > 0
        True
        """
        return {"ok": self.ok, **asdict(self)}

    def lines(self) -> Iterator[str]:
        """Yield the diagnosis as text."""
        for name, version in self.versions.items():
            yield f"{name:12} {version or 'not installed'}"
        yield ""
        yield from (f"{name:12} {text}" for name, text in self._surroundings())
        if self.configuration.problem:
            yield f"broken: {self.configuration.problem}"
        if self.conflict:
            yield from ("", f"broken: {self.conflict}")
            return
        yield from ("", "plugins")
        for plugin in self.plugins:
            yield f"  {'ok' if plugin.ok else 'broken':6}  {plugin.title}" + (
                f": {summarize(plugin.brings)}" if plugin.ok or plugin.brings else ""
            )
            yield from (f"          {reason}" for reason in plugin.reasons)
        yield from (f"  conflict: {message}" for message in self.conflicts)
        yield from ("", "backends")
        for backend in self.backends:
            yield f"  {'ok' if backend.ok else 'no':6}  {backend.id}: {backend.about}"
        if self.missing:
            yield from ("", "not installed")
            yield from table(("", ""), "<<", self._missing(), "  ")[1:]

    def _tables_(self) -> Html:
        """Return the diagnosis for notebooks."""
        from squish_convert import html

        versions = [(name, version or "not installed") for name, version in self.versions.items()]
        faults = filter(None, (self.configuration.problem, self.conflict, *self.conflicts))
        plugins = [
            ("ok" if each.ok else "broken", each.title, "; ".join(each.reasons) or summarize(each.brings))
            for each in self.plugins
        ]
        backends = [("ok" if each.ok else "no", each.id, each.about) for each in self.backends]
        working, missing = all(plugin.ok for plugin in self.plugins), self._missing()
        lists = (
            ("versions", ("", ""), versions, False),
            ("plugins", ("", "plugin", "what it brings"), plugins, not working),
            ("backends", ("", "backend", "about"), backends, True),
            ("not installed", ("to install it", "what it brings"), missing, False),
        )
        folds = (
            html.details(f"{title}: {len(rows)}", html.table(header, "<" * len(header), rows), open_=is_open)
            for title, header, rows, is_open in lists
            if rows
        )
        return html.join(html.facts([*self._surroundings(), *(("broken", fault) for fault in faults)]), *folds)

    def _surroundings(self) -> Iterator[tuple[str, str]]:
        """Yield the machine, the threads, and the settings that are not the default with where they come from."""
        machine, threads, memory = self.machine, self.threads, "unknown"
        if machine.memory and machine.free_memory is not None:
            memory = f"{format_bytes(machine.memory)} ({format_bytes(machine.free_memory)} free)"
        yield "machine", f"{machine.system}, {machine.processor}, {machine.byteorder}-endian"
        yield "", f"{machine.cores} cores, memory {memory}"
        origin = (
            f"{concurrency.VARIABLE}={threads.setting}" if threads.setting else "one per core; SQUISH_THREADS sets it"
        )
        yield "threads", threads.problem or f"{threads.workers} ({origin})"
        heading = "settings"
        for each in self.configuration.settings:
            if each.origin != "default":
                place = self.configuration.file if each.origin == "file" else "env"
                yield heading, f"{each.variable}={each.value} (from {place})"
                heading = ""

    def _missing(self) -> list[tuple[str, str]]:
        return [(catalog.install_command(name), summarize(ids)) for name, ids in self.missing.items()]

    def __str__(self) -> str:
        return "\n".join(fit_all(map(escape, self.lines())))


def doctor(
    folder: Annotated[
        str | None,
        typer.Argument(
            metavar="FOLDER", help="Folder to search, with its subfolders, for leftovers of interrupted writes."
        ),
    ] = None,
    clean: Annotated[
        bool, typer.Option("--clean", help="Remove the temporary files that killed writers left in FOLDER.")
    ] = False,
) -> Answer:
    """Check the installation, or clean up a folder.

    Without FOLDER: versions, the machine, every plugin, which backends run here (or why not), and what is not
    installed. With FOLDER: what interrupted writes left in it. Exit code 1 if something is broken or cannot be
    removed.
    """
    if folder is not None:
        return leftovers(folder, clean)
    if clean:
        raise UsageError("--clean needs a FOLDER", code=ErrorCode.USAGE, hint="Run `squish doctor FOLDER --clean`.")
    diagnosis = diagnose()
    return Answer(diagnosis.to_dict(), list(diagnosis.lines()), 0 if diagnosis.ok else 1)


def diagnose(registry: Registry | None = None) -> Diagnosis:
    """Check the installation: versions, the machine, every plugin, and which backends run here.

    Imports every installed implementation. Invalid settings are reported, not raised.

    Parameters
    ----------
    registry
        The plugins to check; the installed ones by default.

    Returns
    -------
    Diagnosis
        Memory in bytes; `to_dict()` gives plain data for JSON.

    Examples
    --------
    >>> [backend.ok for backend in squish.diagnose().backends if backend.id == "numpy"]
    [True]
    """
    chosen = os.environ.get(VARIABLE)
    try:
        registry = registry or installed()
    except SquishError as error:
        return Diagnosis(
            versions=_versions(),
            machine=_machine(),
            threads=_threads(),
            settings=chosen,
            conflict=str(error),
        )
    return Diagnosis(
        versions=_versions(),
        machine=_machine(),
        threads=_threads(),
        settings=chosen,
        conflicts=tuple(conflicts(registry)),
        plugins=tuple(_plugins(registry)),
        backends=tuple(_backends(registry)),
        missing=missing_packages(registry),
    )


def _versions() -> dict[str, str | None]:
    """Versions of Python and of the libraries that the core uses; None if not installed."""
    from importlib.metadata import PackageNotFoundError, version

    from squish_core.version import __version__

    versions: dict[str, str | None] = {"squish-core": __version__, "python": platform.python_version()}
    for name in LIBRARIES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = None
    return versions


def _machine() -> Machine:
    total, free = system.machine_memory()
    return Machine(
        system=f"{platform.system()} {platform.release()}",
        processor=platform.machine(),
        byteorder=sys.byteorder,
        cores=system.cores(),
        memory=total,
        free_memory=free,
    )


def _threads() -> Threads:
    setting = os.environ.get(concurrency.VARIABLE)
    try:
        return Threads(workers=concurrency.workers(), setting=setting, problem=None)
    except SquishError as error:
        return Threads(workers=None, setting=setting, problem=str(error))


def _plugins(registry: Registry) -> Iterator[PluginState]:
    """Yield the state of every plugin, including failing imports and commands."""
    commands = _command_failures(registry)
    for plugin in registry.plugins:
        reasons = [*_import_failures(registry, plugin.dist)]
        reasons += [f"its commands failed: {reason}" for name, reason in commands if name == plugin.name]
        yield PluginState(
            package=plugin.dist,
            version=plugin.version,
            ok=not reasons,
            reasons=tuple(reasons),
            brings=provided_ids(registry, plugin.dist),
        )
    for broken in registry.broken:
        yield PluginState(package=broken.dist, version="", ok=False, reasons=(broken.reason,), brings={})


def _command_failures(registry: Registry) -> list[tuple[str, str]]:
    """(plugin, reason) for each plugin whose commands cannot be added."""
    app = App()
    app.add_typer(cache_group(), name="cache")
    return app.add_plugins(registry)


def _import_failures(registry: Registry, dist: str) -> Iterator[str]:
    """Yield why implementations of a distribution cannot be imported."""
    for kind in ("container", "codec", "allocator", "backend", "family", "source", "scheduler"):
        for entry in registry.find(kind):
            if entry.dist == dist:
                try:
                    registry.instance(kind, entry)
                except SquishError as error:
                    yield error.message
                except Exception as error:  # a plugin may raise anything
                    yield f"{entry.id}: {type(error).__name__}: {error}"


def _backends(registry: Registry) -> Iterator[BackendState]:
    for name in sorted(registry.backends):
        unverified = registry.backends[name].info.unverified
        try:
            probe = registry.backend(name).probe()
        except Exception as error:  # a failing probe must not affect the other backends
            reason = f"{type(error).__name__}: {error}"
            yield BackendState(id=name, ok=False, reason=reason, device="", facts={}, unverified=unverified)
        else:
            facts = dict(probe.facts)
            yield BackendState(
                id=name, ok=probe.ok, reason=probe.reason, device=probe.device, facts=facts, unverified=unverified
            )
