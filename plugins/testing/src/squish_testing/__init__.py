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

from .backends import BackendSuite
from .byte_codecs import ByteCodecSuite
from .codecs import CodecSuite
from .containers import ContainerSuite
from .errors import expect_error
from .families import FamilySuite, model_arrays, write_model
from .mutations import mutant, mutants, truncations
from .refinements import RefinementSuite
from .source_suite import SourceSuite
from .sources import CountingSource, memory_file
from .truth import Fingerprint

__all__ = [
    "BackendSuite", "ByteCodecSuite", "CodecSuite", "ContainerSuite", "CountingSource", "FamilySuite",
    "Fingerprint", "RefinementSuite", "SourceSuite", "expect_error", "memory_file", "model_arrays", "mutant",
    "mutants", "truncations", "write_model",
]  # fmt: skip
