"""The options of a npy directory, and which tensors its conventions leave unchanged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from squish_core.api import CodecSpec, ErrorCode, FormatError, Options, TensorSpec, kind_of

_VALUES = {"passthrough": ("f16",), "scales": ("f32", "f16"), "tiers": ("build",)}
STORED_AS_IS = ("embedding", "head", "norm", "bias")
"""Kinds of tensors that a rule without a pattern leaves unchanged. Source: Squish architecture document, section 3."""
WIDER_THAN_F16 = ("f64", "f32", "bf16")


def option(options: Options, key: str) -> str | None:
    """Return the value of an option, or None; FormatError for an invalid value."""
    value = options.get(key)
    if value is not None and value not in _VALUES[key]:
        raise FormatError(
            f"invalid value of the npydir option {key}",
            expected=" or ".join(_VALUES[key]),
            found=repr(value),
            code=ErrorCode.OPTION,
        )
    return value


def quantized(specs: Sequence[TensorSpec], codec: CodecSpec) -> Mapping[str, CodecSpec]:
    """Return the codec of each tensor that a rule without a pattern changes."""
    return {spec.name: codec for spec in specs if codec.id == "dense" or kind_of(spec.name) not in STORED_AS_IS}


def narrowed(specs: Sequence[TensorSpec], options: Options) -> Mapping[str, str]:
    """Return the dtype of each dense tensor that the option `passthrough` narrows."""
    dtype = option(options, "passthrough")
    return {spec.name: dtype for spec in specs if spec.dtype in WIDER_THAN_F16} if dtype else {}
