"""The families that TOML files declare, by name: NAME.toml beside this file, read when the family is first used."""

from __future__ import annotations

from pathlib import Path

from ..declarations import read_family
from ..family import TextModel


def __getattr__(name: str) -> type[TextModel]:
    """Return the class of the family in NAME.toml, or in a file whose path ends with .toml."""
    if name.startswith("__"):
        raise AttributeError(name)
    path = Path(name) if name.endswith(".toml") else Path(__file__).with_name(f"{name}.toml")
    globals()[name] = family = read_family(path).family
    return family
