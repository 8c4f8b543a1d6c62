"""The conformance kit: test suites for plugins, in this repository or any other.

    class TestFoo(ContainerSuite):
        container = "acme.foo"
        def samples(self):
            return {"small": b"ACME..."}
        def values(self):
            return {"small": {"weights": np.arange(12, dtype="f4")}}
        def damaged(self):
            return {"cut short": b"ACM"}

Needs pytest and Hypothesis (`squish-core[testing]`).
"""

from __future__ import annotations

from squish_testing.backends import BackendSuite
from squish_testing.byte_codecs import ByteCodecSuite
from squish_testing.codecs import CodecSuite
from squish_testing.containers import ContainerSuite
from squish_testing.errors import expect_error
from squish_testing.families import FamilySuite, model_arrays, write_model
from squish_testing.mutations import mutant, mutants, truncations
from squish_testing.refinements import RefinementSuite
from squish_testing.source_suite import SourceSuite
from squish_testing.sources import CountingSource, memory_file
from squish_testing.truth import Fingerprint

__all__ = [
    "BackendSuite", "ByteCodecSuite", "CodecSuite", "ContainerSuite", "CountingSource", "FamilySuite",
    "Fingerprint", "RefinementSuite", "SourceSuite", "expect_error", "memory_file", "model_arrays", "mutant",
    "mutants", "truncations", "write_model",
]  # fmt: skip
