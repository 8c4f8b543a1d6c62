"""The man pages, in mdoc(7), from the table of commands: one of squish, and one of each of its commands."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from squish_cli.settings import SETTINGS

DATE = "November 28, 2026"
"""When the form of the pages last changed: a page must have a date, and must not change with the day of its making."""
MACRO = re.compile(r"^[A-Z][a-z]{1,2}$|^%[A-Z]$")
"""Words that mdoc would take for its macros."""
SENTENCE = re.compile(r"(?<=[.!?])\s+(?=\S)|(?<=[.!?]['\")])\s+(?=\S)")
STATUS = (
    ("0", "Success."),
    ("1", "There is a fault or a difference."),
    ("2", "The command could not run; the last word of the error, in square brackets, is its code."),
)


def pages(table: Mapping[str, Any]) -> dict[str, str]:
    """Return the name of each page -> its text."""
    commands = table["commands"]
    tops = [name for name in commands if " " not in name]
    written = {"squish.1": _page("squish", overview(table))}
    for name in tops:
        members = [each for each in commands if each.partition(" ")[0] == name]
        written[f"squish-{name}.1"] = _page(f"squish-{name}", command_page(name, members, commands))
    return written


def _page(name: str, lines: Iterable[str]) -> str:
    head = ('.\\" Made by tests/lint/commands.py from the command.', f".Dd {DATE}", f".Dt {name.upper()} 1", ".Os")
    return "".join(f"{line}\n" for line in (*head, *lines))


# Other pages are not named by the macro Xr: mandoc reports those that it does not find, and a wheel installs its pages
# where no system looks for them.


def overview(table: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the page of squish itself."""
    first, *rest = table["help"]
    yield from name_section("squish", first)
    yield from (".Sh SYNOPSIS", ".Nm", ".Op Ar options", ".Ar command", ".Op Ar arguments")
    yield from (".Sh DESCRIPTION", *paragraphs([first, *rest]))
    yield from (".Pp", "The commands are:", ".Bl -tag -width new-plugin")
    for name, facts in table["commands"].items():
        if " " not in name:
            yield from (f".It Cm {word(name)}", *text(facts["help"][0] if facts["help"] else ""))
    yield ".El"
    yield from options_section(table["options"])
    yield from (".Sh ENVIRONMENT", ".Bl -tag -width Ds")
    for setting in SETTINGS:
        yield from (f".It Ev {setting.variable}", *text(f"{setting.meaning} Default: {setting.default}."))
    yield from (".It Ev SQUISH_CONFIG", *text("Another file of settings."), ".El")
    yield from (".Sh FILES", ".Bl -tag -width Ds", ".It Pa ~/.config/squish/config.toml")
    yield from (*text("Settings: the variables above, in lower case and without SQUISH_. See `squish config`."), ".El")
    yield from status_section()
    tops = [name for name in table["commands"] if " " not in name]
    yield ".Sh SEE ALSO"
    yield from (f".Sy {escaped(f'squish-{name}(1)')}{' ,' if name != tops[-1] else ''}" for name in tops)


def command_page(name: str, members: list[str], commands: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the page of a command, with the commands of a group."""
    facts = commands[name]
    yield from name_section(f"squish-{name}", facts["help"][0])
    yield ".Sh SYNOPSIS"
    for each in members:
        if each == name or not commands[name].get("group") or " " in each:
            yield from synopsis(each, commands[each])
    yield from (".Sh DESCRIPTION", *paragraphs(facts["help"]), *arguments(facts))
    for each in members[1:]:
        yield from (f".Ss squish {each}", *paragraphs(commands[each]["help"]), *arguments(commands[each]))
    options = {option["names"][-1]: option for each in members for option in commands[each]["options"]}
    yield from options_section(list(options.values()))
    yield from status_section()
    examples = [example for each in members for example in commands[each]["examples"]]
    if examples:
        yield from (".Sh EXAMPLES", *(f".Dl {escaped(example)}" for example in examples))
    yield from (".Sh SEE ALSO", ".Sy squish(1)")


def name_section(name: str, summary: str) -> Iterator[str]:
    """Yield the section that apropos(1) reads."""
    first = SENTENCE.split(summary)[0].rstrip(".")
    yield from (".Sh NAME", f".Nm {name}", f".Nd {macro_words(first[:1].lower() + first[1:])}")


def synopsis(name: str, facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield how a command is called."""
    yield from (f'.Nm "squish {name}"', ".Op Ar options")
    for argument in facts["arguments"]:
        place = f"Ar {word(argument['metavar'])}{' ...' if argument['many'] else ''}"
        yield f".{place}" if argument["required"] else f".Op {place}"


def arguments(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield the arguments of a command with their help."""
    if facts["arguments"]:
        yield ".Bl -tag -width Ds"
        for argument in facts["arguments"]:
            yield from (f".It Ar {word(argument['metavar'])}", *text(argument["help"]))
        yield ".El"


def options_section(options: list[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the options of a command."""
    yield from (".Sh OPTIONS", ".Bl -tag -width Ds")
    for option in options:
        names = " , ".join(f"Fl {name.removeprefix('-').replace('-', chr(92) + '-')}" for name in option["names"])
        metavar = f" Ar {word(option['metavar'])}" if "metavar" in option else ""
        default = f" Default: {option['default']}." if "default" in option else ""
        yield from (f".It {names}{metavar}", *text(f"{option['help']}{default}"))
    yield from (".It Fl h , Fl \\-help", "Show the help of the command.", ".El")


def status_section() -> Iterator[str]:
    """Yield the exit codes."""
    yield from (".Sh EXIT STATUS", ".Bl -tag -width Ds")
    for code, meaning in STATUS:
        yield from (f".It {code}", *text(meaning))
    yield ".El"


def paragraphs(texts: Iterable[str]) -> Iterator[str]:
    """Yield paragraphs."""
    for number, each in enumerate(texts):
        yield from ((".Pp",) if number else ())
        yield from text(each)


def text(sentences: str) -> Iterator[str]:
    """Yield a text in lines of at most 78 characters, each sentence on a new line."""
    for sentence in SENTENCE.split(sentences):
        for line in textwrap.wrap(sentence, 70, break_long_words=False, break_on_hyphens=False) or [""]:
            shown = escaped(line)
            yield f"\\&{shown}" if shown[:1] in ".'" else shown


def escaped(line: str) -> str:
    """Return a text with backslashes and hyphens as they are typed."""
    return line.replace("\\", "\\e").replace("-", "\\-")


def word(metavar: str) -> str:
    """Return a word for a line of macros."""
    return f"\\&{escaped(metavar)}" if MACRO.match(metavar) else escaped(metavar)


def macro_words(line: str) -> str:
    """Return a text for a line of macros."""
    return " ".join(word(each) for each in line.split())
