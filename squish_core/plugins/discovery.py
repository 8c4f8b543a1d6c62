"""Entry points of plugins, checks of plugins, and the import of implementations."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

from squish_core.codes import ErrorCode
from squish_core.errors import FormatError, MissingPluginError, SquishError
from squish_core.plugins.entries import Entry
from squish_core.plugins.entry_points import entry_points
from squish_core.plugins.hookspecs import SQUISH_API

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
    except FormatError:  # what a file declares, which says where
        raise
    except Exception as error:  # a plugin's module or constructor may raise anything
        raise MissingPluginError(
            f"{entry.info.id!r} cannot be imported: {type(error).__name__}: {error}",
            code=ErrorCode.IMPORT, hint=f"Reinstall {entry.dist}.",
        ) from error  # fmt: skip
