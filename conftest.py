"""What all tests share."""

from __future__ import annotations

import gc
import os
from importlib.util import find_spec

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

settings.register_profile("untimed", deadline=None)  # the machine may be busy
settings.load_profile("untimed")


@pytest.fixture(autouse=True)
def published(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let install hints be pip's and name packages, wherever the tests run; tests about hints set these functions."""
    from squish_core import environment
    from squish_core.plugins import catalog

    for name in ("checkout", "repository", "wheels"):
        monkeypatch.setattr(catalog, name, lambda: None)
    monkeypatch.setattr(environment, "installer", lambda: ([["pip", "install"]], ()))


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the settings of whoever runs the tests not reach them."""
    monkeypatch.setenv("SQUISH_CONFIG", os.devnull)


@pytest.fixture(autouse=True)
def documents_fit_their_schemas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare each document that a command prints in this process with its schema."""
    if find_spec("squish_cli") and find_spec("jsonschema"):
        from documents import checked_print
        from squish_cli import api, output

        for module in (output, api):
            monkeypatch.setattr(module, "print_document", checked_print)


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no line be wrapped, so that tests can look for text; those about widths set their own."""
    monkeypatch.setenv("COLUMNS", "400")


def pytest_collection_finish() -> None:
    """Let Hypothesis fill its caches first: in a fresh checkout that takes memory which a test would be blamed for.

    The tens of thousands of tests are no garbage: each collection would visit them all.
    """
    warm()
    gc.freeze()


@settings(max_examples=5, database=None)
@given(st.tuples(st.text(), st.integers(), st.floats(), st.binary()))
def warm(drawn: object) -> None:
    """Draw one of each kind."""
