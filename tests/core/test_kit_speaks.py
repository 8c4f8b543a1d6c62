"""Every check of the kit says what is wrong."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import squish_testing as kit

MODULES = sorted(Path(kit.__path__[0]).glob("*.py"))


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_every_assert_has_a_message_with_values(module: Path) -> None:
    """A message that holds a value; an assert without one shows an expression that only the kit's authors know."""
    asserts = [node for node in ast.walk(ast.parse(module.read_text())) if isinstance(node, ast.Assert)]
    mute = [node.lineno for node in asserts if node.msg is None or isinstance(node.msg, ast.Constant)]
    assert not mute, f"{module.name}: lines {mute}"
