"""Runs the other tests of this plugin in an environment with Dask."""

from __future__ import annotations

import subprocess
from pathlib import Path

import oracles
import pytest

pytestmark = pytest.mark.oracle

TESTS = Path(__file__).parent


def test_the_tests_that_need_dask() -> None:
    python = oracles.peer("dask").python
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not oracle", str(TESTS)]
    done = subprocess.run(command, cwd=oracles.ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
