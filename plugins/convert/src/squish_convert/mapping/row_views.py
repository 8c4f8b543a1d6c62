"""Slice, concatenate, stack, permute and transpose the rows of encoded tensors, as views of their stored bytes.

Byte ranges cannot express transposed axes or interleaved rows; for these, a codec rearranges values on reading.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import gcd, prod
from typing import TYPE_CHECKING, Any

from attrs import evolve

from squish_core import dtypes
from squish_core.codecs.base import Codec
from squish_core.codecs.permuted import PermutedRows
from squish_core.codes import ErrorCode
from squish_core.errors import CodecError, SquishError, TensorError
from squish_core.file import File
from squish_core.guard import guarded
from squish_core.model import DENSE, CodecSpec, Encoding, Part, Segment, TensorSpec
from squish_core.plugins.registry import Registry

from .codecs.groups import Groups
from .codecs.heads import HEADS, Order, reordered, source_rows
from .codecs.lora import codec_below_lora
from .codecs.stack import member_role
from .codecs.transpose import swapped

if TYPE_CHECKING:
    import numpy as np


TRANSPOSE, INTERLEAVE, DEINTERLEAVE, SCALE = "transpose", "interleave", "deinterleave", "scale"


def transpose(spec: TensorSpec) -> TensorSpec:
    """Swap the last two axes; applied twice, it returns the stored tensor."""

    def view(encoding: Encoding) -> Encoding:
        codec = encoding.codec
        inner = codec.inner if codec.id == TRANSPOSE else None
        return evolve(encoding, codec=inner or CodecSpec(TRANSPOSE, {}, codec))

    encodings = tuple(map(view, spec.encodings))
    return evolve(spec, shape=swapped(spec.shape), encodings=encodings, extras={}, tied_to=None, row_names=None)


def scale(spec: TensorSpec, runs: Sequence[tuple[int, float]]) -> TensorSpec:
    """Multiply runs of rows; a factor of 1 for all leaves the tensor as it is stored."""
    if all(factor == 1 for _, factor in runs):
        return spec
    params = {"runs": tuple(runs)}
    encodings = tuple(evolve(encoding, codec=CodecSpec(SCALE, params, encoding.codec)) for encoding in spec.encodings)
    return evolve(spec, dtype="f32", encodings=encodings, extras={}, tied_to=None, row_names=None)


def interleave(specs: Sequence[TensorSpec], groups: Groups, registry: Registry) -> TensorSpec:
    """Interleave groups of rows; TensorError (code `rows`) for tensors of different codecs."""
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
    """Extract one of several tensors whose groups of rows are interleaved."""
    params = {**groups.params, "number": number}
    encodings = tuple(
        evolve(encoding, codec=CodecSpec(DEINTERLEAVE, params, encoding.codec)) for encoding in spec.encodings
    )
    shape = groups.piece(spec.shape, number)
    return evolve(spec, shape=shape, encodings=encodings, extras={}, tied_to=None, row_names=None)


def member_parts(encodings: Sequence[Encoding]) -> dict[str, Part]:
    """Return the parts of several tensors as parts of one."""
    return {
        member_role(number, role): part
        for number, encoding in enumerate(encodings)
        for role, part in encoding.parts.items()
    }


def merge_error(first: TensorSpec, other: TensorSpec) -> TensorError:
    """Return the error for tensors that cannot be merged."""
    return TensorError(
        "is encoded differently from the tensors to merge it with",
        tensor=other.name,
        code="rows",
        expected=_storage(first),
        found=_storage(other),
        hint="First write a copy in the same format with all of them encoded alike ({option:encode}), or keep the names"
        " ({option:rename=keep}).",
    )


def _are_separated(specs: Sequence[TensorSpec], groups: Groups) -> bool:
    """Return whether tensors are all the pieces of one stored tensor, in order."""
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


def permute(segments: Sequence[Segment], row_bytes: int, order: np.ndarray) -> Sequence[Segment]:
    """Permute rows."""
    if len(segments) == 1:
        return PermutedRows(segments[0].file, segments[0].offset, row_bytes, order)
    return concatenate(cut(segments, row * row_bytes, row_bytes) for row in order.tolist())


def cut(segments: Iterable[Segment], start: int, length: int) -> tuple[Segment, ...]:
    """Cut a byte range out of consecutive segments.

    >>> cut([Segment(0, 100, 4), Segment(0, 200, 4)], 2, 4)
    (Segment(file=0, offset=102, length=2), Segment(file=0, offset=200, length=2))
    """
    pieces = []
    for segment in segments:
        low, high = max(start, 0), min(start + length, segment.length)
        if low < high:
            pieces.append(Segment(segment.file, segment.offset + low, high - low))
        start -= segment.length
    return tuple(pieces)


def concatenate(groups: Iterable[Iterable[Segment]]) -> tuple[Segment, ...]:
    """Concatenate segments, merging adjacent ones.

    >>> concatenate([[Segment(0, 0, 4)], [Segment(0, 4, 4)]])
    (Segment(file=0, offset=0, length=8),)
    """
    merged: list[Segment] = []
    for segment in (segment for group in groups for segment in group):
        last = merged[-1] if merged else None
        if last is not None and (last.file, last.offset + last.length) == (segment.file, segment.offset):
            merged[-1] = Segment(last.file, last.offset, last.length + segment.length)
        else:
            merged.append(segment)
    return tuple(merged)


Shapes = Mapping[str, tuple[str, tuple[int, ...]]]
"""Role -> dtype and shape of a part, as the codec declares them."""

STACK, SLICE = "stack", "slice"
"""Codecs that stack tensors and slice rows on reading."""


class RowViews:
    """Makes views of a file's tensors with sliced, permuted, stacked or concatenated rows.

    A view keeps the encodings whose parts allow the operation. If none does, TensorError (code `rows`).

    Parameters
    ----------
    file
        The file that contains the tensors.
    """

    def __init__(self, file: File) -> None:
        self.file = file

    def reorder(self, spec: TensorSpec, order: Order, columns: bool = False) -> TensorSpec:
        """Put rows or columns in another order; columns move as bytes only where a part is whole blocks of codes."""
        sources = source_rows(order)
        rows = prod(spec.shape[:-1]) if columns else order.rows

        def move(part: Part, sources: np.ndarray) -> Part:
            size = part.nbytes // len(sources) if len(sources) else 0
            data = None if part.data is None else _take(part.data, len(sources), sources)
            segments = permute(part.segments, size, sources) if size else ()
            return evolve(part, segments=segments, data=data, digest=None)

        def view(encoding: Encoding) -> Encoding:
            try:
                _check_movable(spec, encoding)
                if columns:
                    moving, width = self._column_parts(spec, encoding, order)
                    moved = _in_every_row(rows, sources[::width] // width)
                else:
                    moving, moved = self._row_parts(spec, encoding), sources
            except SquishError:  # values and codes can be permuted where parts cannot
                return evolve(encoding, codec=reordered(encoding.codec, order, columns))
            parts = {role: move(part, moved) if role in moving else part for role, part in encoding.parts.items()}
            return evolve(encoding, parts=parts)

        encodings = tuple(map(view, spec.encodings))
        return evolve(spec, encodings=encodings, extras={}, tied_to=None, row_names=None)

    def rows(self, spec: TensorSpec, start: int, stop: int) -> TensorSpec:
        """Slice a range of rows."""
        shape = (stop - start, *spec.shape[1:])
        params = {"start": start, "rows": spec.shape[0], "single": False}

        def view(encoding: Encoding) -> Encoding:
            moving = self._row_parts(spec, encoding)
            parts = {
                role: _slice(part, start, stop) if role in moving else part for role, part in encoding.parts.items()
            }
            return self._check_parts(spec, shape, evolve(encoding, parts=parts))

        return self._sliced(spec, shape, view, params)

    def member(self, spec: TensorSpec, number: int) -> TensorSpec:
        """Extract one tensor of a stack."""
        shape = spec.shape[1:]

        def view(encoding: Encoding) -> Encoding:
            if encoding.codec.id == STACK and encoding.codec.inner is not None:
                roles = self._shapes(evolve(spec, shape=shape), evolve(encoding, codec=encoding.codec.inner), shape)
                parts = {role: encoding.parts[member_role(number, role)] for role in roles}
                return evolve(encoding, codec=encoding.codec.inner, parts=parts)
            parts = {role: _item(part, spec.shape[0], number) for role, part in encoding.parts.items()}
            return self._check_parts(spec, shape, evolve(encoding, parts=parts))

        return self._sliced(spec, shape, view, {"start": number, "rows": spec.shape[0], "single": True})

    def reshape(self, spec: TensorSpec, shape: tuple[int, ...]) -> TensorSpec:
        """Reshape a dense tensor; join the rows of a stack's matrices, transposed ones too, or separate them again."""
        if prod(shape) != spec.elements:
            raise TensorError(
                "has another number of values than its shape in the target",
                tensor=spec.name,
                code=ErrorCode.CONTRADICTION,
                expected=f"{prod(shape)}, as in {list(shape)}",
                found=f"shape {list(spec.shape)}",
            )

        joins = len(spec.shape) == 3 and shape == (spec.shape[0] * spec.shape[1], spec.shape[2])

        def view(encoding: Encoding) -> Encoding:
            codec = encoding.codec
            if codec.id == TRANSPOSE and joins and not codec.params:
                return evolve(encoding, codec=evolve(codec, params={"joined": spec.shape[0]}))
            if codec.id == TRANSPOSE and len(shape) == 3 and codec.params == {"joined": shape[0]}:
                return evolve(encoding, codec=evolve(codec, params={}))
            if codec == DENSE:
                parts = {role: evolve(part, shape=shape) for role, part in encoding.parts.items()}
                return evolve(encoding, parts=parts)
            axes = len(spec.shape) - 1
            if shape[-1:] != spec.shape[-1:] or any(
                part.shape[:axes] != spec.shape[:-1] for part in encoding.parts.values()
            ):
                raise _row_error(spec, encoding, "cannot be reshaped")
            rows = {
                role: evolve(part, shape=(*shape[:-1], *part.shape[axes:])) for role, part in encoding.parts.items()
            }
            return self._check_parts(spec, shape, evolve(encoding, parts=rows))

        return self._view(spec, shape, view)

    def stack(self, specs: Sequence[TensorSpec]) -> TensorSpec:
        """Stack tensors of equal shape and codec along a new first axis.

        If the parts cannot be stacked as bytes, values and codes are stacked on reading.
        """
        shape = (len(specs), *specs[0].shape)
        try:
            return self._merge(specs, shape, lambda part: (len(specs), *part.shape), 0)
        except TensorError:
            if self._differing(specs, 0) is not None:
                raise

        def view(encodings: Sequence[Encoding]) -> Encoding:
            codec = CodecSpec(STACK, {}, encodings[0].codec)
            return evolve(encodings[0], codec=codec, parts=member_parts(encodings))

        encodings = tuple(map(view, zip(*(spec.encodings for spec in specs))))
        return evolve(specs[0], shape=shape, encodings=encodings, extras={}, tied_to=None, row_names=None, attrs={})

    def concatenate(self, specs: Sequence[TensorSpec]) -> TensorSpec:
        """Concatenate tensors of equal codec along the rows."""
        rows = sum(spec.shape[0] for spec in specs)
        for spec in specs:
            for encoding in spec.encodings:
                if self._row_parts(spec, encoding) != set(encoding.parts):
                    raise _row_error(spec, encoding, "has a part that is not stored row by row")
        return self._merge(specs, (rows, *specs[0].shape[1:]), lambda part: (rows, *part.shape[1:]), 1)

    def _merge(
        self,
        specs: Sequence[TensorSpec],
        shape: tuple[int, ...],
        shape_of: Callable[[Part], tuple[int, ...]],
        free: int,
    ) -> TensorSpec:
        """Merge tensors part by part; their first `free` axes may differ in size."""
        first = specs[0]
        if (other := self._differing(specs, free)) is not None:
            raise merge_error(first, other)

        def view(number: int) -> Encoding:
            encodings = [spec.encodings[number] for spec in specs]
            for spec, encoding in zip(specs, encodings):
                _check_movable(spec, encoding)
            parts = {}
            for role, part in encodings[0].parts.items():
                pieces = [encoding.parts[role] for encoding in encodings]
                inline = [piece.data for piece in pieces if piece.data is not None]
                if inline and len(inline) < len(pieces):
                    raise _row_error(
                        first, encodings[0], f"stores its part {role} in the header for some of the tensors only"
                    )
                parts[role] = evolve(
                    part,
                    shape=shape_of(part),
                    segments=concatenate(piece.segments for piece in pieces),
                    data=b"".join(inline) if inline else None,
                    digest=None,
                )
            return self._check_parts(first, shape, evolve(encodings[0], parts=parts))

        views = [view(number) for number in range(len(first.encodings))]
        attrs = first.attrs if all(spec.attrs == first.attrs for spec in specs) else {}
        return evolve(first, shape=shape, encodings=tuple(views), extras={}, tied_to=None, row_names=None, attrs=attrs)

    def _differing(self, specs: Sequence[TensorSpec], free: int) -> TensorSpec | None:
        """Return the first tensor that differs from `specs[0]` in dtype, codecs or the axes after the `free` ones."""
        form = specs[0].dtype, specs[0].shape[free:]
        alike = ((spec.dtype, spec.shape[free:]) == form and self._same_codecs(spec, specs[0]) for spec in specs)
        return next((spec for spec, same in zip(specs, alike) if not same), None)

    def _same_codecs(self, one: TensorSpec, other: TensorSpec) -> bool:
        if len(one.encodings) != len(other.encodings):
            return False
        same = self.file.registry.same_codec
        return all(same(a.codec, b.codec) for a, b in zip(one.encodings, other.encodings))

    def _view(self, spec: TensorSpec, shape: tuple[int, ...], view: Callable[[Encoding], Encoding]) -> TensorSpec:
        views, refusal = [], None
        for encoding in spec.encodings:
            try:
                _check_movable(spec, encoding)
                views.append(view(encoding))
            except SquishError as error:
                refusal = refusal or error
        if refusal is not None and not views:
            raise refusal
        return evolve(spec, shape=shape, encodings=tuple(views), extras={}, tied_to=None, row_names=None)

    def _sliced(
        self, spec: TensorSpec, shape: tuple[int, ...], view: Callable[[Encoding], Encoding], params: Mapping[str, Any]
    ) -> TensorSpec:
        """Return a view of rows; if the parts cannot be sliced, the codec `slice` reads values and codes."""
        try:
            return self._view(spec, shape, view)
        except SquishError:
            sliced = [
                evolve(encoding, codec=CodecSpec(SLICE, dict(params), encoding.codec)) for encoding in spec.encodings
            ]
            bound = [self.file.registry.codec(encoding.codec) for encoding in sliced]
            narrow = evolve(spec, shape=shape)
            if not all(_is_readable(codec, narrow) for codec in bound):
                raise
        return evolve(narrow, encodings=tuple(sliced), extras={}, tied_to=None, row_names=None)

    def _row_parts(self, spec: TensorSpec, encoding: Encoding) -> set[str]:
        """Return the parts with one row per row of the tensor; other parts apply to all rows.

        Their size doubles if the codec declares them for twice the rows.
        """
        if encoding.codec.id == HEADS:
            raise _row_error(spec, encoding, "reads them in another order than they are stored")
        rows = spec.shape[0]
        single = self._shapes(spec, encoding, spec.shape)
        double = self._shapes(spec, encoding, (2 * rows, *spec.shape[1:]))
        roles = {role for role, form in single.items() if double.get(role) != form}
        for role in roles:
            dtype, shape = single[role]
            if shape[:1] != (rows,) or double.get(role) != (dtype, (2 * rows, *shape[1:])):
                raise _row_error(spec, encoding, f"does not store its part {role} row by row")
        return roles

    def _column_parts(self, spec: TensorSpec, encoding: Encoding, order: Order) -> tuple[set[str], int]:
        """Return the parts that have pieces for equal numbers of columns, which move together, and that number.

        Other parts apply to all columns.
        """
        width, axis = gcd(*order.parts), len(spec.shape) - 1
        pieces = order.rows // width
        whole = self._shapes(spec, encoding, spec.shape)
        single = self._shapes(spec, encoding, (*spec.shape[:-1], width))
        roles = {role for role, form in whole.items() if single.get(role) != form}
        for role in roles:
            (dtype, shape), (kind, piece) = whole[role], single.get(role, ("", ()))
            many = (*spec.shape[:-1], *(pieces * size for size in piece[axis : axis + 1]), *piece[axis + 1 :])
            is_whole = encoding.parts[role].nbytes % (prod(spec.shape[:-1]) * pieces) == 0
            if (dtype, shape) != (kind, many) or order.first or not is_whole:
                raise _row_error(spec, encoding, f"does not store its part {role} in pieces of {width} columns")
        return roles, width

    def _check_parts(self, spec: TensorSpec, shape: tuple[int, ...], encoding: Encoding) -> Encoding:
        """Return the encoding if its parts match the codec's declaration for this shape."""
        parts = {role: (part.dtype, part.shape) for role, part in encoding.parts.items()}
        if self._shapes(spec, encoding, shape) != parts:
            raise _row_error(spec, encoding, "stores these rows in parts of other shapes")
        return encoding

    def _shapes(self, spec: TensorSpec, encoding: Encoding, shape: tuple[int, ...]) -> Shapes:
        with guarded(CodecError, "declaring parts", file=self.file.name, tensor=spec.name):
            codec = self.file.registry.codec(encoding.codec)
            return codec.parts(evolve(spec, shape=shape))


def _is_readable(codec: Codec, spec: TensorSpec) -> bool:
    """Return whether a slice begins and ends on block boundaries."""
    try:
        codec.grain(spec)
    except SquishError:
        return False
    return True


def column_reason(spec: TensorSpec, registry: Registry) -> str:
    """Return why columns of a tensor, which are read in another order, do not move as bytes; empty if none are."""
    for codec in (encoding.codec for encoding in spec.encodings):
        if codec.id == HEADS and codec.params["columns"] and codec.inner is not None:
            block = registry.codec(codec.inner).grain(spec)[-1]
            blocks = f"blocks of {block} columns" if block else "blocks that cannot be moved"
            return f"its heads of {gcd(*codec.params['parts'])} columns move as whole blocks, and it has {blocks}"
    return ""


def _check_movable(spec: TensorSpec, encoding: Encoding) -> None:
    """Raise TensorError unless the bytes of the parts are those of the values, or of their codes."""
    if codec_below_lora(encoding.codec) is not None:
        raise _row_error(spec, encoding, "adds an adapter to its values")
    if encoding.filtered:
        raise _row_error(spec, encoding, "is compressed")
    for part in encoding.parts.values():
        if part.stored != part.nbytes:
            raise _row_error(spec, encoding, "has a stored size that does not match its shape")


def _slice(part: Part, start: int, stop: int) -> Part:
    row = part.nbytes // part.shape[0] if part.shape[0] else 0
    data = None if part.data is None else bytes(part.data)[start * row : stop * row]
    segments = part.segments
    if isinstance(segments, PermutedRows) and segments.row_bytes == row:
        segments = PermutedRows(segments.file, segments.offset, row, segments.order[start:stop])
    else:
        segments = cut(segments, start * row, (stop - start) * row)
    return evolve(part, shape=(stop - start, *part.shape[1:]), segments=segments, data=data, digest=None)


def _item(part: Part, count: int, number: int) -> Part:
    size = dtypes.nbytes(part.dtype, part.shape[1:])
    data = None if part.data is None else bytes(part.data)[number * size : (number + 1) * size]
    if part.shape[:1] != (count,) or size * count != part.nbytes:
        return part  # `_check_parts` decides whether all tensors of the stack share it
    return evolve(part, shape=part.shape[1:], segments=cut(part.segments, number * size, size), data=data, digest=None)


def _in_every_row(rows: int, sources: np.ndarray) -> np.ndarray:
    """Source of each piece of a matrix, from those of the pieces of one row."""
    import numpy as np

    return (np.arange(rows)[:, None] * len(sources) + sources).reshape(-1)


def _take(data: bytes | memoryview, rows: int, order: np.ndarray) -> bytes:
    import numpy as np

    return np.frombuffer(data, np.uint8).reshape(rows, -1)[order].tobytes()


def _row_error(spec: TensorSpec, encoding: Encoding, why: str) -> TensorError:
    changed = codec_below_lora(encoding.codec)
    return TensorError(
        f"its rows cannot be rearranged: {encoding.codec.id} {why}",
        tensor=spec.name,
        code="rows",
        found=str(changed or encoding.codec),
        hint="Decode it with {option:encode=f16}, or keep the names ({option:rename=keep})."
        if changed is None
        else "First merge the adapter in the format of the model, then convert the result.",
    )
