"""The answer to Tab: what can stand at the end of a command line.

A shell starts a process for each Tab, so this module imports nothing but os and sys, and json, and answers from
`tables/commands.json`, which lists the commands and ids of all packages of this repository; those that are installed
are offered. Only for packages of others is the table made here, once for each set of them. The scripts in `shell/` run
`squish` with the variable `_SQUISH_COMPLETE`, the name of the shell.
"""

from __future__ import annotations

import os
import sys

from .tables import place, read

TYPE_CHECKING = False  # typing takes 5 ms
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

VARIABLE, BREAKS = "_SQUISH_COMPLETE", "_SQUISH_BREAKS"
"""Variables with the name of the shell, and with the characters at which bash breaks words."""
TABLE = place("commands")
GLOBAL = {"--help": "Show the help of the command.", "--verbose": "Print what is opened, resolved and decoded."}
SAFE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-+/@%,:=")
"""Characters that no shell expands: bash inserts candidates as they are, and names come from files."""
Candidates = "Iterable[tuple[str, str]]"


def answer(shell: str, argv: list[str]) -> int:
    """Print the candidates, one a line with its description; the first line is `files` for paths, else `words`."""
    words, start = split(argv[0], os.environ.get(BREAKS, "")) if shell == "bash" else (["squish", *argv], 0)
    if shell == "fish":
        words[-1] = words[-1].lstrip("'\"")
    mode, candidates = complete(words[1:], table())
    lines = [mode]
    for candidate, text in candidates:
        added = candidate[len(words[-1]) :]
        if candidate.isprintable() and (shell != "bash" or mode == "files" or SAFE.issuperset(added)):
            lines.append(candidate[start:] if shell == "bash" else f"{candidate}\t{text}".rstrip())
    sys.stdout.buffer.write("".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape"))
    return 0


def split(line: str, breaks: str) -> tuple[list[str], int]:
    """Return the words of a line of bash, and where in the last one the part begins that bash completes.

    >>> split("squish convert a.gguf --to=gg", "=:")
    (['squish', 'convert', 'a.gguf', '--to=gg'], 5)
    """
    words, word, start, quote, escaped, begun = [], "", 0, "", False, False
    for character in line:
        if escaped or (quote and character != quote and not (character == "\\" and quote == '"')):
            word, escaped = word + character, False
        elif character == "\\":
            escaped = begun = True
        elif character in "'\"":
            quote, start, begun = "" if quote else character, len(word), True
        elif character.isspace():
            words += [word] if begun else []
            word, start, begun = "", 0, False
        else:
            word, begun = word + character, True
            start = len(word) if character in breaks else start
    return [*words, word], start


def complete(words: list[str], tables: dict[str, Any]) -> tuple[str, list[tuple[str, str]]]:
    """Return the mode and the candidates for the last word; `tables` has the commands and ids."""
    *before, current = words
    name, rest = command_of(before, tables["commands"])
    if name == "help":
        return listed(commands(tables["commands"], ""), current)
    if not name or tables["commands"][name].get("group"):
        options = tables["commands"][name]["options"] if name else tables["options"]
        if current.startswith("-"):
            return listed(option_names(options, rest), current)
        if rest and (option := {each: o for o in options for each in o["names"]}.get(rest[-1])) and takes_next(option):
            return values(option["kind"], current, Context([], tables))
        if rest_of(rest):  # there is no such command
            return "words", []
        mode, candidates = listed(commands(tables["commands"], name), current)
        return (mode, candidates) if candidates or name else values("weights", current, Context([], tables))
    return parameter(tables["commands"][name], rest, current, tables)


def command_of(before: list[str], tables: dict[str, Any]) -> tuple[str, list[str]]:
    """Return the command of the words before the last one, "" if there is none yet, and the rest of them.

    `squish FILE` is `squish info FILE`.
    """
    name, rest = "", list[str]()
    for word in before:
        longer = f"{name} {word}".strip()
        if longer in tables and not rest_of(rest):
            name = longer
        elif not name and word == "help":
            return "help", []
        elif not name and not word.startswith("-") and (os.path.exists(word) or "/" in word or "." in word):
            name, rest = "info", [*rest, word]
        else:
            rest.append(word)
    return name, rest


def rest_of(words: list[str]) -> list[str]:
    """Return the words that are not options."""
    return [word for word in words if not word.startswith("-")]


def commands(tables: dict[str, Any], group: str) -> Iterator[tuple[str, str]]:
    """Yield the commands of a group, or of `squish` itself, with their summaries."""
    for name, facts in tables.items():
        parent, _, own = name.rpartition(" ")
        if parent == group:
            yield own, summary(facts["help"][0] if facts["help"] else "")


def summary(text: str) -> str:
    """Return the first sentence of a text."""
    return text.partition(". ")[0].rstrip(".")


def parameter(facts: dict[str, Any], rest: list[str], current: str, tables: dict[str, Any]) -> Any:
    """Return the mode and the candidates for the last word of a command."""
    options = {name: option for option in facts["options"] for name in option["names"]}
    positional, waiting, ended, arguments = list[str](), None, False, facts["arguments"]
    for word in rest:
        name, equals, _ = word.partition("=")
        if waiting:
            waiting = None
        elif word == "--":
            ended = True
        elif not ended and word.startswith("-") and word != "-":
            waiting = options[name] if name in options and not equals and takes_next(options[name]) else None
        else:
            positional.append(word)
    context = Context(weights_of(positional, arguments), tables)
    if waiting and not (waiting["metavar"].startswith("[") and current.startswith("-")):
        return values(waiting["kind"], current, context)
    name, equals, value = current.partition("=")
    if not ended and equals and name in options and "kind" in options[name]:
        mode, candidates = values(options[name]["kind"], value, context)
        return mode, [(f"{name}={candidate}", text) for candidate, text in candidates]
    if not ended and current.startswith("-"):
        return listed(option_names(facts["options"], rest), current)
    place = arguments[len(positional)] if len(positional) < len(arguments) else None
    if place is None and arguments and arguments[-1]["many"]:
        place = arguments[-1]
    if place is None:
        return listed(option_names(facts["options"], rest), current)
    return values(place["kind"], current, context)


def takes_next(option: dict[str, Any]) -> bool:
    """Return whether the value of an option is the next word."""
    return "metavar" in option and not option["metavar"].startswith("[=")


def weights_of(positional: list[str], arguments: list[dict[str, Any]]) -> list[str]:
    """Return the files of weights among the arguments."""
    kinds = [argument["kind"] for argument in arguments]
    return [word for word, kind in zip(positional, kinds) if kind == "weights"]


def option_names(options: list[dict[str, Any]], rest: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the options that can still be added."""
    used = {word.partition("=")[0] for word in rest}
    for option in options:
        if option["many"] or used.isdisjoint(option["names"]):
            yield option["names"][-1], summary(option["help"])
            if option.get("metavar", "").startswith("[="):
                yield f"{option['names'][-1]}=", ""
    yield from ((name, text) for name, text in GLOBAL.items() if name not in used)


class Context:
    """What values depend on: the files of weights on the line, and the table."""

    def __init__(self, files: list[str], tables: dict[str, Any]) -> None:
        self.files, self.tables = files, tables

    def names(self) -> list[str]:
        """Return the names of the tensors of the file on the line, if it is a local one."""
        from .tensor_names import tensor_names

        return [name for file in self.files[:1] for name in tensor_names(os.path.expanduser(file))]


IDS = {
    "format": ("format",),
    "target": ("target",),
    "codec": ("codec", "short name", "preset"),
    "backend": ("backend",),
    "family": ("family",),
    "plugin": ("plugin",),
    "scheduler": ("scheduler",),
    "encoding": ("short name", "preset", "codec"),
}
"""Kind of values -> kinds of ids in the table."""
OTHERS = {"encoding": {"keep": "Leave the tensors unchanged.", "nearest": "The nearest that the target holds."}}
COMPONENTS = {"vision": "", "audio": "", "mtp": "", "text": ""}


def values(kind: str, current: str, context: Context) -> tuple[str, list[tuple[str, str]]]:
    """Return the mode and the candidates for a value of a kind."""
    tables = context.tables
    if kind in ("format", "target", "backend") and ":" in current:
        owner, _, rest = current.partition(":")
        done = current[: len(current) - len(rest.rpartition(",")[2])]
        return listed(((f"{done}{name}=", "") for name in tables["values"].get(owner, ())), current)
    if kind in IDS:
        found = {name: each[1] for group in IDS[kind] for name, each in tables["ids"].get(group, {}).items()}
        return listed({**OTHERS.get(kind, {}), **found}.items(), current)
    if kind == "rule":
        return rules(current, context)
    if kind == "tensor":
        return listed(((name, "") for name in context.names()), current)
    if kind == "setting":
        return listed(tables["settings"].items(), current)
    if kind == "command":
        return listed(commands(tables["commands"], ""), current)
    if kind == "word":
        return listed(((word, "") for word in explained(tables)), current)
    if kind == "component":
        return listed(COMPONENTS.items(), current)
    if kind in ("weights", "folder") or kind.partition(" ")[0] == "path":
        suffixes = tuple(tables["suffixes"]) if kind == "weights" else tuple(kind.split()[1:])
        return "files", list(paths(current, suffixes, kind != "folder"))
    return listed(((choice, "") for choice in kind.split("|") if choice), current)


def rules(current: str, context: Context) -> tuple[str, list[tuple[str, str]]]:
    """Return the candidates for `[PATTERN=]SPEC`: encodings, then names of tensors."""
    head, equals, spec = current.partition("=")
    if equals and ":" not in head:
        _, candidates = values("encoding", spec, context)
        return "words", [(f"{head}={candidate}", text) for candidate, text in candidates]
    mode, candidates = values("encoding", current, context)
    if candidates or not current:
        return mode, candidates
    return listed(((f"{name}=", "") for name in context.names()), current)


def explained(table: dict[str, Any]) -> Iterator[str]:
    """Yield the words of `squish explain` that the tables have."""
    for name in ("errors", "glossary"):
        yield from (word for words in read(name) for word in words.split(", ") if " " not in word)
    for kind in ("format", "codec", "backend", "family", "preset", "short name", "scheduler"):
        yield from table["ids"].get(kind, ())
    yield from (*table["commands"], *table["settings"])
    yield from {option["names"][-1] for facts in table["commands"].values() for option in facts["options"]}


def paths(current: str, suffixes: tuple[str, ...], files: bool) -> Iterator[tuple[str, str]]:
    """Yield the folders that begin like the word, and the files with one of the suffixes, or any."""
    folder, start = os.path.split(current)
    try:
        entries = sorted(os.scandir(os.path.expanduser(folder) or "."), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        if not entry.name.startswith(start) or (entry.name.startswith(".") and not start):
            continue
        if is_folder(entry):
            yield f"{os.path.join(folder, entry.name)}/", ""
        elif files and (not suffixes or entry.name.endswith(suffixes)):
            yield os.path.join(folder, entry.name), ""


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a folder, or leads to one."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def listed(candidates: Iterable[tuple[str, str]], current: str) -> tuple[str, list[tuple[str, str]]]:
    """Return the mode for words and the candidates that begin like the last word."""
    return "words", sorted({name: text for name, text in candidates if name.startswith(current)}.items())


def table() -> dict[str, Any]:
    """Return the commands and ids of the packages that are installed."""
    shipped = read("commands")
    own = {package for group in shipped["ids"].values() for package, _ in group.values()}
    own |= {facts["package"] for facts in shipped["commands"].values()}
    found = dict(distributions(own))
    if others := sorted(version for name, version in found.items() if name not in own):
        return with_others(others, shipped)
    return restricted(shipped, {*found})


def distributions(own: set[str]) -> Iterator[tuple[str, str]]:
    """Yield (distribution, its name with version) of plugins, from sys.path; `own` are those of this repository."""
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue
        for name in names:
            if not name.endswith(".dist-info"):
                continue
            dist = name.removesuffix(".dist-info").rpartition("-")[0].replace("_", "-").lower()
            if dist in own or is_plugin(os.path.join(folder, name, "entry_points.txt")):
                yield dist, name


def is_plugin(path: str) -> bool:
    """Return whether a file lists entry points of the group `squish`."""
    try:
        with open(path, "rb") as file:
            return any(line.strip() == b"[squish]" for line in file)
    except OSError:
        return False


def restricted(shipped: dict[str, Any], packages: set[str]) -> dict[str, Any]:
    """Return the table without packages that are not installed; all of it where none is found."""
    if not packages:
        return shipped
    packages |= {"squish-core", "squish-core-cli"}
    commands = {name: facts for name, facts in shipped["commands"].items() if facts["package"] in packages}
    ids = {
        kind: {name: each for name, each in group.items() if each[0] in packages}
        for kind, group in shipped["ids"].items()
    }
    return {**shipped, "commands": commands, "ids": ids}


def with_others(others: list[str], shipped: dict[str, Any]) -> dict[str, Any]:
    """Return the table of the plugins here, which is kept until the packages change."""
    import json

    path, key = cached(), [TABLE, os.path.getmtime(TABLE), *sys.path, *others]
    try:
        with open(path, encoding="utf-8") as file:
            kept = json.load(file)
        if kept["key"] == key:
            return dict(kept["table"])
    except (OSError, ValueError, LookupError, TypeError):
        pass
    try:
        from squish_core.plugins.registry import registry

        from .command_table import command_table

        fresh = command_table(registry())
    except Exception:  # a plugin may fail; `squish doctor` shows it
        return shipped
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        temporary = f"{path}.{os.getpid()}"
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump({"key": key, "table": fresh}, file)
        os.replace(temporary, path)
    except OSError:
        pass
    return fresh


def cached() -> str:
    """Return where the table of other plugins is kept."""
    home = os.environ.get("LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME")
    return os.path.join(home or os.path.join(os.path.expanduser("~"), ".cache"), "squish-completion", "commands.json")
