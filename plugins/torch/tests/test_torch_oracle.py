"""Runs the other tests of this plugin in an environment with torch and transformers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import oracles
import pytest

pytestmark = pytest.mark.oracle

TESTS = Path(__file__).parent


LOADING = ("test_torch_pretrained.py", "test_torch_checkpoints.py", "test_torch_quantized_folders.py")
"""What depends on transformers' loader."""
SHORT = ("test_torch_ops.py",)


@pytest.mark.parametrize(
    ("environment", "modules"),
    [
        pytest.param("squish-torch", (".",), id="latest"),
        pytest.param("squish-torch-lowest", LOADING, id="lowest"),
        pytest.param("squish-torch", SHORT, id="short", marks=pytest.mark.peers),
    ],
)
def test_the_tests_that_need_torch(environment: str, modules: tuple[str, ...]) -> None:
    python = oracles.peer(environment).python
    paths = [str(TESTS / module) for module in modules]
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not oracle", *paths]
    done = subprocess.run(command, cwd=oracles.ROOT, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
