"""The commands and ids of an installation as plain data, read from the command objects and the registry.

`tables/commands.json` is this table for all packages of the repository, which completion, `squish explain` and the man
pages use without loading any plugin. `python tests/lint/commands.py` writes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import tables

if TYPE_CHECKING:
    from squish_core.plugins.registry import Registry

FILE = Path(tables.place("commands"))
OWN = "squish-core-cli"
Table = dict[str, Any]

METAVARS: dict[str, str] = {
    **dict.fromkeys(("SRC", "A", "B", "MODEL", "BASE", "SOURCE", "FILE2"), "weights"),
    **dict.fromkeys(("DST", "OUT", "FILE", "[FILE]", "OUT.json", "NAME|YAML"), "path"),
    **dict.fromkeys(("DIR", "FOLDER"), "folder"),
    **dict.fromkeys(("SPEC", "TYPE"), "encoding"),
    **dict.fromkeys(("[PATTERN=]SPEC", "REGEX=TYPE"), "rule"),
    "PATTERN": "tensor",
    "NAME[=FILE]": "component",
    "LORA[=SCALE]": "weights",
    "MODEL.onnx": "path .onnx",
    "ID[:key=value,...]": "format",
    "ID[:key=value]": "backend",
    "local[:N]|dask[:ADDRESS]": "scheduler",
    "WORD": "word",
    "COMMAND": "command",
    "SETTING": "setting",
}
"""Metavar -> kind of values that Tab offers; `a|b` is a choice, as it stands. Anything else is free text."""
PARAMETERS = {
    "FILE": "weights",
    "--to": "target",
    "--family": "path .toml",
    "--recipe": "path",
    "--device": "cpu|cuda|mps",
    **dict.fromkeys(("--install-completion", "--show-completion"), "bash|zsh|fish"),
    "formats ID": "format",
    "matrix ID": "format",
    "codecs NAME": "codec",
    "backends NAME": "backend",
    "plugins NAME": "plugin",
    "families NAME": "family",
    "new-plugin --base": "family",
    "needs --backend": "backend",
}
"""Argument or option, possibly of one command -> kind of its values, where its metavar does not tell."""
LITERAL = re.compile(r"\[?=?[\w.-]+(\|[\w.-]+)*\]?")


def command_table(registry: Registry) -> Table:
    """Return commands and ids of the plugins in a registry.

    Parameters
    ----------
    registry
        The plugins.

    Returns
    -------
    dict
        `commands`: name -> package, help, arguments, options and examples; `options`: those of `squish` itself; `ids`:
        kind -> id -> package and title; `settings`: the names for `squish config`; `suffixes` of files of weights.
    """
    from .settings import SETTINGS

    commands = dict(_commands(registry))
    root = commands.pop("")
    formats = [entry.info for entry in registry.containers.values()]
    return {
        "commands": dict(sorted(commands.items())),
        "help": root["help"],
        "options": root["options"],
        "ids": ids(registry),
        "values": {entry.id: sorted({*entry.options, *entry.reading}) for entry in formats},
        "settings": {setting.name: setting.meaning for setting in SETTINGS},
        "suffixes": sorted({suffix for entry in formats for suffix in entry.suffixes} | {".safetensors"}),
    }


def ids(registry: Registry) -> dict[str, dict[str, list[str]]]:
    """Return kind -> id -> package and title."""
    kinds = ("container", "codec", "backend", "allocator", "family", "scheduler", "source")
    found = {kind: {entry.id: [entry.dist, entry.info.title] for entry in registry.find(kind)} for kind in kinds}
    targets = {entry.id: [entry.dist, entry.info.title] for entry in registry.find("container", can_write=True)}
    names: dict[str, list[str]] = {}
    for kind in ("codec", "encoder", "container"):
        for entry in registry.find(kind):
            for name, spec in entry.info.aliases.items():
                names.setdefault(name, [entry.dist, f"short for {spec}"])
    plugins = {plugin.dist: [plugin.dist, ""] for plugin in registry.plugins}
    renamed = {"format": found.pop("container"), "target": targets, "preset": found.pop("allocator")}
    return {**renamed, **found, "short name": dict(sorted(names.items())), "plugin": plugins}


def _commands(registry: Registry) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (name, facts) of each command, then of groups and of `squish` itself, whose name is ""."""
    import typer

    from .app import build

    app = build([], registry)
    owners = dict(_owners(registry))
    root = typer.main.get_command(app)
    yield "", _facts("", root, OWN)
    for name, command in root.commands.items():  # type: ignore[attr-defined]
        children = getattr(command, "commands", {})
        yield name, {**_facts(name, command, owners.get(name, OWN)), **({"group": True} if children else {})}
        for child, each in children.items():
            yield f"{name} {child}", _facts(f"{name} {child}", each, owners.get(f"{name} {child}", OWN))


def _owners(registry: Registry) -> Iterator[tuple[str, str]]:
    """Yield (command, package) of the commands that plugins add."""
    from .app import command_names
    from .cache import cache_group
    from .options import App

    packages = {plugin.name: plugin.dist for plugin in registry.plugins}
    for implementation in registry.manager.hook.squish_commands.get_hookimpls():
        app = App()
        app.add_typer(cache_group(), name="cache")
        before = command_names(app)
        try:
            implementation.function(app)
        except Exception:  # `squish doctor` shows it
            continue
        yield from ((name, packages.get(implementation.plugin_name, "")) for name in command_names(app) - before)


def _facts(name: str, command: Any, package: str) -> dict[str, Any]:
    """Return what a command is and takes."""
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option" and not each.hidden]
    examples = re.findall(r"^ +(.+)$", command.epilog or "", re.MULTILINE)
    return {
        "package": package,
        "help": _paragraphs(command.help or ""),
        "arguments": [_argument(name, each) for each in arguments],
        "options": [_option(name, each) for each in options],
        "examples": examples,
    }


def _paragraphs(text: str) -> list[str]:
    """Return the paragraphs of a help text, each as one line."""
    return [" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", text.strip()) if paragraph.strip()]


def _argument(command: str, parameter: Any) -> dict[str, Any]:
    metavar = parameter.metavar or parameter.name.upper()
    return {
        "metavar": metavar,
        "kind": _kind(command, metavar, metavar),
        "many": parameter.nargs == -1,
        "required": parameter.required,
        "help": parameter.help or "",
    }


def _option(command: str, parameter: Any) -> dict[str, Any]:
    names = sorted(parameter.opts, key=lambda name: name.startswith("--"))
    facts: dict[str, Any] = {"names": names, "help": parameter.help or "", "many": parameter.multiple}
    if not parameter.is_flag:
        metavar = parameter.metavar or parameter.name.upper()
        facts |= {"metavar": metavar, "kind": _kind(command, names[-1], metavar)}
        facts |= {"default": str(parameter.default)} if parameter.default not in (None, "", 0) else {}
    return {**facts, **({"required": True} if parameter.required else {})}


def _kind(command: str, name: str, metavar: str) -> str:
    """Return the kind of values of a parameter."""
    declared = PARAMETERS.get(f"{command} {name}", PARAMETERS.get(name, METAVARS.get(metavar, "")))
    if declared or not ("|" in metavar or metavar.islower()) or not LITERAL.fullmatch(metavar):
        return declared
    return metavar.strip("[]=")


def merge(first: Mapping[str, Any], second: Mapping[str, Any]) -> Table:
    """Return a table with the entries of two; those of the second win."""
    merged: Table = {**first}
    for key, value in second.items():
        if isinstance(value, Mapping):
            nested = key == "ids"
            merged[key] = {
                **first.get(key, {}),
                **({kind: {**first[key].get(kind, {}), **each} for kind, each in value.items()} if nested else value),
            }
    return merged
