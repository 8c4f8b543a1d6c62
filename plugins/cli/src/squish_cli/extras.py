"""Commands that plugins add through the hook `squish_commands`."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from squish_core.codes import ErrorCode
from squish_core.errors import MissingPluginError, SquishError
from squish_core.plugins import catalog
from squish_core.plugins.registry import registry

from . import inventory


def add_commands(app: typer.Typer) -> list[tuple[str, str]]:
    """Add every plugin's commands; returns (plugin, reason) for those that fail."""
    try:
        return inventory.add_commands(registry(), app)
    except SquishError:
        return []  # invalid settings must not disable `--help`; other commands report them


def command_names(app: typer.Typer) -> set[str]:
    """Names of all commands, those of groups as `cache list`."""
    groups = {group.name or "": group.typer_instance for group in app.registered_groups}
    names = {entry.name or "" for entry in app.registered_commands} | groups.keys()
    for name, group in groups.items():
        names |= {f"{name} {entry.name}" for entry in group.registered_commands} if group else set()
    return names


def check_known(app: typer.Typer, words: Sequence[str], failed: Sequence[tuple[str, str]]) -> None:
    """MissingPluginError for a command of a package of this repository that is not installed or is broken."""
    command = next((name for name in (" ".join(words[:2]), " ".join(words[:1])) if name in catalog.COMMANDS), "")
    if not command or command in command_names(app):
        return
    package = catalog.COMMANDS[command]
    broken = {**{plugin.dist: plugin.reason for plugin in registry().broken}, **dict(failed)}
    if package in broken:
        raise MissingPluginError(
            f"the command {command!r} is not available: {package} is broken: {broken[package]}", code=ErrorCode.BROKEN,
            hint="`squish doctor` shows details.",
        )  # fmt: skip
    raise MissingPluginError(
        f"the command {command!r} is not installed",
        code=ErrorCode.NOT_INSTALLED,
        hint=f"Run `{catalog.install_command(package, extra=catalog.COMMAND_EXTRAS.get(command, ''))}`.",
    )
