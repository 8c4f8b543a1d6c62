"""Commands that plugins add through the hook `squish_commands`."""

from __future__ import annotations

import typer

from squish_core.errors import MissingPluginError, SquishError
from squish_core.plugins import catalog, inventory
from squish_core.plugins.registry import registry


def add_commands(app: typer.Typer) -> list[tuple[str, str]]:
    """Let every plugin add its commands; returns (plugin, reason) for those that failed."""
    try:
        return inventory.add_commands(registry(), app)
    except SquishError:
        return []  # settings that cannot be read must not take `--help` away; other commands say what is wrong


def check_known(app: typer.Typer, wanted: str | None, failed: list[tuple[str, str]]) -> None:
    """MissingPluginError for a command that a package of this repository brings and that the app has not."""
    package = catalog.COMMANDS.get(wanted or "")
    added = {*(each.name for each in app.registered_commands), *(each.name for each in app.registered_groups)}
    if package is None or wanted in added:
        return
    broken = {**{each.dist: each.reason for each in registry().broken}, **dict(failed)}
    if package in broken:
        raise MissingPluginError(
            f"the command {wanted!r} cannot be had: {package} is broken: {broken[package]}", code="broken",
            hint="`squish doctor` says more.",
        )  # fmt: skip
    raise MissingPluginError(
        f"the command {wanted!r} is not installed",
        code="not-installed",
        hint=f"Run `{catalog.install_command(package)}`.",
    )
