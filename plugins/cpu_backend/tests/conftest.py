"""Runs tests with every instruction set of this machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from squish_cpu import library

sys.path.insert(0, str(Path(__file__).parent))  # cases is a module of these tests


@pytest.fixture(params=library.library().instructions)
def instructions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """One instruction set, active for the test."""
    monkeypatch.setenv(library.INSTRUCTIONS, request.param)
    library.library.cache_clear()
    yield library.library().active
    library.library.cache_clear()
