"""Recipes: the rules of `--encode`, in order, as TOML files."""

from __future__ import annotations

import tomllib
from pathlib import Path

from squish_core.codes import ErrorCode
from squish_core.errors import UsageError
from squish_core.io.paths import missing

KEY = "encode"
LARGEST = 1 << 24
"""Maximum size in bytes; a recipe with 100,000 rules is smaller."""


def read_recipe(path: str) -> list[str]:
    """The rules of a recipe; UsageError unless it is `encode = ["[PATTERN=]SPEC", ...]`."""
    try:
        with open(path, "rb") as file:
            data = file.read(LARGEST + 1)
        if len(data) > LARGEST:
            raise _error(path, f"{len(data)} bytes or more")
        recipe = tomllib.loads(data.decode())
    except OSError as error:
        raise missing(Path(path), error) from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise _error(path, str(error)) from None
    except RecursionError:
        raise _error(path, "arrays or tables that are nested too deeply") from None
    rules = recipe.get(KEY)
    if list(recipe) != [KEY] or not isinstance(rules, list) or not all(isinstance(rule, str) for rule in rules):
        raise _error(path, ", ".join(recipe) or "nothing")
    return rules


def _error(path: str, content: str) -> UsageError:
    return UsageError(
        "not a recipe", file=Path(path).name, code=ErrorCode.ENCODE, found=content,
        expected=f'TOML with {KEY} = ["[PATTERN=]SPEC", ...]',
    )  # fmt: skip
