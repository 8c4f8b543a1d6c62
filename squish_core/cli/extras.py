"""Commands that plugins add through the hook `squish_commands`."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from squish_core.codes import ErrorCode
from squish_core.errors import MissingPluginError, SquishError
from squish_core.plugins import catalog, inventory
from squish_core.plugins.registry import registry


def add_commands(app: typer.Typer) -> list[tuple[str, str]]:
    """Let every plugin add its commands; returns (plugin, reason) for those that failed."""
    try:
        return inventory.add_commands(registry(), app)
    except SquishError:
        return []  # settings that cannot be read must not take `--help` away; other commands say what is wrong


def check_known(app: typer.Typer, words: Sequence[str], failed: Sequence[tuple[str, str]]) -> None:
    """MissingPluginError for a command that a package of this repository brings and that the app has not."""
    command = next((name for name in (" ".join(words[:2]), " ".join(words[:1])) if name in catalog.COMMANDS), "")
    groups = {each.name: each.typer_instance for each in app.registered_groups}
    added = {each.name for each in app.registered_commands} | groups.keys()
    for name, group in groups.items():
        added |= {f"{name} {each.name}" for each in group.registered_commands} if group else set()
    if not command or command in added:
        return
    package = catalog.COMMANDS[command]
    broken = {**{each.dist: each.reason for each in registry().broken}, **dict(failed)}
    if package in broken:
        raise MissingPluginError(
            f"the command {command!r} cannot be had: {package} is broken: {broken[package]}", code=ErrorCode.BROKEN,
            hint="`squish doctor` says more.",
        )  # fmt: skip
    raise MissingPluginError(
        f"the command {command!r} is not installed",
        code=ErrorCode.NOT_INSTALLED,
        hint=f"Run `{catalog.install_command(package)}`.",
    )
