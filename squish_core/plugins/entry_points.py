"""Plugins of installed distributions: their entry points, declarations and implementations.

Entry points are read from the folders of distributions, without `importlib.metadata`, which imports an email parser and
parses all metadata of every distribution. That takes longer than opening a file: it adds 65 to 100 ms to the 340 ms of
`squish formats` (25 interleaved runs on 2 cores, smallest and median CPU time).
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any, cast

from attrs import frozen

from squish_core.codes import ErrorCode
from squish_core.errors import FormatError, MissingPluginError, SquishError
from squish_core.plugins.entries import Entry
from squish_core.plugins.hookspecs import INFOS, PLURALS, SQUISH_API, Info

FILES = "SQUISH_PLUGIN_FILES"
"""The variable that names files of code to load as plugins. No file of settings sets it, because it runs code."""
_SUFFIXES = (".dist-info", ".egg-info")
_METADATA = ("METADATA", "PKG-INFO")
_OWN_FINDERS = ("_frozen_importlib_external", "importlib_metadata")
"""Modules of finders that find distributions in folders and zip files, as this one does."""


@frozen
class Distribution:
    """Name and version of an installed distribution."""

    name: str
    version: str


@frozen
class EntryPoint:
    """A name in a group of entry points, and what it refers to: `module` or `module:attribute`."""

    name: str
    value: str
    dist: Distribution | None

    def load(self) -> Any:
        """Import what the entry point refers to."""
        module, _, attributes = self.value.partition("[")[0].strip().partition(":")
        loaded: Any = importlib.import_module(module.strip())
        for attribute in filter(None, attributes.strip().split(".")):
            loaded = getattr(loaded, attribute)
        return loaded


class PluginFile(EntryPoint):
    """A file of Python code that the variable names; its module has the name of the file."""

    def load(self) -> Any:
        """Run the file, once in a process."""
        path, loaded = os.path.abspath(self.value), sys.modules.get(self.name)
        if loaded is None and importlib.util.find_spec(self.name) is None:
            spec = cast(Any, importlib.util.spec_from_file_location(self.name, path))
            loaded = sys.modules[self.name] = importlib.util.module_from_spec(spec)
            try:
                spec.loader.exec_module(loaded)
            except BaseException:
                del sys.modules[self.name]
                raise
        if getattr(loaded, "__file__", None) != path:
            raise SquishError(f"there is another module {self.name!r}", hint="Rename the file.", code=ErrorCode.IMPORT)
        return loaded


def entry_points(group: str = "squish") -> list[Any]:
    """Entry points of a group, of the first distribution of each name on `sys.path`, ordered by distribution."""
    files = filter(None, os.environ.get(FILES, "").split(os.pathsep))
    named = [PluginFile(os.path.splitext(os.path.basename(path))[0], path, Distribution(path, "")) for path in files]
    points = [*_points(group), *named]
    return sorted(points, key=lambda point: point.dist.name if point.dist else "")


def _points(group: str) -> Iterator[Any]:
    if any(hasattr(finder, "find_distributions") and not _is_own(finder) for finder in sys.meta_path):
        import importlib_metadata

        yield from importlib_metadata.entry_points(group=group)
        return
    seen: set[str] = set()
    for folder in sys.path:
        if os.path.isfile(folder):  # a zip file
            yield from _from_archive(group, folder)
        elif names := _listdir(folder or os.curdir):
            for name in names:
                if not name.endswith(_SUFFIXES):
                    continue
                key = re.sub(r"[-_.]+", "-", name[:-10].partition("-")[0]).lower()
                if key not in seen:
                    seen.add(key)
                    yield from _from_folder(os.path.join(folder or os.curdir, name), group)


def _is_own(finder: Any) -> bool:
    return (getattr(finder, "__module__", None) or type(finder).__module__).partition(".")[0] in _OWN_FINDERS


def _from_archive(group: str, path: str) -> Iterator[Any]:
    """Entry points of the distributions in a zip file."""
    import importlib_metadata

    for dist in importlib_metadata.distributions(path=[path]):
        yield from dist.entry_points.select(group=group)


def _listdir(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _from_folder(folder: str, group: str) -> Iterator[EntryPoint]:
    """Entry points of one distribution."""
    text = _text(os.path.join(folder, "entry_points.txt"))
    if f"[{group}]" not in text:
        return
    section, dist = "", _distribution(folder)
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            section = line.strip("[]")
        elif section == group and "=" in line and line[0] not in "#;":
            name, _, value = line.partition("=")
            yield EntryPoint(name.strip(), value.strip(), dist)


def _distribution(folder: str) -> Distribution | None:
    """Name and version from the first lines of the metadata; None without metadata."""
    for file in _METADATA:
        fields: dict[str, str] = {}
        for line in _text(os.path.join(folder, file)).splitlines():
            if not line:  # the description follows
                break
            key, _, value = line.partition(":")
            fields.setdefault(key.lower(), value.strip())
        if "name" in fields:
            return Distribution(fields["name"], fields.get("version", ""))
    return None


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def distribution(point: Any) -> str:
    """Return the distribution of an entry point."""
    return str(point.dist.name if point.dist else point.value)


def import_implementation(entry: Entry[Any]) -> Any:
    """Import and instantiate an entry's factory; MissingPluginError if that fails."""
    module, _, name = entry.info.factory.partition(":")
    try:
        factory = getattr(importlib.import_module(module), name)
        if hasattr(factory, "from_params") and factory.id != entry.info.id:  # a class of codecs, for any id
            factory = type(factory.__name__, (factory,), {"__module__": factory.__module__, "id": entry.info.id})
        implementation = factory()
        implementation.id = entry.info.id
        return implementation
    except FormatError:  # what a file declares, which says where
        raise
    except Exception as error:  # a plugin's module or constructor may raise anything
        raise MissingPluginError(
            f"{entry.info.id!r} cannot be imported: {type(error).__name__}: {error}",
            code=ErrorCode.IMPORT,
            hint=f"Reinstall {entry.dist}.",
        ) from error


def declarations(manager: Any, plugin: Any) -> Iterator[tuple[str, Info]]:
    """Yield the kind and data of all that a plugin declares.

    Refuses a plugin for another version of the plugin interface, and one that implements a hook that does not exist.
    """
    version = getattr(plugin, "SQUISH_API", SQUISH_API)
    if version != SQUISH_API:
        raise SquishError(
            "the plugin needs another version of the plugin interface",
            expected=f"SQUISH_API {SQUISH_API}",
            found=version,
            code="api",
            hint="Install matching versions of the plugin and squish-core.",
        )
    for caller in manager.get_hookcallers(plugin) or ():
        if not caller.has_spec():
            raise SquishError("implements a hook that does not exist", found=caller.name, code="hook")
    # Implementations are called one by one, to attribute results and failures to their distributions.
    for kind, info_type in INFOS.items():
        hook = getattr(manager.hook, f"squish_{PLURALS.get(kind, f'{kind}s')}")
        for implementation in hook.get_hookimpls():
            if implementation.plugin is plugin:
                for info in cast(Iterable[Any], implementation.function()):
                    if not isinstance(info, info_type):
                        raise TypeError(f"{hook.name} must return {info_type.__name__}, not {type(info).__name__}")
                    yield kind, info
