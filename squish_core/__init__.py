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

_HOME = {
    "open": "opening",
    "File": "file",
    "Tensor": "tensor",
    "Weight": "tensor",
    "DType": "dtypes",
    "save": "conversion.save",
    "convert": "conversion.convert",
    "Conversion": "conversion.convert",
    "Step": "conversion.step",
    "verify": "analysis.verify",
    "Report": "analysis.verify",
    "diff": "analysis.diff",
    "Difference": "analysis.diff",
    "TensorDifference": "analysis.diff",
    "Statistics": "statistics",
    "iter_layers": "layers",
    "Layer": "layers",
    "registry": "plugins.registry",
    "Registry": "plugins.registry",
    "Chain": "backends.chain",
    "Offer": "backends.base",
    "Refusal": "model",
    "Buffer": "io.buffer",
    "Limits": "limits",
    "Problem": "errors",
    "Exactness": "model",
    "SquishError": "errors",
    "UsageError": "errors",
    "FileAccessError": "errors",
    "MissingFileError": "errors",
    "WriteError": "errors",
    "FormatError": "errors",
    "UnsupportedVersionError": "errors",
    "TruncatedError": "errors",
    "LimitError": "errors",
    "TensorError": "errors",
    "RangeError": "errors",
    "CodecError": "errors",
    "MissingPluginError": "errors",
    "ConflictError": "errors",
    "AmbiguousFormatError": "errors",
    "UnknownFormatError": "errors",
    "ClosedError": "errors",
}
_RENAMED = {"stream": "iter_layers"}
"""Old name -> new name; the old one works in this version, with a DeprecationWarning."""
__all__ = ["__version__", *_HOME]

if TYPE_CHECKING:
    from squish_core.analysis.diff import Difference, TensorDifference, diff
    from squish_core.analysis.verify import Report, verify
    from squish_core.backends.base import Offer
    from squish_core.backends.chain import Chain
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
    from squish_core.statistics import Statistics
    from squish_core.tensor import Tensor, Weight


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> object:
    if name in _RENAMED:
        import warnings

        warnings.warn(f"squish_core.{name} is now {_RENAMED[name]}", DeprecationWarning, stacklevel=2)
        name = _RENAMED[name]
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'squish_core' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(f"squish_core.{home}"), name)
    globals()[name] = value
    return value
