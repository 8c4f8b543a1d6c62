"""Squish opens, checks, converts and runs compressed transformer weights of any format.

    import squish_core as squish
    f = squish.open("model.gguf")
    y = f["blk.0.ffn_up.weight"].load().linear(x)

Everything is imported on first use (PEP 562): `import squish_core` costs almost nothing.
"""

from __future__ import annotations

# Neither typing nor importlib is imported: they would be most of what `import squish_core` costs.
TYPE_CHECKING = False

__version__ = "0.1.0"

_NAMES = {
    "squish_core": ("__version__",),
    "squish_core.opening": ("open",),
    "squish_core.file": ("File",),
    "squish_core.tensor": ("Tensor",),
    "squish_core.backends.weight": ("Weight",),
    "squish_core.backends.whole": ("WholeModel",),
    "squish_core.dtypes": ("DType",),
    "squish_core.conversion.save": ("save",),
    "squish_core.conversion.convert": ("convert", "Conversion"),
    "squish_core.conversion.step": ("Step",),
    "squish_core.analysis.verify": ("verify", "Report"),
    "squish_core.analysis.benchmark": ("benchmark", "Benchmark", "Measurement"),
    "squish_core.analysis.diagnosis": ("diagnose", "Diagnosis"),
    "squish_core.analysis.diff": ("diff", "Difference", "TensorDifference"),
    "squish_core.statistics": ("Statistics",),
    "squish_core.layers": ("iter_layers", "Layer"),
    "squish_core.plugins.registry": ("registry", "Registry"),
    "squish_core.plugins.requirements": ("Requirement",),
    "squish_core.backends.chain": ("Chain",),
    "squish_core.backends.base": ("Offer",),
    "squish_core.backends.plan": ("FilePlan",),
    "squish_core.analysis.summary": ("Summary",),
    "squish_core.model": ("Refusal", "Exactness"),
    "squish_core.io.buffer": ("Buffer",),
    "squish_core.limits": ("Limits",),
    "squish_core.errors": (
        "Problem", "SquishError", "UsageError", "FileAccessError", "MissingFileError", "WriteError", "FormatError",
        "UnsupportedVersionError", "TruncatedError", "LimitError", "TensorError", "RangeError", "CodecError",
        "MissingPluginError", "ConflictError", "AmbiguousFormatError", "UnknownFormatError", "ClosedError",
    ),
}  # fmt: skip
_RENAMED = {"stream": "iter_layers"}
"""Old name -> new name; the old one works in this version, with a DeprecationWarning."""

if TYPE_CHECKING:
    from squish_core.analysis.benchmark import Benchmark, Measurement, benchmark
    from squish_core.analysis.diagnosis import Diagnosis, diagnose
    from squish_core.analysis.diff import Difference, TensorDifference, diff
    from squish_core.analysis.summary import Summary
    from squish_core.analysis.verify import Report, verify
    from squish_core.backends.base import Offer
    from squish_core.backends.chain import Chain
    from squish_core.backends.plan import FilePlan
    from squish_core.backends.weight import Weight
    from squish_core.backends.whole import WholeModel
    from squish_core.conversion.convert import Conversion, convert
    from squish_core.conversion.save import save
    from squish_core.conversion.step import Step
    from squish_core.dtypes import DType
    from squish_core.errors import (
        AmbiguousFormatError,
        ClosedError,
        CodecError,
        ConflictError,
        FileAccessError,
        FormatError,
        LimitError,
        MissingFileError,
        MissingPluginError,
        Problem,
        RangeError,
        SquishError,
        TensorError,
        TruncatedError,
        UnknownFormatError,
        UnsupportedVersionError,
        UsageError,
        WriteError,
    )
    from squish_core.file import File
    from squish_core.io.buffer import Buffer
    from squish_core.layers import Layer, iter_layers
    from squish_core.limits import Limits
    from squish_core.model import Exactness, Refusal
    from squish_core.opening import open  # noqa: A004
    from squish_core.plugins.registry import Registry, registry
    from squish_core.plugins.requirements import Requirement
    from squish_core.statistics import Statistics
    from squish_core.tensor import Tensor
else:
    from squish_core.plugins.lazy import lazy_exports

    __getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES, _RENAMED)
