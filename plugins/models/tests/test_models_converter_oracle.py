"""The keys of GGUFs made of a dozen folders are those of llama.cpp's converter, but for what docs/models.md lists."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import converted_folders
import numpy as np
import pytest
from attrs import frozen
from oracles import ROOT, converter

import squish_core as squish

pytestmark = pytest.mark.oracle
PAGE = ROOT / "docs" / "models.md"
START, END = (
    "<!-- converter keys: plugins/models/tests/test_models_converter_oracle.py -->",
    "<!-- end of converter keys -->",
)
PLACES = ("the converter's file", "ours", "both, different")


@frozen
class Difference:
    """A key and the file that has it."""

    model: str
    key: str
    place: str


def listed() -> list[tuple[str, str]]:
    """The differences in the page: pattern of a key, and the file that has it."""
    text = PAGE.read_text(encoding="utf-8").partition(START)[2].partition(END)[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.strip().splitlines()[2:]]
    assert all(len(row) == 3 and row[1] in PLACES and row[2] for row in rows)
    return [(row[0].strip("`"), row[1]) for row in rows]


def keys_of(path: Path) -> dict[str, tuple[str, Any]]:
    with squish.open(path) as file:
        return {
            key: (value.type, plain(value.value))
            for key, value in file.index.meta.items()
            if not key.startswith("squish.")
        }


def plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    return value if isinstance(value, (str, int, float, bool)) else [*value]


def differences(model: str, theirs: Path, ours: Path) -> Iterator[Difference]:
    one, other = keys_of(theirs), keys_of(ours)
    for key in sorted({*one, *other}):
        if one.get(key) != other.get(key):
            yield Difference(model, key, PLACES[1 if key not in one else 0 if key not in other else 2])


def matches(pattern: str, key: str) -> bool:
    _, _, rest = key.partition(".")
    return fnmatchcase(key, pattern) or (pattern.startswith("A.") and fnmatchcase(f"A.{rest}", pattern))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[Difference]:
    """All differences of all folders."""
    root = tmp_path_factory.mktemp("converter")
    folders = converted_folders.make(root / "folders")
    (root / "theirs").mkdir()
    (root / "ours").mkdir()
    theirs = converter.convert(
        folders, root / "theirs", {name: pre for name, (_, pre) in converted_folders.FOLDERS.items()}
    )
    result: list[Difference] = []
    for name, folder in folders.items():
        target = root / "ours" / f"{name}.gguf"
        squish.convert(folder, target)
        result += differences(name, theirs[name], target)
    return result


def test_every_difference_to_the_converter_is_listed_with_its_reason(found: list[Difference]) -> None:
    rows = listed()
    new = [each for each in found if not any(each.place == place and matches(key, each.key) for key, place in rows)]
    assert new == []


def test_every_listed_difference_exists(found: list[Difference]) -> None:
    gone = [
        (key, place)
        for key, place in listed()
        if not any(each.place == place and matches(key, each.key) for each in found)
    ]
    assert gone == []
