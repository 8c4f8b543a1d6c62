"""The conformance kit of squish-testing, under the name that plugins import."""

from __future__ import annotations

from squish_core.plugins.lazy import lazy_exports

_NAMES = {
    "squish_testing": (
        "BackendSuite", "ByteCodecSuite", "CodecSuite", "ContainerSuite", "CountingSource", "FamilySuite",
        "Fingerprint", "RefinementSuite", "SourceSuite", "expect_error", "memory_file", "model_arrays", "mutant",
        "mutants", "truncations", "write_model",
    ),
}  # fmt: skip

__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
