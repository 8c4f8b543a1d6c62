"""Re-quantizing: a tensor stored in a lossy codec is decoded and encoded by a lossy codec again."""

from __future__ import annotations

from collections.abc import Sequence

from squish_core.errors import UsageError
from squish_core.model import CodecSpec
from squish_core.plugins.registry import Registry
from squish_core.text import counted

from .step import Step


def is_lossy(codec: CodecSpec, registry: Registry) -> bool:
    """Whether a codec, or the one it wraps, loses values when it encodes."""
    lossless = registry.codecs[codec.id].info.lossless
    instance = registry.codec(codec)
    if codec.inner is None:
        return not lossless or instance.error_bound.error is not None
    lossless = lossless or instance.lossless_params == codec.params
    return not lossless or is_lossy(codec.inner, registry)


def requantizes(step: Step, registry: Registry) -> bool:
    """Whether a step quantizes values that were quantized before.

    Copies and repacks keep the codes, and a dense target keeps the decoded values as floats.
    """
    return step.is_lossy and is_lossy(step.origin.codec, registry) and is_lossy(step.codec, registry)


def check_requantize(steps: Sequence[Step], file: str, registry: Registry) -> None:
    """Raise UsageError if the conversion would re-quantize without permission."""
    affected = [step for step in steps if requantizes(step, registry)]
    if not affected:
        return
    first, more = affected[0], len(affected) - 1
    rest = f"; the same goes for {counted(more, 'other tensor')}" if more else ""
    raise UsageError(
        f"is quantized already ({first.source}), and encoding it as {first.target} loses more precision{rest}",
        file=file, tensor=first.name, code="requantize",
        hint="Convert from the original weights, or allow it with {option:requantize=True}.",
    )  # fmt: skip
