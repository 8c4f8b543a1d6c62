"""Names, messages, comments and docs are spelled one way: the American one, like the terms of the field."""

from __future__ import annotations

import re
from pathlib import Path

import squish_core

CORE = Path(squish_core.__file__).parent
ROOT = CORE.parent
BRITISH = re.compile(
    r"\w*(?:antis(?:e|ing|ation)|ognis(?:e|ing)|ganis(?:e|ing|ation)|malis(?:e|ing|ation)|ialis(?:e|ing|ation)|"
    r"maris(?:e|ing)|timis(?:e|ing|ation)|ronis(?:e|ing|ation)|behaviour|neighbour|honour|colour|favour|"
    r"catalogue|grey|centre|labelled|modelled|signalling|cancelled|judgement|artefact|licence)\w*",
    re.IGNORECASE,
)
FOLDERS = (
    "squish_core",
    "plugins/convert",
    "plugins/cli",
    "plugins/testing",
    "docs",
    "examples",
    "benchmarks",
    "fuzz",
    "tests",
)
FILES = [
    path
    for folder in FOLDERS
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in (".py", ".md") and path != Path(__file__).resolve()
]


def test_files_are_spelled_the_american_way() -> None:
    assert not [
        f"{path.relative_to(ROOT)}:{number} {word}"
        for path in [ROOT / "README.md", *FILES]
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        for word in BRITISH.findall(line)
    ]
