"""`squish config`: the settings of the user, and where each value comes from.

On its own because every command reads the settings, and only this one changes them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from attrs import asdict, evolve

from squish_core.codes import ErrorCode
from squish_core.display import table
from squish_core.errors import SquishError, UsageError

from . import settings
from .options import App, Json
from .output import Answer

Name = Annotated[str, typer.Argument(metavar="SETTING", help="A setting, or its variable: threads, SQUISH_THREADS.")]
Value = Annotated[str, typer.Argument(metavar="VALUE", help="The value, as in the variable.")]


DOCUMENTS = "squish_cli.documents"
SCHEMA = "squish/config/1"
"""The schema of `squish config` itself, which lists as `squish config list` does."""


def config_group() -> App:
    """Return the group `squish config`."""
    app = App(help="List and change settings.", invoke_without_command=True, prefix="config-")
    app.callback()(group)
    app.command("list", examples=["squish config list"], document=f"{DOCUMENTS}:ConfigList")(list_settings)
    app.command("get", examples=["squish config get threads"], document=f"{DOCUMENTS}:ConfigGet")(get)
    examples = ["squish config set threads 4", "squish config set cache ~/models/cache"]
    app.command("set", examples=examples, document=f"{DOCUMENTS}:ConfigSet")(put)
    app.command("unset", examples=["squish config unset threads"], document=f"{DOCUMENTS}:ConfigUnset")(unset)
    return app


def group(context: typer.Context, json: Json = False) -> Answer | None:
    """List and change settings; without a command, list them."""
    return evolve(list_settings(), schema=SCHEMA) if context.invoked_subcommand is None else None


def list_settings() -> Answer:
    """List the settings with their values, and where these come from.

    The environment wins over the file, and the file over the default. SQUISH_CONFIG names another file.
    """
    found = settings.configuration()
    rows = [(each.name, settings.effective(each), each.origin, each.meaning) for each in found.settings]
    lines = [f"{found.file}{'' if found.exists else ' (does not exist)'}", ""]
    if found.problem is not None:
        lines[1:] = [f"broken: {found.problem}", ""]
    lines += table(("setting", "value", "from", "meaning"), "<<<<", rows)
    return Answer(asdict(found), lines)


def get(name: Name) -> Answer:
    """Print the value of a setting, or its default."""
    state = settings.state_of(settings.setting(name))
    return Answer(asdict(state), [settings.effective(state)], verbatim=True)


def put(name: Name, value: Value) -> Answer:
    """Write a setting into the user's file."""
    setting = settings.setting(name)
    if setting.type == "path":
        value = str(Path(value).expanduser().absolute())
    before = os.environ.get(setting.variable)
    os.environ[setting.variable] = value
    try:
        if not value:
            raise UsageError("the value is empty", code=ErrorCode.USAGE)
        settings.check_value(setting, value)
    except SquishError as error:
        error.hint = f"Choose {setting.expected}."
        raise
    finally:
        os.environ.pop(setting.variable)
        os.environ.update({} if before is None else {setting.variable: before})
    return _changed(setting, int(value) if setting.type == "integer" else value)


def unset(name: Name) -> Answer:
    """Remove a setting from the user's file."""
    return _changed(settings.setting(name), None)


def _changed(setting: settings.Setting, value: int | str | None) -> Answer:
    """Write the file with another value of a setting, and say so."""
    from squish_core.io.atomic import atomic_file

    path = settings.config_file()
    text = settings.with_value(path, setting.name, value)
    with atomic_file(path.resolve(), mode=0o600) as sink:
        sink.write(text.encode())
    data: dict[str, Any] = {"file": str(path), "name": setting.name, "value": None if value is None else str(value)}
    line = f"{path}: {setting.name} {'removed' if value is None else f'= {value}'}"
    hidden = setting.variable in os.environ and settings.state_of(setting).origin == "env"
    lines = [line, *([f"{setting.variable} is set in the environment, and wins"] if hidden else [])]
    return Answer(data, lines)
