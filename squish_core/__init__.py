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
    "open": "opening", "File": "file", "Tensor": "tensor", "Weight": "tensor",
    "registry": "plugins.registry", "Registry": "plugins.registry",
    "verify": "analysis.verify", "Report": "analysis.verify",
    "diff": "analysis.diff", "convert": "conversion.convert",
    "stream": "layers", "Layer": "layers",
    "Limits": "limits",
    "SquishError": "errors", "FormatError": "errors", "UnsupportedVersionError": "errors",
    "TruncatedError": "errors", "LimitError": "errors", "TensorError": "errors", "CodecError": "errors",
    "MissingPluginError": "errors", "ConflictError": "errors", "AmbiguousFormatError": "errors",
    "UnknownFormatError": "errors", "ClosedError": "errors",
}  # fmt: skip
__all__ = ["__version__", *_HOME]

if TYPE_CHECKING:
    from squish_core.analysis.diff import diff
    from squish_core.analysis.verify import Report, verify
    from squish_core.conversion.convert import convert
    from squish_core.errors import (
        AmbiguousFormatError,
        ClosedError,
        CodecError,
        ConflictError,
        FormatError,
        LimitError,
        MissingPluginError,
        SquishError,
        TensorError,
        TruncatedError,
        UnknownFormatError,
        UnsupportedVersionError,
    )
    from squish_core.file import File
    from squish_core.layers import Layer, stream
    from squish_core.limits import Limits
    from squish_core.opening import open  # noqa: A004
    from squish_core.plugins.registry import Registry, registry
    from squish_core.tensor import Tensor, Weight


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'squish_core' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(f"squish_core.{home}"), name)
    globals()[name] = value
    return value
