"""Base of all suites: the registry under test, and tests of a declaration."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis.extra.numpy import basic_indices

from squish_core.codes import BUGS
from squish_core.errors import SquishError
from squish_core.plugins.entries import Entry
from squish_core.plugins.hookspecs import PLURALS
from squish_core.plugins.registry import Registry
from squish_core.plugins.registry import registry as installed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import numpy as np

HEAVY = ("numpy", "ml_dtypes", "cbor2", "zstandard", "torch", "mlx", "coremltools", "scipy")
_LISTING = """
import importlib, json, sys
from squish_core.plugins.registry import Registry
name, dist = sys.argv[1:]
extra = [importlib.import_module(name)] if name else []
registry = Registry("", extra=extra, entry_points=list) if name else Registry(f"+{dist}")
tables = (registry.containers, registry.codecs, registry.backends, registry.families)
facts = [entry.to_dict() for table in tables for entry in table.values()]
print(json.dumps([len(facts), sorted(sys.modules)]))
"""

_CASES: dict[type[Any], Mapping[str, Any]] = {}


class Suite:
    """Base of the suites. `plugin` names the register module if its distribution may not be installed."""

    plugin: str = ""
    kind = ""

    @property
    def registry(self) -> Registry:
        """The registry under test: all installed plugins, and `plugin`."""
        return _with(self.plugin) if self.plugin else installed()

    def plugin_id(self) -> str:
        """Return the id under test."""
        return str(getattr(self, self.kind))

    def entry(self) -> Entry[Any]:
        """Return the declaration under test."""
        table: dict[str, Entry[Any]] = getattr(self.registry, PLURALS.get(self.kind, f"{self.kind}s"))
        if self.plugin_id() not in table:
            hint = "install the plugin (pip install -e .), or name its module in `plugin` of the suite"
            pytest.fail(
                f"{self.kind} {self.plugin_id()!r} is not registered; {hint}; broken plugins: {self.registry.broken}"
            )
        return table[self.plugin_id()]

    def test_registering_imports_no_implementation(self) -> None:
        """Listing plugins imports the register modules only: neither NumPy nor an implementation."""
        entry = self.entry()
        modules = _modules_of_listing(self.plugin, entry.dist)
        implementation = entry.info.factory.partition(":")[0]
        heavy = sorted({implementation, *HEAVY}.intersection(modules))
        assert not heavy, f"registering {self.plugin_id()} imports {', '.join(heavy)}"

    def test_the_declaration_is_plain_data(self) -> None:
        """The declaration serializes to JSON, and its implementation can be imported."""
        facts = self.entry().to_dict()
        with typed_errors_only(f"{len(facts)} facts of {self.plugin_id()} as JSON"):
            json.dumps(facts)
        implementation = self.registry.implementation(self.kind, self.plugin_id())
        assert implementation.id == self.plugin_id(), f"{self.plugin_id()!r} is imported as {implementation.id!r}"


@cache
def _modules_of_listing(plugin: str, dist: str) -> list[str]:
    """Modules that a new process imports to list the plugins; all suites of a plugin share it."""
    command = [sys.executable, "-c", _LISTING, plugin, dist]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", env=environment, check=False)
    assert process.returncode == 0, f"listing plugins in a new process exits {process.returncode}: {process.stderr}"
    _, modules = json.loads(process.stdout)
    return list(modules)


@contextmanager
def typed_errors_only(what: str) -> Iterator[None]:
    """Allow SquishError in the block; fail on any other exception, and on a plugin bug that the core wrapped."""
    try:
        yield
    except SquishError as error:
        if error.code in BUGS:
            raise AssertionError(f"{what}: {error}") from error
    except AssertionError as error:
        raise AssertionError(f"{what}: {error}") from error
    except Exception as error:
        raise AssertionError(f"{what}: {type(error).__name__} escaped: {error}") from error


def cases_of(suite: type[Any]) -> Mapping[str, Any]:
    """Return the cases of a suite, made once for all its tests: some take long."""
    if suite not in _CASES:
        _CASES[suite] = suite().cases()
    return _CASES[suite]


def parametrize(metafunc: Any, argument: str, names: Any) -> None:
    """Run a test once per name if it takes `argument`."""
    if argument in metafunc.fixturenames:
        metafunc.parametrize(argument, list(names))


def assert_regions_equal(
    shape: tuple[int, ...], array: np.ndarray, read: Callable[[Any], np.ndarray], what: str
) -> None:
    """Assert that `read(key)` equals `array[key]` bit for bit, for any basic index."""

    @settings(max_examples=15, derandomize=True, database=None, deadline=None, report_multiple_bugs=False)
    @given(basic_indices(shape, allow_newaxis=False))
    def check(key: Any) -> None:
        actual, expected = read(key), array[key]
        assert actual.shape == expected.shape, f"{what}: [{key}] has shape {actual.shape}, expected {expected.shape}"
        different = int((actual != expected).sum())
        assert actual.tobytes() == expected.tobytes(), f"{what}: [{key}]: {different} of {actual.size} values differ"

    check()


@cache
def _with(plugin: str) -> Registry:
    registry, module = Registry(), importlib.import_module(plugin)
    if not registry.manager.is_registered(module):  # it may be installed
        registry.register(module)
    return registry
