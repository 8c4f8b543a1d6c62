"""Squish opens, checks, converts and runs compressed transformer weights of any format.

    import squish_core as squish
    f = squish.open("model.gguf")
    y = f["blk.0.ffn_up.weight"].load().linear(x)

Everything is imported on first use (PEP 562): `import squish_core` costs almost nothing.
"""

from __future__ import annotations

from squish_core.plugins.lazy import lazy_exports

_NAMES = {
    "squish_core.version": ("__version__",),
    "squish_core.opening": ("open",),
    "squish_core.file": ("File",),
    "squish_core.tensor": ("Tensor",),
    "squish_core.backends.weight": ("Weight",),
    "squish_core.backends.whole": ("WholeModel",),
    "squish_core.dtypes": ("DType",),
    "squish_convert.convert": ("convert", "save", "Conversion", "Job"),
    "squish_convert.virtual": ("as_format",),
    "squish_convert.step": ("Step",),
    "squish_core.checking.verify": ("verify", "Report"),
    "squish_cli.benchmark": ("benchmark", "Benchmark", "Measurement"),
    "squish_cli.diagnosis": ("diagnose", "Diagnosis"),
    "squish_convert.compare.diff": ("diff", "Difference", "TensorDifference"),
    "squish_convert.statistics": ("Statistics",),
    "squish_convert.tables": ("Selection", "Table"),
    "squish_core.layers": ("iter_layers", "Layer"),
    "squish_core.plugins.registry": ("registry", "Registry"),
    "squish_core.plugins.requirements": ("Requirement",),
    "squish_core.backends.chain": ("Chain",),
    "squish_core.backends.base": ("Offer",),
    "squish_core.backends.plan": ("FilePlan",),
    "squish_core.summary": ("Summary",),
    "squish_core.model": ("Refusal", "Exactness"),
    "squish_core.io.buffer": ("Buffer",),
    "squish_core.limits": ("Limits",),
    "squish_core.errors": (
        "Problem", "SquishError", "UsageError", "FileAccessError", "MissingFileError", "WriteError", "FormatError",
        "UnsupportedVersionError", "TruncatedError", "LimitError", "TensorError", "RangeError", "CodecError",
        "MissingPluginError", "ConflictError", "AmbiguousFormatError", "UnknownFormatError", "ClosedError",
    ),
}  # fmt: skip

__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
