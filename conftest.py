"""What all tests share."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from importlib.util import find_spec

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

settings.register_profile("untimed", deadline=None)  # the machine may be busy
settings.load_profile("untimed")


@pytest.fixture(autouse=True, scope="session")
def surroundings() -> Iterator[None]:
    """Let the tests see the same surroundings wherever they run: once, since each fixture costs every test."""
    with pytest.MonkeyPatch.context() as patch:
        published(patch)
        patch.setenv("SQUISH_CONFIG", os.devnull)  # the settings of whoever runs the tests
        patch.setenv("COLUMNS", "400")  # no line is wrapped, so that tests can look for text
        if find_spec("squish_cli") and find_spec("jsonschema"):
            documents_fit_their_schemas(patch)
        yield


def published(patch: pytest.MonkeyPatch) -> None:
    """Let install hints be pip's and name packages; tests about hints set these functions."""
    from squish_core import environment
    from squish_core.plugins import catalog

    for name in ("checkout", "repository", "wheels"):
        patch.setattr(catalog, name, lambda: None)
    patch.setattr(environment, "installer", lambda: ([["pip", "install"]], ()))


def documents_fit_their_schemas(patch: pytest.MonkeyPatch) -> None:
    """Compare each document that a command prints in this process with its schema."""
    from documents import checked_print, schemas
    from squish_cli import api, output

    schemas()  # kept: a test may have another registry
    for module in (output, api):
        patch.setattr(module, "print_document", checked_print)


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
