"""The tutorial notebook runs from its first cell to its last, and every result that it shows has HTML."""

from __future__ import annotations

import ast
import json
import shutil
from pathlib import Path
from typing import Any

import pages
import pytest
import stand_ins

NOTEBOOK = pages.ROOT / "examples" / "tutorial.ipynb"


def run_cell(source: str, names: dict[str, Any]) -> Any:
    """Run a cell, and return the value of its last line, as a notebook does."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names) if isinstance(last, ast.Expr) else None


@pytest.mark.system
def test_the_tutorial_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    pytest.importorskip("pandas")
    matplotlib.use("agg")
    monkeypatch.chdir(tmp_path)
    stand_ins.PLACE[:] = [tmp_path / "stand-ins"]
    (tmp_path / "stand-ins").mkdir()
    shutil.copy2(stand_ins.stand_in("smollm2.gguf"), "smollm2.gguf")
    names: dict[str, Any] = {}
    for cell in json.loads(NOTEBOOK.read_text("utf-8"))["cells"]:
        assert not cell.get("outputs")
        if cell["cell_type"] == "code":
            source = "".join(cell["source"])
            result = run_cell(source, names)
            if result is not None and not source.endswith(";"):
                assert "<table" in result._repr_html_()
    assert names["worst"].nmse > 0
