"""The files of a model beside its tensors: config, tokenizer, chat template."""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, TypeVar

from squish_core.errors import FormatError, LimitError, SquishError
from squish_core.formats.json import unique_members
from squish_core.guard import gc_paused
from squish_core.io.source import Source

SUFFIXES = (".json", ".jinja", ".txt", ".model")
"""Suffixes of config, tokenizer and chat template; weights have others."""
OBJECTS = (
    "adapter_config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
    "special_tokens_map.json", "added_tokens.json", "vocab.json", "chat_template.json",
)  # fmt: skip
"""Files of a model folder that contain one JSON object, besides config.json."""
TEXTS = ("merges.txt", "*.jinja")
"""Name patterns of the text files in a model folder."""
MAX_BYTES, MAX_NODES = 64 << 20, 4 << 20
"""Maximum bytes and values of a JSON file; twice those of the largest tokenizer.json in use."""
MAX_INLINE = 16 << 20
"""Planning a conversion passes files up to this size with their bytes, so that the format can read them."""
REPLACE = "Correct the file, or download it again."
_Value = TypeVar("_Value")


class LazyAssets(Mapping[str, _Value]):
    """The files of a model by name, each read or computed when it is first looked up.

    Parameters
    ----------
    names
        Names, in order.
    read
        Returns the file of a name.

    Examples
    --------
    >>> assets = LazyAssets(["config.json"], lambda name: b"{}")
    >>> list(assets), assets["config.json"]
    (['config.json'], b'{}')
    """

    def __init__(self, names: Iterable[str], read: Callable[[str], _Value]) -> None:
        self._names, self._read = dict.fromkeys(names), read
        self._values: dict[str, _Value] = {}

    def __getitem__(self, name: str) -> _Value:
        if name not in self._values:
            if name not in self._names:
                raise KeyError(name)
            self._values[name] = self._read(name)
        return self._values[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def overlay_assets(source: Source, folder: Source, own: Container[str] | None = None) -> tuple[str, ...]:
    """Take the config and tokenizer files that are missing beside `source` from `folder`; returns their names.

    With the `own` assets of the file, those that are missing among these.
    """
    names = [name for name in folder.members() if name.endswith(SUFFIXES) and not name.startswith(".")]
    names = [name for name in names if not name.endswith(".index.json")]  # not lists of shards
    return source.overlay(folder, [name for name in names if name not in (own or ())], unread=own is not None)


def parse_object(data: bytes, name: str) -> dict[str, Any]:
    """Parse a model's JSON file.

    Parameters
    ----------
    data
        Content of the file.
    name
        Name of the file, for errors.

    Returns
    -------
    dict
        The object.

    Raises
    ------
    FormatError
        It is not a JSON object, or a key appears twice; LimitError beyond MAX_BYTES and MAX_NODES.

    Examples
    --------
    >>> parse_object(b'{"eos_token_id": 2}', "generation_config.json")
    {'eos_token_id': 2}
    """
    nodes = data.count(b",") + data.count(b"[") + data.count(b"{") if len(data) <= MAX_BYTES else 0
    for code, count, limit, unit in (("size", len(data), MAX_BYTES, "bytes"), ("count", nodes, MAX_NODES, "values")):
        if count > limit:
            raise LimitError(f"has too many {unit}", part=name, expected=f"at most {limit}", found=count, code=code)
    text = parse_text(data, name, "json")
    try:
        with gc_paused():  # a vocabulary has 100,000 values
            parsed = json.loads(text, object_pairs_hook=unique_members)
    except json.JSONDecodeError as error:
        at = len(text[: error.pos].encode())
        raise FormatError(f"is not JSON: {error.msg}", part=name, offset=at, code="json", hint=REPLACE) from None
    except RecursionError:
        raise FormatError("is nested too deeply", part=name, code="json", hint=REPLACE) from None
    except ValueError as error:  # an integer of too many digits
        raise FormatError(f"is not JSON: {error}", part=name, code="json", hint=REPLACE) from None
    except SquishError as error:
        raise error.within(part=name, hint=REPLACE) from None
    if not isinstance(parsed, dict):
        found = repr(text.lstrip()[:4])
        raise FormatError(
            "is not a JSON object", part=name, offset=0, expected="'{'", found=found, code="json", hint=REPLACE
        )
    return parsed


def check_assets(assets: Mapping[str, bytes]) -> None:
    """Check that the files of a model can be read.

    Parameters
    ----------
    assets
        Contents by file name; other files are ignored.

    Raises
    ------
    FormatError
        A JSON file or a text cannot be parsed (codes `json`, `encoding`, `duplicate`).

    Examples
    --------
    >>> check_assets({"merges.txt": b"a b"})
    """
    for name, data in assets.items():
        if name in OBJECTS:
            parse_object(data, name)
        elif any(fnmatchcase(name, pattern) for pattern in TEXTS):
            parse_text(data, name)


def parse_text(data: bytes, name: str, code: str = "encoding") -> str:
    """Decode a model's text file.

    Parameters
    ----------
    data
        Content of the file.
    name
        Name of the file, for errors.
    code
        Code of the error.

    Returns
    -------
    str
        The text.

    Raises
    ------
    FormatError
        It is not UTF-8.

    Examples
    --------
    >>> parse_text(b"a b", "merges.txt")
    'a b'
    """
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        found = repr(data[error.start : error.start + 4])
        raise FormatError("is not UTF-8", part=name, offset=error.start, found=found, code=code, hint=REPLACE) from None
