"""Compare two encodings: whether one can store the other, and whether both are lossy (re-quantizing)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import evolve

from squish_core import dtypes
from squish_core.codecs.base import Encoder
from squish_core.codes import ErrorCode
from squish_core.errors import MissingPluginError, TensorError, UsageError
from squish_core.model import CodecSpec, Encoding, TensorSpec
from squish_core.plugins.registry import Registry
from squish_core.text import counted

from .step import Step


def needs_activations(codec: CodecSpec, registry: Registry) -> bool:
    """Return whether encoding with a codec, or a codec it wraps, needs activation statistics."""
    own = registry.codec_type(codec.id).needs_activations(codec.params)
    return own or (codec.inner is not None and needs_activations(codec.inner, registry))


def without_statistics(codec: CodecSpec, registry: Registry) -> CodecSpec:
    """Return the codec without the search by activation statistics."""
    hidden = registry.codec_type(codec.id).encoder_only_params
    params = {key: value for key, value in codec.params.items() if key not in hidden or value != "activations"}
    return evolve(codec, params=params, inner=codec.inner and without_statistics(codec.inner, registry))


def without_encoder_params(codec: CodecSpec, registry: Registry) -> CodecSpec:
    """Return the codec without the parameters that only its encoder needs."""
    hidden = registry.codec_type(codec.id).encoder_only_params
    params = {key: value for key, value in codec.params.items() if key not in hidden}
    return evolve(codec, params=params, inner=codec.inner and without_encoder_params(codec.inner, registry))


def free_to_encode(answer: Encoding, requested: CodecSpec, registry: Registry) -> Encoding:
    """Return the target's encoding, without parameters that follow from codes, which the encoder has yet to compute."""
    stated = set(registry.codec_type(answer.codec.id).data_params) - requested.params.keys()
    params = {key: value for key, value in answer.codec.params.items() if key not in stated}
    return evolve(answer, codec=evolve(answer.codec, params=params))


def with_encoder_params(answer: CodecSpec, requested: CodecSpec, registry: Registry) -> CodecSpec:
    """The target's codec with the encoder parameters of the requested one; TensorError if they differ in codec."""
    hidden = {
        key: requested.params[key]
        for key in registry.codec_type(requested.id).encoder_only_params
        if key in requested.params
    }
    if hidden and answer.id != requested.id:
        raise TensorError(
            f"is stored as {answer.id}, which takes no {', '.join(hidden)}", found=str(requested), code=ErrorCode.PARAMS
        )
    inner = (
        with_encoder_params(answer.inner, requested.inner, registry)
        if answer.inner and requested.inner
        else answer.inner
    )
    return evolve(answer, params={**answer.params, **hidden}, inner=inner)


def same_encoding(answer: Encoding, encoding: Encoding, registry: Registry) -> bool:
    """Return whether the target stores exactly the bytes of the source's parts."""
    source_parts = {role: (part.dtype, part.shape, part.byteorder) for role, part in encoding.parts.items()}
    target_parts = {role: (part.dtype, part.shape, part.byteorder) for role, part in answer.parts.items()}
    return source_parts == target_parts and registry.same_codec(answer.codec, encoding.codec)


def keeps_values(target: CodecSpec, source: CodecSpec, dtype: str) -> bool:
    """Return whether both are dense, and the target's dtype represents every value of the source's."""
    return target.id == source.id == "dense" and (target == source or dtypes.holds(target.params["dtype"], dtype))


def keeps_codes(spec: TensorSpec, requested: CodecSpec, target: CodecSpec, registry: Registry) -> bool:
    """Return whether another codec stores any codes of a requested encoding exactly.

    The codes must be symmetric, with the same groups and scales; a constant may be added to each code.
    """
    if requested.id == target.id or requested.inner or target.inner:
        return False
    own, other = (registry.codec(codec).code_layout(spec) for codec in (requested, target))
    if own is None or other is None or own.table is not None or other.table is not None:
        return False
    facts = [(layout.bits, layout.group_sizes(spec.shape), layout.run, layout.scale_dtype) for layout in (own, other)]
    return own.is_symmetric and facts[0] == facts[1] and (other.is_symmetric or other.offset_kind == "zero_point")


def can_widen(answer: Encoding, encoding: Encoding) -> bool:
    """Return whether the target stores the source's parts with wider integers (indices) or in another byte order.

    A parameter with the role's name declares the dtype of such a part.
    """
    if answer.codec.id != encoding.codec.id or set(answer.parts) != set(encoding.parts):
        return False
    pairs = {role: (encoding.parts[role], part) for role, part in answer.parts.items()}
    widened = {role for role, (source, part) in pairs.items() if source.dtype != part.dtype}
    other_params = [
        {key: value for key, value in side.codec.params.items() if key not in widened} for side in (answer, encoding)
    ]
    byteorder_differs = any(source.byteorder != part.byteorder for source, part in pairs.values())
    same_shapes = all(source.shape == part.shape for source, part in pairs.values())
    return (
        (bool(widened) or byteorder_differs)
        and other_params[0] == other_params[1]
        and same_shapes
        and all(_widths(pairs[role][0].dtype, pairs[role][1].dtype) for role in widened)
    )


def encoder_for(registry: Registry, codec: CodecSpec, spec: TensorSpec) -> type[Encoder]:
    """The encoder for a tensor; for a dense vector the codec itself, since NumPy casts faster than a library loads."""
    is_vector = codec.id == "dense" and len(spec.shape) < 2
    return registry.codec_type(codec.id) if is_vector else registry.encoder_type(codec)


def encoder_problem(registry: Registry, codec: CodecSpec) -> str | None:
    """Return why a declared encoder cannot be used here; None if it can, or none is declared."""
    entry = registry.encoders.get(codec.id) if codec.inner is None else None
    try:
        if entry is not None:
            registry.instance("encoder", entry)
    except MissingPluginError as error:
        return error.message
    return None


def _widths(source: Any, target: Any) -> bool:
    """Return whether integers can be widened to unsigned ones; a negative value is refused while writing."""
    if not (
        isinstance(source, str) and isinstance(target, str) and dtypes.is_dtype(source) and dtypes.is_dtype(target)
    ):
        return False
    return source[0] in "iu" and target[0] == "u" and 8 <= dtypes.bits(source) <= dtypes.bits(target)


def is_lossy(codec: CodecSpec, registry: Registry) -> bool:
    """Return whether a codec, or the one it wraps, loses values when it encodes."""
    lossless = registry.codecs[codec.id].info.lossless
    instance = registry.codec(codec)
    if codec.inner is None:
        return not lossless or instance.error_bound.error is not None
    lossless = lossless or instance.lossless_params == codec.params
    return not lossless or is_lossy(codec.inner, registry)


def requantizes(step: Step, registry: Registry) -> bool:
    """Return whether a step quantizes values that were quantized before.

    Copies and repacks keep the codes, and a dense target keeps the decoded values as floats.
    """
    return step.is_lossy and is_lossy(step.origin.codec, registry) and is_lossy(step.codec, registry)


def check_requantize(steps: Sequence[Step], file: str, registry: Registry) -> None:
    """Raise UsageError if a step re-quantizes without permission."""
    affected = [step for step in steps if requantizes(step, registry)]
    if not affected:
        return
    first, more = affected[0], len(affected) - 1
    rest = f"; the same goes for {counted(more, 'other tensor')}" if more else ""
    raise UsageError(
        f"is quantized already ({first.source}), and encoding it as {first.target} loses more precision{rest}",
        file=file,
        tensor=first.name,
        code="requantize",
        hint="Convert from the original weights, or allow it with {option:requantize=True}.",
    )
