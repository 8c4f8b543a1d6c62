"""Runs the other tests of this plugin where torch and Triton are installed: in Triton's interpreter, and compiled."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import oracles
import pytest

pytestmark = pytest.mark.oracle

TESTS = Path(__file__).parent


@pytest.mark.parametrize("interpreted", [True, False], ids=["interpreted", "compiled"])
@pytest.mark.parametrize("chosen", ["", pytest.param("short", marks=pytest.mark.peers)], ids=["all", "short"])
def test_the_tests_that_need_triton(interpreted: bool, chosen: str) -> None:
    python = oracles.peer("squish-cuda").python
    environment = {**os.environ, "TRITON_INTERPRET": str(int(interpreted))}
    select = "q4_k and not int8" if interpreted else "q4_k and sm_90"
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not oracle", str(TESTS)]
    command += ["-k", select] * bool(chosen)
    done = subprocess.run(command, cwd=oracles.ROOT, env=environment, capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
