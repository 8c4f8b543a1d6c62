"""The conformance kit: test suites that any plugin, of this repository or another, runs on itself.

    class TestFoo(ContainerSuite):
        container = "acme.foo"
        def samples(self):
            return {"small": b"ACME..."}

Needs pytest and Hypothesis (`squish-core[testing]`).
"""

from __future__ import annotations

from squish_core.testing.backends import BackendSuite
from squish_core.testing.codecs import CodecSuite
from squish_core.testing.containers import ContainerSuite
from squish_core.testing.mutations import mutant, mutants, truncations
from squish_core.testing.sources import CountingSource, memory_file

__all__ = [
    "BackendSuite", "CodecSuite", "ContainerSuite", "CountingSource", "memory_file", "mutant", "mutants",
    "truncations",
]  # fmt: skip
