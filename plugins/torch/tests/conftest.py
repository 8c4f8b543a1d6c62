"""The tests run where torch and transformers are installed; elsewhere all but those of the command are skipped."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # tiny_models is a module of these tests

NEEDS_TORCH = "needs torch and transformers, which `make oracles` installs in an environment of their own"
WITHOUT_TORCH = ("test_torch_absent.py", "test_torch_oracle.py")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Collect one placeholder for the modules that need torch, where it is absent."""
    if find_spec("torch") and find_spec("transformers"):
        return None
    name = collection_path.name
    return True if name.startswith("test_") and name not in WITHOUT_TORCH else None


@pytest.fixture(autouse=True, scope="session")
def _quiet() -> None:
    if find_spec("transformers"):
        from transformers.utils import logging

        logging.disable_progress_bar()
