"""The one module of the core that a plugin imports; names are loaded on first use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_NAMES = {
    "squish_core.hookspecs": ("SQUISH_API", "BackendInfo", "CodecInfo", "ContainerInfo", "Signature", "hookimpl"),
    "squish_core.model": (
        "DENSE", "SAME_BYTES", "CodecSpec", "Encoding", "Exactness", "FileRef", "Filter", "Index", "LazyTensors",
        "Part", "Problem", "Refusal", "Segment", "TensorSpec", "Typed",
    ),
    "squish_core.errors": (
        "AmbiguousFormatError", "ClosedError", "CodecError", "ConflictError", "FormatError", "LimitError",
        "MissingPluginError", "SquishError", "TensorError", "TruncatedError", "UnknownFormatError",
        "UnsupportedVersionError",
    ),
    "squish_core.limits": ("Limits",),
    "squish_core.source": ("Source", "check_plain_name"),
    "squish_core.containers": ("Container", "Layout", "Refinement"),
    "squish_core.codecs.base": ("ByteCodec", "Codec", "Codes", "PartArray", "Parts", "Region"),
    "squish_core.backends.base": (
        "OPS", "Availability", "Backend", "Cost", "Offer", "Refused", "Request", "Use",
    ),
    "squish_core.writing": ("Outgoing", "Sink"),
    "squish_core.typed": ("dump_meta", "load_meta"),
    "squish_core.structure": ("check_extents", "check_name", "check_shape"),
    "squish_core": ("dtypes",),
}  # fmt: skip
_HOME = {name: module for module, names in _NAMES.items() for name in names}
__all__ = sorted(_HOME)

if TYPE_CHECKING:
    from squish_core import dtypes as dtypes


def __getattr__(name: str) -> Any:
    module = _HOME.get(name)
    if module is None:
        raise AttributeError(f"module 'squish_core.api' has no attribute {name!r}")
    value = (
        importlib.import_module("squish_core.dtypes")
        if name == "dtypes"
        else getattr(importlib.import_module(module), name)
    )
    globals()[name] = value
    return value
