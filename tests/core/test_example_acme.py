"""The example plugin passes its own tests, and the guide shows its code as it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from installed import run_own_tests

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "acme_format"
BLOCKS = re.findall(r"```\w+\n# (\S+)\n(.*?)```", (ROOT / "docs" / "writing-a-plugin.md").read_text(), re.DOTALL)


def test_the_guide_marks_every_block_with_its_file() -> None:
    assert (ROOT / "docs" / "writing-a-plugin.md").read_text().count("```") == 2 * len(BLOCKS)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_guide_shows_the_example_as_it_is(number: int) -> None:
    name, shown = BLOCKS[number]
    assert shown in (ROOT / name).read_text() + "\n", f"docs/writing-a-plugin.md shows other code than {name}"


def test_the_example_passes_the_kit(tmp_path: Path) -> None:
    done = run_own_tests(EXAMPLE, tmp_path)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
