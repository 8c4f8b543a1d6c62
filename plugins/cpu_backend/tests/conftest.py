"""Every instruction set that this machine runs, one after the other."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from squish_cpu import library

sys.path.insert(0, str(Path(__file__).parent))  # cases is a module of these tests


@pytest.fixture(params=library.library().instructions)
def instructions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """One instruction set, used until the end of the test."""
    monkeypatch.setenv(library.INSTRUCTIONS, request.param)
    library.library.cache_clear()
    yield library.library().chosen
    monkeypatch.undo()
    library.library.cache_clear()
    library.library()
