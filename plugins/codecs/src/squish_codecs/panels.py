"""4-bit codes in panels of 16 rows, so that compiled kernels need no horizontal sums."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from squish_core.api import (
    Codec,
    CodecError,
    CodeLayout,
    Codes,
    ErrorCode,
    Exactness,
    Parts,
    Region,
    TensorSpec,
    dtypes,
    full,
)

from .affine import decode, repack
from .affine.layout import affine_layout
from .affine.scheme import Scheme, Shape
from .checks import refuse

Array = np.ndarray
ROWS = 16
_NAMES = ("group_size", "offset", "zero", "signed", "scale_dtype", "offset_dtype")
_FLOATS = ("f32", "f16", "bf16")


class Panels(Codec):
    """4-bit `affine`, `(q - zero) * scale` or `q * scale + offset`, with 16 rows interleaved.

    Leading axes are rows; 16 rows are a panel, the last one zero-padded. Parts: `data`, u8 [panels, 8 * columns];
    `scale` and `offset` [panels, groups per row, 16]. Parameters:

    group_size     required   columns per scale, a multiple of 32 that divides the row
    offset         none       none or bias
    zero           0          -128 to 128, without a bias
    signed         false      codes are -8 to 7, stored as 0 to 15
    scale_dtype    f32        f32 f16 bf16
    offset_dtype   scale's    f32 f16 bf16

    Source: docs/codecs/panels.md; native/panels.h of squish-cpu.
    """

    def bind(self) -> None:
        self.scheme = panel_scheme(self.params)  # the equivalent `affine` scheme

    def parts(self, spec: TensorSpec) -> dict[str, tuple[str, Shape]]:
        scheme = self.scheme
        parts = scheme.parts(spec.shape)
        panels, columns = -(-dtypes.count(spec.shape[:-1]) // ROWS), spec.shape[-1]
        cells = (panels, columns // scheme.group_size, ROWS)
        return {
            role: (dtype, (panels, columns * ROWS // 2) if role == "data" else cells)
            for role, (dtype, _) in parts.items()
        }

    def grain(self, spec: TensorSpec) -> tuple[int | None, ...]:
        group = self.scheme.group_size
        if len(spec.shape) < 2:
            return (group,)
        aligned = len(spec.shape) == 2 or spec.shape[-2] % ROWS == 0
        return (*(1 for _ in spec.shape[:-2]), ROWS if aligned else 1, group)

    def decode(self, parts: Parts, spec: TensorSpec, *, region: Region, out: Array) -> None:
        scheme = self.scheme
        decode.decode_affine(scheme, _upright(scheme, parts, spec.shape, region), out.shape, full(out.shape), out)

    def code_layout(self, spec: TensorSpec) -> CodeLayout | None:
        return affine_layout(self.scheme, spec.shape)

    def codes(self, parts: Parts, spec: TensorSpec, region: Region) -> Codes | None:
        scheme, shape = self.scheme, tuple(part.stop - part.start for part in region)
        return repack.affine_codes(scheme, _upright(scheme, parts, spec.shape, region), shape, full(shape))

    def from_codes(self, codes: Codes, spec: TensorSpec) -> tuple[dict[str, Array], Exactness] | None:
        scheme = self.scheme
        parts = repack.affine_parts(scheme, codes)
        if parts is None:
            return None
        return {role: _side_by_side(scheme, role, part) for role, part in parts.items()}, Exactness("values", "f32")

    def holds(self, codes: Codes, spec: TensorSpec) -> Exactness | None:
        return Exactness("values", "f32") if repack.affine_holds(self.scheme, codes) else None


def panel_scheme(params: Mapping[str, Any]) -> Scheme:
    """Return the equivalent `affine` scheme.

    Parameters
    ----------
    params : mapping
        Parameters of `panels`.

    Returns
    -------
    Scheme

    Raises
    ------
    CodecError
        `params` if they are invalid.

    Examples
    --------
    >>> scheme = panel_scheme({"group_size": 64})
    >>> scheme.bits, scheme.signed, scheme.group_size
    (4, False, 64)
    >>> panel_scheme({"group_size": 48})
    Traceback (most recent call last):
    ...
    squish_core.errors.CodecError: ...
    """
    if unknown := [name for name in params if name not in _NAMES]:
        raise CodecError(
            f"panels has no parameter {unknown[0]!r}",
            expected=", ".join(_NAMES),
            found=", ".join(unknown),
            code=ErrorCode.PARAMS,
        )
    scheme = Scheme.of({"bits": 4, "signed": False, **params})
    rules = (
        (scheme.group_size > 0 and scheme.group_size % 32 == 0, "group_size", "a multiple of 32"),
        (scheme.offset != "zero_point", "offset", "none or bias"),
        (-128 <= scheme.zero <= 128, "zero", "-128 to 128"),
        (scheme.scale_dtype in _FLOATS, "scale_dtype", " or ".join(_FLOATS)),
        (scheme.offset == "none" or scheme.offset_dtype in _FLOATS, "offset_dtype", " or ".join(_FLOATS)),
    )
    for holds, name, expected in rules:
        if not holds:
            raise refuse(name, expected, getattr(scheme, name))
    return scheme


def _upright(scheme: Scheme, parts: Parts, shape: Shape, region: Region) -> Parts:
    """Return the `affine` parts for a group-aligned region."""
    columns, group = region[-1], scheme.group_size
    cells = slice(columns.start // group, columns.stop // group)
    spans = dict.fromkeys(parts, cells) | {"data": slice(columns.start * ROWS // 2, columns.stop * ROWS // 2)}
    sizes = tuple(part.stop - part.start for part in region[:-1])
    upright: dict[str, Any] = {}
    for role, span in spans.items():
        rows = [
            _in_rows(scheme, role, parts[role][start // ROWS : -(-stop // ROWS), span])[start % ROWS :][: stop - start]
            for start, stop in decode.runs(shape[:-1], region[:-1])
        ]
        joined = rows[0] if len(rows) == 1 else np.concatenate(rows)
        upright[role] = joined.reshape(*sizes, joined.shape[-1])
    return upright


def _in_rows(scheme: Scheme, role: str, part: Array) -> Array:
    """Convert panels to rows."""
    if role != "data":
        return np.swapaxes(part, 1, 2).reshape(-1, part.shape[1])
    panels, count = part.shape[0], part.shape[1] // (4 * ROWS)
    lanes = np.swapaxes(np.ascontiguousarray(part).view("<u4").reshape(panels, count, ROWS), 1, 2)
    words = np.ascontiguousarray(lanes).reshape(panels * ROWS, count)
    return _flip_sign(scheme, _swap_codes(_swap_codes(words, 4, 0x00F000F0), 8, 0x0000FF00)).view(np.uint8)


def _side_by_side(scheme: Scheme, role: str, part: Array) -> Array:
    """Convert rows to panels."""
    part = part.reshape(-1, part.shape[-1])
    if role == "data":
        words = _flip_sign(scheme, np.ascontiguousarray(part).view("<u4"))
        part = _swap_codes(_swap_codes(words, 8, 0x0000FF00), 4, 0x00F000F0)
    panels = -(-len(part) // ROWS)
    padded = np.concatenate([part, np.zeros((panels * ROWS - len(part), part.shape[1]), part.dtype)])
    panel_data = np.ascontiguousarray(np.swapaxes(padded.reshape(panels, ROWS, part.shape[1]), 1, 2))
    return panel_data.view(np.uint8).reshape(panels, 4 * ROWS * part.shape[1]) if role == "data" else panel_data


def _swap_codes(words: Array, by: int, low: int) -> Array:
    """Swap the codes at the bits of `low` with those `by` bits above, in words of eight codes.

    Rows have codes in order, panels interleave codes 0-3 with 4-7: two swaps convert either way.
    """
    differ = (words ^ words >> np.uint32(by)) & np.uint32(low)
    return np.asarray(words ^ differ ^ differ << np.uint32(by))


def _flip_sign(scheme: Scheme, words: Array) -> Array:
    return words ^ np.uint32(0x88888888) if scheme.signed else words
