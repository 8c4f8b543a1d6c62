"""Commands that plugins add through the hook `squish_commands`."""

from __future__ import annotations

from typing import Any

import typer

from squish_core.errors import SquishError
from squish_core.plugins import registry


def add_commands(app: typer.Typer) -> list[tuple[str, str]]:
    """Let every plugin add its commands, each alone; returns (plugin, reason) for those that failed."""
    try:
        hook: Any = registry().manager.hook.squish_commands
    except SquishError:
        return []  # plugins in conflict must not take `--help` away; every other command says what is wrong
    failed = []
    for implementation in hook.get_hookimpls():
        try:
            implementation.function(app)
        except Exception as error:  # a plugin may fail in any way at all
            failed.append((implementation.plugin_name, f"{type(error).__name__}: {error}"))
    return failed
