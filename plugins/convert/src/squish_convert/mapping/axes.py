"""Transpose encoded tensors, and let the rows of several alternate, through codecs that do so on reading."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve

from squish_core.errors import TensorError
from squish_core.model import CodecSpec, Encoding, Part, TensorSpec
from squish_core.plugins.registry import Registry

from .codecs.groups import Groups
from .codecs.stack import member_role
from .codecs.transpose import swapped

TRANSPOSE, INTERLEAVE, DEINTERLEAVE = "transpose", "interleave", "deinterleave"


def transpose(spec: TensorSpec) -> TensorSpec:
    """Swap the last two axes; a second time gives the stored tensor back."""

    def view(encoding: Encoding) -> Encoding:
        codec = encoding.codec
        inner = codec.inner if codec.id == TRANSPOSE else None
        return evolve(encoding, codec=inner or CodecSpec(TRANSPOSE, {}, codec))

    encodings = tuple(map(view, spec.encodings))
    return evolve(spec, shape=swapped(spec.shape), encodings=encodings, extras={}, tied_to=None, row_names=None)


def interleave(specs: Sequence[TensorSpec], groups: Groups, registry: Registry) -> TensorSpec:
    """Let groups of rows alternate; TensorError (code `rows`) for tensors of different codecs."""
    first = specs[0]
    shape = groups.whole(first.shape, 0)
    if _are_separated(specs, groups):
        stored = [evolve(encoding, codec=encoding.codec.inner or encoding.codec) for encoding in first.encodings]
        return evolve(first, shape=shape, encodings=tuple(stored))
    turned = [transpose(spec) if _is_transposed(spec) else spec for spec in specs]
    params = {**groups.params, "transposed": tuple(n for n, spec in enumerate(specs) if spec is not turned[n])}
    for spec in turned:
        codecs = zip(spec.encodings, turned[0].encodings)
        alike = len(spec.encodings) == len(first.encodings) and spec.dtype == first.dtype
        if not alike or not all(registry.same_codec(one.codec, other.codec) for one, other in codecs):
            raise merge_error(turned[0], spec)

    def view(encodings: Sequence[Encoding]) -> Encoding:
        codec = CodecSpec(INTERLEAVE, params, encodings[0].codec)
        return evolve(encodings[0], codec=codec, parts=member_parts(encodings))

    encodings = tuple(map(view, zip(*(spec.encodings for spec in turned))))
    return evolve(first, shape=shape, encodings=encodings, extras={}, tied_to=None, row_names=None, attrs={})


def deinterleave(spec: TensorSpec, groups: Groups, number: int) -> TensorSpec:
    """Extract one of the tensors whose groups of rows alternate."""
    params = {**groups.params, "number": number}
    encodings = tuple(
        evolve(encoding, codec=CodecSpec(DEINTERLEAVE, params, encoding.codec)) for encoding in spec.encodings
    )
    shape = groups.piece(spec.shape, number)
    return evolve(spec, shape=shape, encodings=encodings, extras={}, tied_to=None, row_names=None)


def member_parts(encodings: Sequence[Encoding]) -> dict[str, Part]:
    """The parts of several tensors as parts of one."""
    return {
        member_role(number, role): part
        for number, encoding in enumerate(encodings)
        for role, part in encoding.parts.items()
    }


def merge_error(first: TensorSpec, other: TensorSpec) -> TensorError:
    """The error for tensors that cannot become one."""
    return TensorError(
        "is encoded differently from the tensors to merge it with", tensor=other.name, code="rows",
        expected=_storage(first), found=_storage(other),
        hint="Encode all of them alike with {option:encode}, or keep the names ({option:rename=keep}).",
    )  # fmt: skip


def _are_separated(specs: Sequence[TensorSpec], groups: Groups) -> bool:
    """Whether tensors are all pieces of one stored tensor, in order."""
    first = specs[0].encodings
    for number, spec in enumerate(specs):
        params = {**groups.params, "number": number}
        if len(spec.encodings) != len(first) or any(
            encoding.codec != CodecSpec(DEINTERLEAVE, params, original.codec.inner) or encoding.parts != original.parts
            for encoding, original in zip(spec.encodings, first)
        ):
            return False
    return True


def _is_transposed(spec: TensorSpec) -> bool:
    return bool(spec.encodings) and spec.encodings[0].codec.id == TRANSPOSE


def _storage(spec: TensorSpec) -> str:
    return f"{spec.encodings[0].codec if spec.encodings else 'unreadable'} {spec.dtype} {list(spec.shape)}"
