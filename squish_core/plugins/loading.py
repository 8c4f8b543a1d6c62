"""Loads plugins, their declarations and implementations; a plugin that fails is recorded as broken, not raised."""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

import pluggy

from squish_core.codes import ErrorCode
from squish_core.errors import MissingPluginError, SquishError
from squish_core.plugins.entries import VARIABLE, Broken, Claims, Conflict, Entry, Loaded, Settings
from squish_core.plugins.entry_points import entry_points
from squish_core.plugins.hookspecs import INFOS, PLURALS, SQUISH_API, Hooks, Info

if TYPE_CHECKING:
    from squish_core.backends.answers import AnswerTable
    from squish_core.backends.resolve import Resolver
    from squish_core.codecs.base import Codec
    from squish_core.plugins.providers import Providers


GROUP = "squish"


def installed_entry_points() -> Iterable[Any]:
    """Entry points of the group `squish`, ordered by distribution."""
    return entry_points(GROUP)


def distribution(point: Any) -> str:
    """The distribution of an entry point."""
    return str(point.dist.name if point.dist else point.value)


def check_hooks(manager: Any, plugin: Any) -> None:
    """Refuse a plugin that implements a hook that does not exist."""
    for caller in manager.get_hookcallers(plugin) or ():
        if not caller.has_spec():
            raise SquishError("implements a hook that does not exist", found=caller.name, code="hook")


def check_api(plugin: Any) -> None:
    """Refuse a plugin for another version of the plugin interface."""
    version = getattr(plugin, "SQUISH_API", SQUISH_API)
    if version != SQUISH_API:
        raise SquishError(
            "the plugin needs another version of the plugin interface",
            expected=f"SQUISH_API {SQUISH_API}", found=version, code="api",
            hint="Install matching versions of the plugin and squish-core.",
        )  # fmt: skip


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
    except Exception as error:  # a plugin's module or constructor may raise anything
        raise MissingPluginError(
            f"{entry.info.id!r} cannot be imported: {type(error).__name__}: {error}",
            code=ErrorCode.IMPORT, hint=f"Reinstall {entry.dist}.",
        ) from error  # fmt: skip


class Plugins:
    """The plugins of this process: installed ones that the settings allow, and ones registered in the process."""

    def __init__(
        self,
        plugins: str | None = None,
        *,
        prefer: Mapping[str, str] | None = None,
        extra: Iterable[Any] = (),
        entry_points: Callable[[], Iterable[Any]] | None = None,
    ) -> None:
        self.settings = Settings.parse(os.environ.get(VARIABLE, "") if plugins is None else plugins)
        self.prefer = {**self.settings.prefer, **(prefer or {})}
        self.manager = pluggy.PluginManager("squish")
        self.manager.add_hookspecs(Hooks)
        self.plugins: list[Loaded] = []
        self.broken: list[Broken] = []
        self._claims = Claims(INFOS, self.prefer)
        self._tables = self._claims.winners
        self._instances: dict[tuple[str, str, str], Any] = {}
        self._unnamed: set[str] = set()
        self._providers: Providers | None = None
        self._bound: dict[Hashable, Codec] = {}
        self.answers: AnswerTable = {}
        self.resolvers: dict[str, Resolver] = {}
        self._found: dict[Hashable, list[Entry[Any]]] = {}
        self._lock = threading.RLock()
        from squish_core.plugins import builtin
        from squish_core.version import __version__

        self.register(builtin, dist="squish-core", version=__version__)
        points = list((entry_points or installed_entry_points)())
        names = {name for point in points for name in (distribution(point), point.name)}
        ids = self.settings.allow - names
        for point in points:
            self._load(point, ids)
        for plugin in extra:
            self.register(plugin)
        dists = {*(loaded.dist for loaded in self.plugins), *map(distribution, points)}
        self.settings.check(dists, {*names, *(name for table in self._tables.values() for name in table)})

    @property
    def conflicts(self) -> tuple[Conflict, ...]:
        """Ids that several distributions provide, unusable until one is uninstalled or chosen."""
        return tuple(self._claims.conflicts.values())

    def register(self, plugin: Any, dist: str | None = None, version: str = "") -> None:
        """Add a plugin from this process.

        Parameters
        ----------
        plugin
            A module or an object with hook implementations (`squish_core.api.hookimpl`).
        dist
            Name of its distribution; the plugin's own name by default.
        version
            Version of the distribution.

        Raises
        ------
        ConflictError
            Another distribution provides one of its ids; nothing is registered.

        Examples
        --------
        >>> import types
        >>> from squish_core.api import CodecInfo, hookimpl
        >>> def codecs():
        ...     return [CodecInfo(id="acme.rows", title="rows of i8", factory="acme:Rows")]
        >>> plugin = types.SimpleNamespace(codecs=hookimpl(codecs, specname="squish_codecs"))
        >>> registry = squish.Registry(extra=[plugin])
        >>> registry.codecs["acme.rows"].id
        'acme.rows'
        """
        self._register(plugin, dist, version, exclusive=True)

    def instance(self, kind: str, entry: Entry[Any]) -> Any:
        """Implementation of an entry from `find`, even if its id is in conflict."""
        key = kind, entry.info.id, entry.dist
        implementation = self._instances.get(key)  # looked up for every tensor, so without the lock
        if implementation is None:
            with self._lock:
                if key not in self._instances:
                    self._instances[key] = import_implementation(entry)
                implementation = self._instances[key]
        return implementation

    def _register(
        self, plugin: Any, dist: str | None, version: str, *, exclusive: bool, ids: Collection[str] = ()
    ) -> frozenset[str]:
        """Add a plugin and return its ids; with `ids`, only if it provides one of them."""
        name: str = dist or str(getattr(plugin, "__name__", type(plugin).__name__))
        check_api(plugin)
        with self._lock:
            count = sum(loaded.dist == name for loaded in self.plugins)
            label = f"{name} ({count + 1})" if count else name  # a distribution may have several plugins
            self.manager.register(plugin, name=label)
            try:
                check_hooks(self.manager, plugin)
                infos = list(self._declarations(plugin))
                names = frozenset(info.id for _, info in infos)
                if ids and not names.intersection(ids):
                    self.manager.unregister(plugin)
                    return names
                entries = [(kind, Entry(info=info, dist=name, version=version)) for kind, info in infos]
                self._claims.add(entries, exclusive=exclusive)
            except BaseException:
                self.manager.unregister(plugin)
                raise
            self.answers, self.resolvers, self._found, self._bound, self._providers = {}, {}, {}, {}, None
            self.plugins.append(Loaded(dist=name, name=label, version=version))
            return names

    def _load(self, point: Any, ids: Collection[str]) -> None:
        """Register an entry point if the settings allow it; a failure becomes a `broken` record.

        `ids`: names in the settings that are neither entry points nor distributions, and so may be ids of a plugin.
        """
        dist = distribution(point)
        version = point.dist.version if point.dist else ""
        is_named = self.settings.allows(dist, point.name)
        if not is_named and (not ids or self.settings.blocks(dist, point.name)):
            return
        try:
            names = self._register(point.load(), dist, version, exclusive=False, ids=() if is_named else ids)
            if not self.settings.allow.intersection((dist, point.name, *names)):
                self._unnamed.add(dist)
        except Exception as error:  # a plugin may raise anything, and must not affect the others
            if is_named:
                self.broken.append(Broken(dist=dist, name=point.name, reason=f"{type(error).__name__}: {error}"))

    def _declarations(self, plugin: Any) -> Iterator[tuple[str, Info]]:
        # Implementations are called one by one, to attribute results and failures to their distributions.
        for kind, info_type in INFOS.items():
            hook = getattr(self.manager.hook, f"squish_{PLURALS.get(kind, f'{kind}s')}")
            for implementation in hook.get_hookimpls():
                if implementation.plugin is plugin:
                    for info in cast(Iterable[Any], implementation.function()):
                        if not isinstance(info, info_type):
                            raise TypeError(f"{hook.name} must return {info_type.__name__}, not {type(info).__name__}")
                        yield kind, info
