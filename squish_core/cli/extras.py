"""Commands that plugins add through the hook `squish_commands`."""

from __future__ import annotations

from typing import Any

import typer

from squish_core.codes import ErrorCode
from squish_core.errors import MissingPluginError, SquishError
from squish_core.plugins import catalog
from squish_core.plugins.registry import registry


def add_commands(app: typer.Typer) -> list[tuple[str, str]]:
    """Let every plugin add its commands, each alone; returns (plugin, reason) for those that failed."""
    try:
        hook: Any = registry().manager.hook.squish_commands
    except SquishError:
        return []  # settings that cannot be read must not take `--help` away; other commands say what is wrong
    failed = []
    for implementation in hook.get_hookimpls():
        try:
            implementation.function(app)
        except Exception as error:  # a plugin may fail in any way at all
            failed.append((implementation.plugin_name, f"{type(error).__name__}: {error}"))
    return failed


def check_known(app: typer.Typer, wanted: str | None, failed: list[tuple[str, str]]) -> None:
    """MissingPluginError for a command that a package of this repository brings and that the app has not."""
    package = catalog.COMMANDS.get(wanted or "")
    added = {*(each.name for each in app.registered_commands), *(each.name for each in app.registered_groups)}
    if package is None or wanted in added:
        return
    broken = {**{each.dist: each.reason for each in registry().broken}, **dict(failed)}
    if package in broken:
        raise MissingPluginError(
            f"the command {wanted!r} cannot be had: {package} is broken: {broken[package]}", code=ErrorCode.BROKEN,
            hint="`squish doctor` says more.",
        )  # fmt: skip
    raise MissingPluginError(
        f"the command {wanted!r} is not installed",
        code=ErrorCode.NOT_INSTALLED,
        hint=f"Run `{catalog.install_command(package)}`.",
    )
