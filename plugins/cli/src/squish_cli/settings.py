"""The settings of Squish: one table of the variables SQUISH_..., and the user's file that sets them, too.

The file holds for the command line. A variable of the environment wins, even an empty one, which stands for the
default. `python tests/lint/commands.py` makes docs/config.md and the file's JSON Schema from the table.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attrs import frozen

from squish_core.codes import ErrorCode
from squish_core.errors import SquishError, UsageError
from squish_core.io.cache import cache_folder
from squish_core.log import log
from squish_core.text import did_you_mean

from .output import show_warning

VARIABLE = "SQUISH_CONFIG"
"""The variable that names another file."""
LARGEST_FILE = 1 << 20
ANY = r"(?s:.*)"


@frozen
class Setting:
    """A setting: its name in the file, the type and pattern of its values, what they are, its default and meaning.

    `type` is "integer", "text", "path" or "paths" (several, joined as in PATH).
    """

    name: str
    type: str
    expected: str
    default: str
    meaning: str
    pattern: str = ANY

    @property
    def variable(self) -> str:
        """Name of the variable."""
        return f"SQUISH_{self.name.upper()}"

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of its values."""
        facts = {"type": "integer" if self.type == "integer" else "string", "description": self.meaning}
        return facts | ({"pattern": f"^({self.pattern})$"} if self.type == "text" and self.pattern != ANY else {})


@frozen(kw_only=True)
class State:
    """A setting here.

    Attributes
    ----------
    value
        None: the default holds.
    origin
        "env", "file" or "default".
    """

    name: str
    variable: str
    type: str
    value: str | None
    default: str
    origin: str
    meaning: str


@frozen(kw_only=True)
class Configuration:
    """The user's file and the settings.

    Attributes
    ----------
    problem
        What is wrong with the file.
    """

    file: str
    exists: bool
    problem: str | None
    settings: tuple[State, ...]


_NUMBER = r"[1-9]\d{0,3}"
_CPU_THREADS = r"[1-9]\d{0,2}|10[01]\d|102[0-4]"
_INSTRUCTIONS = "avx512|avx2|portable"
SETTINGS = (
    Setting(
        "threads",
        "integer",
        "a number of threads",
        "one per core",
        "Threads of an operation; 1 starts none.",
        _NUMBER,
    ),
    Setting("cache", "path", "a folder", "the user's cache folder", "Where folders that take long to build are kept."),
    Setting(
        "cache_size", "integer", "a number of bytes", "17179869184", "Maximum size of the cache in bytes.", r"\d{1,19}"
    ),
    Setting(
        "limits",
        "text",
        "NAME=NUMBER[,...]",
        "none",
        "Limits for what a file may declare: header, tensors, name, rank, depth, decoded, ratio.",
    ),
    Setting(
        "source", "text", "NAME=VALUE[,...]", "none", "Options of the sources that read URLs: deadline=5,in_flight=8."
    ),
    Setting(
        "plugins",
        "text",
        "+NAME, -NAME or ID=DISTRIBUTION, joined by commas",
        "all that are installed",
        "Which plugins are used: +name only these, -name not this one, id=distribution where several provide an id.",
    ),
    Setting("families", "paths", "TOML files", "none", "TOML files of further families of models, joined as in PATH."),
    Setting("tiers", "text", "build", "none", "`build`: the first load of a npy directory builds tiers.", "build"),
    Setting(
        "cpu_threads",
        "integer",
        "a number of threads, 1 to 1024",
        "as threads",
        "Threads of the compiled kernels.",
        _CPU_THREADS,
    ),
    Setting(
        "cpu_instructions",
        "text",
        "avx512, avx2 or portable",
        "the best that run here",
        "Instructions of the compiled kernels.",
        _INSTRUCTIONS,
    ),
    Setting("cpu_library", "path", "a shared library", "the one of squish-cpu", "Other compiled kernels."),
    Setting(
        "metal",
        "text",
        "cpu, which runs MLX without a Metal device",
        "none",
        "`cpu` runs the Metal backend on MLX's CPU device, for tests.",
        "cpu",
    ),
)
BY_NAME = {setting.name: setting for setting in SETTINGS}
_from_file: dict[str, str] = {}
"""Name -> value of the settings that the file has set in this process."""


def setting(name: str) -> Setting:
    """Return a setting by its name or variable; UsageError if there is none."""
    key = name.lower().removeprefix("squish_").replace("-", "_")
    if key not in BY_NAME:
        hint = f"{did_you_mean(key, BY_NAME)} `squish config` lists all.".lstrip()
        raise UsageError("no such setting", found=repr(name), code=ErrorCode.USAGE, hint=hint)
    return BY_NAME[key]


def config_file() -> Path:
    """Return the user's file: SQUISH_CONFIG, or `squish/config.toml` where the system keeps settings."""
    if path := os.environ.get(VARIABLE):
        return Path(path)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "squish" / "config.toml"
    if sys.platform == "win32":
        return Path(os.environ.get("APPDATA") or Path.home() / "AppData" / "Roaming") / "squish" / "config.toml"
    configured = os.environ.get("XDG_CONFIG_HOME") or ""  # the convention ignores relative paths
    return (Path(configured) if os.path.isabs(configured) else Path.home() / ".config") / "squish" / "config.toml"


def read_text(path: Path) -> str:
    """Return the text of the file, "" if there is none; UsageError if it cannot be read."""
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_FILE + 1)
        if len(data) > LARGEST_FILE:
            raise _invalid(path, f"at most {LARGEST_FILE:,} bytes")
        return data.decode()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise _invalid(path, "a text file", str(error)) from None


def read_file(path: Path, unknown: list[str]) -> dict[str, str]:
    """Return name -> value of the settings in the user's file, none if it does not exist; UsageError if it is invalid.

    SQUISH_CONFIG must name a file that exists. Other names in the file are added to `unknown`.
    """
    if os.environ.get(VARIABLE) and not path.exists():
        hint = f"Unset {VARIABLE}, or run `squish config set NAME VALUE`, which makes the file."
        raise UsageError(f"{VARIABLE} names no file", found=repr(str(path)), code=ErrorCode.USAGE, hint=hint)
    text = read_text(path)
    if not text:
        return {}
    import tomllib

    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _invalid(path, "lines such as `threads = 4`", str(error)) from None
    values = {}
    for name, value in table.items():
        if name not in BY_NAME:
            unknown.append(name)
        elif isinstance(value, bool) or not isinstance(value, (int, str)):
            raise _invalid(path, f"{name} = {BY_NAME[name].expected}", repr(value))
        else:
            values[name] = _absolute(BY_NAME[name], str(value), path.parent)
    return values


def _invalid(path: Path, expected: str, found: str | None = None) -> UsageError:
    hint = f"Correct the file, or set {VARIABLE} to another one."
    return UsageError(f"{path} is invalid", expected=expected, found=found, code=ErrorCode.USAGE, hint=hint)


def _absolute(setting: Setting, value: str, folder: Path) -> str:
    """Return a value, with its paths below the folder of the file and not the current one."""
    if setting.type not in ("path", "paths"):
        return value
    parts = value.split(os.pathsep) if setting.type == "paths" else [value]
    return os.pathsep.join(str(folder.absolute() / Path(part).expanduser()) if part else "" for part in parts)


@contextmanager
def applied(strict: bool) -> Iterator[None]:
    """Within the block, variables have the values of the user's file, unless the environment sets them.

    UsageError if the file is invalid, or SQUISH_CONFIG names none; not `strict`, such a file has no settings.
    """
    values = {}
    try:
        values = _values()
    except UsageError:
        if strict:
            raise
    _from_file.update(values)
    os.environ.update({BY_NAME[name].variable: value for name, value in values.items()})
    try:
        yield
    finally:
        for name in values:
            os.environ.pop(BY_NAME[name].variable, None)
            _from_file.pop(name, None)


def _values() -> dict[str, str]:
    """Return the settings of the user's file that the environment does not set; warn about other names in it."""
    path, unknown = config_file(), list[str]()
    values = read_file(path, unknown)
    for name in unknown:
        show_warning(f"{path}: {name} is not a setting. {did_you_mean(name, BY_NAME)}".rstrip())
    values = {name: value for name, value in values.items() if BY_NAME[name].variable not in os.environ}
    log("settings of %s: %s", path, ", ".join(f"{name} = {value}" for name, value in values.items()) or "none")
    return values


def problem() -> str | None:
    """Return what is wrong with the user's file."""
    try:
        read_file(config_file(), [])
    except UsageError as error:
        return str(error)
    return None


def configuration() -> Configuration:
    """Return the user's file, and every setting with its value and where it comes from."""
    path = config_file()
    states = tuple(state_of(each) for each in SETTINGS)
    return Configuration(file=str(path), exists=path.exists(), problem=problem(), settings=states)


def state_of(setting: Setting) -> State:
    """Return the value of a setting and where it comes from."""
    value = os.environ.get(setting.variable) or None
    origin = "default" if value is None else "file" if _from_file.get(setting.name) == value else "env"
    return State(
        name=setting.name,
        variable=setting.variable,
        type=setting.type,
        value=value,
        default=setting.default,
        origin=origin,
        meaning=setting.meaning,
    )


def check() -> None:
    """Raise UsageError for a setting with an invalid value; warn about a variable with a mistyped name."""
    for each in SETTINGS:
        if value := os.environ.get(each.variable):
            try:
                check_value(each, value)
            except SquishError as error:
                if each.name in _from_file:
                    error.hint = f"It is in {config_file()}: `squish config unset {each.name}` removes it."
                raise
    names = [*(each.variable for each in SETTINGS), VARIABLE]
    for name in os.environ:
        if name.startswith("SQUISH_") and name not in names and os.environ[name]:
            _warn_if_mistyped(name, names)


def check_value(setting: Setting, value: str) -> None:
    """Raise UsageError if a setting cannot have this value; those that the core parses must be in the environment."""
    if not re.fullmatch(setting.pattern, value, re.ASCII):
        raise UsageError(
            f"{setting.variable} is invalid",
            found=repr(value),
            expected=setting.expected,
            code=ErrorCode.USAGE,
            hint=f"Unset it, or set it to {setting.expected}.",
        )
    if setting.name == "limits":
        from squish_core.limits import default

        default()
    if setting.name == "source":
        from squish_core.plugins.sources import options_from_environment

        options_from_environment()


def _warn_if_mistyped(name: str, names: list[str]) -> None:
    import difflib

    if near := difflib.get_close_matches(name, names, 1, 0.85):
        show_warning(f"{name} is not used; did you mean {near[0]}?")


def schema() -> dict[str, Any]:
    """Return the JSON Schema of the file."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Settings of Squish",
        "type": "object",
        "properties": {each.name: each.schema() for each in SETTINGS},
        "additionalProperties": False,
    }


def effective(state: State) -> str:
    """Return the value that holds, as text."""
    return state.value or (str(cache_folder()) if state.name == "cache" else state.default)


def with_value(path: Path, name: str, value: int | str | None) -> str:
    """Return the text of a file with another value of a setting, or without it."""
    import tomllib

    lines = read_text(path).splitlines()
    mine = re.compile(rf"\s*(\"{name}\"|'{name}'|{name})\s*=")
    end = next((number for number, line in enumerate(lines) if line.lstrip().startswith("[")), len(lines))
    at = next((number for number, line in enumerate(lines[:end]) if mine.match(line)), None)
    new = [] if value is None else [f"{name} = {json.dumps(value, ensure_ascii=False)}"]
    lines[slice(end, end) if at is None else slice(at, at + 1)] = new
    text = "".join(f"{line}\n" for line in lines)
    try:
        written = tomllib.loads(text).get(name)
    except tomllib.TOMLDecodeError as error:
        raise _invalid(path, "one line for each setting", str(error)) from None
    if written != value:
        raise _invalid(path, f"`{name} = ...` on a line of its own", repr(written))
    return text
