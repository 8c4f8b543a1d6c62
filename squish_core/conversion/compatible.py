"""Whether two encodings say the same, and what in a codec's parameters is for encoding alone."""

from __future__ import annotations

from typing import Any

from attrs import evolve

from squish_core import dtypes
from squish_core.codes import ErrorCode
from squish_core.errors import TensorError
from squish_core.model import CodecSpec, Encoding
from squish_core.plugins.registry import Registry


def needs_activations(codec: CodecSpec, known: Registry) -> bool:
    """Whether encoding with a codec, or with the one it wraps, needs statistics of activations."""
    own = known.codec(codec).needs_activations(codec.params)
    return own or (codec.inner is not None and needs_activations(codec.inner, known))


def without_hints(codec: CodecSpec, known: Registry) -> CodecSpec:
    """A codec without what is for encoding alone."""
    hidden = known.codec(codec.id).encoder_only_params
    params = {key: value for key, value in codec.params.items() if key not in hidden}
    return evolve(codec, params=params, inner=codec.inner and without_hints(codec.inner, known))


def with_hints(answer: CodecSpec, asked: CodecSpec, known: Registry) -> CodecSpec:
    """The target's codec with what the asked one says for encoding alone; TensorError where it is another codec."""
    hidden = {key: asked.params[key] for key in known.codec(asked.id).encoder_only_params if key in asked.params}
    if hidden and answer.id != asked.id:
        raise TensorError(
            f"it becomes {answer.id}, which takes no {', '.join(hidden)}", found=str(asked), code=ErrorCode.PARAMS
        )
    inner = with_hints(answer.inner, asked.inner, known) if answer.inner and asked.inner else answer.inner
    return evolve(answer, params={**answer.params, **hidden}, inner=inner)


def same(answer: Encoding, encoding: Encoding, known: Registry) -> bool:
    """Whether the target holds exactly the source's part bytes."""
    kept = {role: (part.dtype, part.shape, part.byteorder) for role, part in encoding.parts.items()}
    parts = {role: (part.dtype, part.shape, part.byteorder) for role, part in answer.parts.items()}
    return kept == parts and known.same_codec(answer.codec, encoding.codec)


def wider(answer: Encoding, encoding: Encoding) -> bool:
    """Whether the target holds the source's parts, some of them (indices) as wider integers or in another byte order.

    A parameter with the role's name states such a part's dtype.
    """
    if answer.codec.id != encoding.codec.id or set(answer.parts) != set(encoding.parts):
        return False
    pairs = {role: (encoding.parts[role], part) for role, part in answer.parts.items()}
    wider = {role for role, (kept, part) in pairs.items() if kept.dtype != part.dtype}
    rest = [{key: value for key, value in side.codec.params.items() if key not in wider} for side in (answer, encoding)]
    turned = any(kept.byteorder != part.byteorder for kept, part in pairs.values())
    same_form = all(kept.shape == part.shape for kept, part in pairs.values())
    return (bool(wider) or turned) and rest[0] == rest[1] and same_form and all(
        _widths(pairs[role][0].dtype, pairs[role][1].dtype) for role in wider
    )  # fmt: skip


def _widths(source: Any, target: Any) -> bool:
    """Integers to wider unsigned ones; a negative one is refused when it is met."""
    if not (
        isinstance(source, str) and isinstance(target, str) and dtypes.is_dtype(source) and dtypes.is_dtype(target)
    ):
        return False
    return source[0] in "iu" and target[0] == "u" and 8 <= dtypes.bits(source) <= dtypes.bits(target)
