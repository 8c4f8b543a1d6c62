"""The command line: a page for each command, from the objects that parse its arguments and print its help."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer
from squish_cli.app import build

from . import table

INDEX = """# Command line

Each page is made from the command itself, as `squish COMMAND --help` prints it. `squish FILE` is `squish info FILE`.

{commands}
## Exit codes

| code | |
|---|---|
| 0 | success |
| 1 | `verify` found an error, `diff` a difference, `check-model` or `doctor` a fault, `needs` something missing |
| 2 | the command could not run; nothing was written |
| 130 | interrupted (Ctrl-C) |
| 141 | the reader of the output is gone (`\\| head`) |
| 143 | terminated; half-written files were removed |

```{{toctree}}
:hidden:

{names}
```
"""


def leaves(group: Any, parent: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(name, command, context) of each command, those of groups as `cache list`."""
    for name, command in group.commands.items():
        context = command.context_class(command, info_name=name, parent=parent)
        if hasattr(command, "commands"):
            yield from leaves(command, context, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command, context


def commands() -> list[tuple[str, Any, Any]]:
    """All commands of squish-core-cli and the plugins that are installed."""
    group = typer.main.get_command(build([]))
    return list(leaves(group, group.context_class(group, info_name="squish")))


def summary(command: Any) -> str:
    """The first sentence of a command's help."""
    return " ".join((command.help or "").partition("\n\n")[0].split())


def prose(help_text: str) -> str:
    """The help of a command as Markdown; `\\b` keeps the lines of a paragraph, as in a terminal."""
    paragraphs = re.split(r"\n\s*\n", help_text.strip())
    return "\n\n".join(
        f"```text\n{each[1:].strip(chr(10))}\n```" if each.startswith("\b") else escape(" ".join(each.split()))
        for each in paragraphs
    )


def escape(text: str) -> str:
    """Write options as code, and `*` and `<` of patterns and placeholders as they are; code stays."""
    pieces = re.split(r"(`[^`]*`)", text)
    pieces[::2] = [re.sub(r"(?<![\w-])--[a-z][\w-]*|[*_<\[\]{}]", _literal, each) for each in pieces[::2]]
    return "".join(pieces)


def _literal(match: re.Match[str]) -> str:
    return f"`{match[0]}`" if match[0].startswith("--") else f"\\{match[0]}"


def parameters(command: Any, context: Any) -> Iterator[tuple[bool, str, str]]:
    """(whether it is an option, how it is written, help) of each argument and option."""
    for parameter in command.get_params(context):
        written, text = parameter.get_help_record(context)
        yield parameter.param_type_name == "option", re.sub(r" <str>$", "", written), text


def page(name: str, command: Any, context: Any) -> str:
    """The page of a command."""
    usage = command.get_usage(context).removeprefix("Usage: ")
    parts = [f"# squish {name}\n\n{prose(command.help or '')}\n\n```text\n{' '.join(usage.split())}\n```\n"]
    examples = re.findall(r"^ +(\S.*)$", (command.epilog or "").partition(":")[2], re.MULTILINE)
    if examples:
        parts.append("\n## Examples\n\n```sh\n" + "\n".join(examples) + "\n```\n")
    rows = list(parameters(command, context))
    for title, is_option in (("Arguments", False), ("Options", True)):
        lines = [f"`{written}`\n: {escape(text)}\n" for option, written, text in rows if option is is_option]
        if lines:  # a list, because a table is too wide for a phone
            parts.append(f"\n## {title}\n\n" + "\n".join(lines))
    return "".join(parts)


def pages() -> Iterator[tuple[str, str]]:
    """The list of commands, and the page of each."""
    found = [(name, name.replace(" ", "-"), command, context) for name, command, context in commands()]
    rows = [(f"[`squish {name}`]({path}.md)", escape(summary(command))) for name, path, command, _ in found]
    names = "\n".join(f"{name} <{path}>" for name, path, _, _ in found)
    yield "cli/index.md", INDEX.format(commands=table(("command", ""), rows), names=names)
    for name, path, command, context in found:
        yield f"cli/{path}.md", page(name, command, context)
