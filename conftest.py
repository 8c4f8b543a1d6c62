"""What all tests share."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st


def pytest_collection_finish() -> None:
    """Let Hypothesis fill its caches first: in a fresh checkout that takes memory which a test would be blamed for."""
    warm()


@settings(max_examples=5, database=None, deadline=None)
@given(st.tuples(st.text(), st.integers(), st.floats(), st.binary()))
def warm(drawn: object) -> None:
    """Draw one of each kind."""
