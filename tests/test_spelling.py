"""The core's names, messages and comments are spelled one way: the American one, as in the field's terms."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import squish_core

ROOT = Path(squish_core.__file__).parent
BRITISH = re.compile(
    r"\w*(?:antis(?:e|ing|ation)|ognis(?:e|ing)|ganis(?:e|ing|ation)|malis(?:e|ing|ation)|ialis(?:e|ing|ation)|"
    r"maris(?:e|ing)|timis(?:e|ing|ation)|ronis(?:e|ing|ation)|behaviour|neighbour|honour|colour|favour|"
    r"catalogue|grey|centre|labelled|modelled|signalling|cancelled|judgement|artefact|licence)\w*",
    re.IGNORECASE,
)


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_module_is_spelled_the_american_way(path: Path) -> None:
    lines = path.read_text("utf-8").splitlines()
    words = [(number, word) for number, line in enumerate(lines, 1) for word in BRITISH.findall(line)]
    assert not words, f"{path}: {words}"
