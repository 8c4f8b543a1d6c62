"""The words of a command line as they are understood: old names of options, and commands that are not named."""

from __future__ import annotations

import os
from collections.abc import Container, Sequence

from .output import show_warning

OLD_OPTIONS = {
    "plan": {"--policy": "--prefer"},
    "convert": {"--policy-file": "--recipe", "--plan": "--job-plan", "--stats": "--imatrix"},
    "cp": {"--tensors": "--only"},
    "new-plugin": {"--out": "--output"},
    "serve": {"--as": "--to"},
    "eval": {"--resume": "--state"},
}
"""Command -> old name of an option -> its name; the old one works, with a warning."""
VALUE_OPTIONAL = {"convert": "--resume", "cache": "--resume"}
"""Command -> its option with an optional value, which only `=` adds."""
FILE_OPTIONAL = {"run": "--draft", "eval": "--draft"}
"""Command -> its option with an optional file: the next word, unless that is an option."""


def understood(argv: Sequence[str]) -> list[str]:
    """The command line with today's names of options, and a value for each option that may have none."""
    command = first_word(argv)
    if command in ("help", "-V", "version"):
        return _about(argv)
    renamed, optional = OLD_OPTIONS.get(command, {}), VALUE_OPTIONAL.get(command)
    with_file = FILE_OPTIONAL.get(command)
    words = list[str]()
    for number, word in enumerate(argv):
        if word == "--":
            return [*words, *argv[number:]]
        name, equals, value = word.partition("=")
        if name in renamed:
            show_warning(f"{name} is now {renamed[name]}")
            word = f"{renamed[name]}{equals}{value}"
        if word == with_file and (number + 1 == len(argv) or argv[number + 1].startswith("-")):
            word = f"{word}="
        words.append(f"{word}=True" if word == optional else word)
    return words


def _about(argv: Sequence[str]) -> list[str]:
    """`help COMMAND` as `COMMAND --help`; `-V` and `version` as `--version`."""
    if first_word(argv) != "help":
        return ["--version"]
    return [*(word for word in argv if word != "help"), "--help"]


def first_word(argv: Sequence[str]) -> str:
    """The command: the first word that is no option, or `-V`."""
    return next((word for word in argv if word == "-V" or not word.startswith("-")), "")


def is_target(word: str) -> bool:
    """Whether a word names a file, a folder or a URL, or looks like one."""
    return os.path.lexists(word) or "/" in word or bool(os.path.splitext(word)[1])


def with_command(argv: Sequence[str], commands: Container[str]) -> list[str]:
    """`squish FILE` as `squish info FILE`, unless the file has the name of a command."""
    first = first_word(argv)
    return ["info", *argv] if first not in commands and is_target(first) else list(argv)
