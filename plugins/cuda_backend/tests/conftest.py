"""Where torch and Triton are installed, kernels run in Triton's interpreter (TRITON_INTERPRET=1) or are compiled."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent
# stored_tensors and machine_code are modules of these tests, tiny_models of those of squish-torch
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "torch" / "tests")]

ANYWHERE = ("test_cuda_offers.py", "test_cuda_oracle.py")
COMPILED = ("test_cuda_machine_code.py",)
MODELS = ("test_cuda_models.py", "test_cuda_measuring.py")
"""These need transformers."""


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Collect what runs here: `test_cuda_oracle.py` runs the others in an environment that has Triton."""
    name = collection_path.name
    if not name.startswith("test_") or name in ANYWHERE:
        return None
    if not (find_spec("torch") and find_spec("triton")):
        return True
    if name in MODELS and not find_spec("transformers"):
        return True
    if os.environ.get("TRITON_INTERPRET") == "1":
        return True if name in COMPILED else None
    return None if name in COMPILED or _has_device() else True


def _has_device() -> bool:
    import torch

    return torch.cuda.is_available()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """NumPy runs the interpreter's kernels: it warns of infinities that a device takes for granted."""
    for item in items:
        if item.path.parent == HERE and item.path.name not in ANYWHERE:
            item.add_marker(pytest.mark.filterwarnings("ignore::RuntimeWarning"))
