"""The declared interfaces of plugins: `squish_<plugin>.api`, which other plugins import."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INTERFACES = {f"{path.parent.name}.api": path for path in sorted(ROOT.glob("plugins/*/src/*/api.py"))}


@pytest.mark.parametrize("name", INTERFACES)
def test_dir_and_all_list_every_exported_name(name: str) -> None:
    interface = importlib.import_module(name)
    assert interface.__all__ == dir(interface) == sorted(interface.__all__)
    assert not [name for name in interface.__all__ if name.startswith("_")]


@pytest.mark.parametrize("name", INTERFACES)
def test_every_exported_name_loads_from_its_home(name: str) -> None:
    if name.startswith("squish_torch"):
        pytest.importorskip("torch", reason="needs torch: `make oracles` has an environment with it")
    interface = importlib.import_module(name)
    for home, members in interface._NAMES.items():
        for name in members:
            assert getattr(interface, name) is getattr(importlib.import_module(home), name)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        importlib.import_module("squish_codecs.api").no_such_name


@pytest.mark.parametrize("name", INTERFACES)
def test_importing_an_interface_imports_no_implementation(name: str) -> None:
    package = name.split(".")[0]
    code = (
        f"import sys, {package}; declaring = set(sys.modules); import {name};"
        f"print([m for m in sys.modules.keys() - declaring if m == 'numpy' or m.startswith({package!r})])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ast.literal_eval(run.stdout) == [name]
