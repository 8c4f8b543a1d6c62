"""INT4 and INT2 blocks: codes packed over the flat row-major order, pairs of scale and zero beside ids (P3)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from math import gcd, lcm, prod
from typing import ClassVar

import numpy as np

from squish_core.api import SAME_BYTES, Codec, CodecError, Codes, Exactness, Params, Parts, Region, TensorSpec

SEARCHED = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7)


class Packed(Codec):
    """`w = scale * q + zero` in f32; `group_size` elements of the flat order share a pair (absent: the whole tensor).

    Parts: `codes` u8, and `table` u32 (pairs, 4): the entries as the file has them (id, scale, zero).
    """

    bits: ClassVar[int]
    low: ClassVar[int]

    def parts(self, spec: TensorSpec, params: Params) -> dict[str, tuple[str, tuple[int, ...]]]:
        pairs = -(-spec.elements // params["group_size"]) if "group_size" in params else 1
        return {"codes": ("u8", (-(-spec.elements * self.bits // 8),)), "table": ("u32", (pairs, 4))}

    def grain(self, spec: TensorSpec, params: Params) -> tuple[int | None, ...]:
        step = lcm(params.get("group_size", 1), 8 // self.bits)
        inner = prod(spec.shape[1:]) or 1
        return (step // gcd(step, inner), *(None,) * (len(spec.shape) - 1)) if spec.shape else ()

    def decode(self, parts: Parts, spec: TensorSpec, params: Params, *, region: Region, out: np.ndarray) -> None:
        start, stop = _flat(region, spec)
        length = params.get("group_size", max(spec.elements, 1))
        scale, zero = self._pairs(parts, start // length, -(-stop // length))
        flat = out.reshape(-1)
        codes = parts["codes"][start * self.bits // 8 : -(-stop * self.bits // 8)]
        flat[...] = np.take(_values(self.bits, self.low), codes, axis=0).reshape(-1)[: stop - start]
        whole = (stop - start) // length
        body, tail = flat[: whole * length].reshape(whole, length), flat[whole * length :]
        body *= scale[:whole, None]
        body += zero[:whole, None]
        if tail.size:
            tail *= scale[whole]
            tail += zero[whole]

    def encode(
        self, panel: np.ndarray, params: Params, *, stats: Mapping[str, np.ndarray] | None = None
    ) -> dict[str, np.ndarray]:
        length, flat = params["group_size"], panel.reshape(-1)
        if not np.isfinite(flat).all():
            raise CodecError("a value is not finite", code="values", hint="Keep the tensor as it is.")
        whole = len(flat) // length
        pieces = [flat[: whole * length].reshape(whole, length), flat[whole * length :].reshape(1, -1)]
        made = [self._quantised(piece, params.get("search")) for piece in pieces if piece.size]
        codes = np.concatenate([codes.reshape(-1) for codes, _, _ in made]) if made else np.empty(0, np.int8)
        table = np.zeros((sum(len(scale) for _, scale, _ in made), 4), np.uint32)
        if made:
            table[:, 2] = np.concatenate([scale for _, scale, _ in made]).view(np.uint32)
            table[:, 3] = np.concatenate([zero for _, _, zero in made]).view(np.uint32)
        return {"codes": self._pack(codes), "table": table}

    def params_for(self, spec: TensorSpec, params: Params) -> Params:
        unknown = set(params) - {"group_size", "search"}
        size, search = params.get("group_size", 64), params.get("search")
        if unknown or type(size) is not int or size < 1 or search not in (None, "mse"):
            raise CodecError(
                f"{self.id} takes group_size (1 or more) and search=mse",
                found=", ".join(f"{key}={value}" for key, value in params.items()), code="params",
            )  # fmt: skip
        elements = max(spec.elements, 1)
        size = -(-elements // -(-elements // size))  # what a reader derives from the number of pairs
        return {"group_size": size, **({"search": search} if search else {})}

    def codes(self, parts: Parts, spec: TensorSpec, params: Params, region: Region) -> Codes | None:
        columns = spec.shape[-1] if spec.shape else 1
        start, stop = _flat(region, spec)
        shape = tuple(part.stop - part.start for part in region)
        length = params.get("group_size", max(spec.elements, 1))
        if not shape or not columns or not spec.elements:
            return None
        if "group_size" not in params:
            group, grid = shape, (1,) * len(shape)
        elif columns % length == 0:
            group, grid = (*(1,) * (len(shape) - 1), length), (*shape[:-1], columns // length)
        elif len(shape) == 2 and length % columns == 0:
            group, grid = (length // columns, columns), (-(-(stop - start) // length), 1)
        else:
            return None
        scale, zero = self._pairs(parts, start // length, -(-stop // length))
        packed = parts["codes"][start * self.bits // 8 : -(-stop * self.bits // 8)]
        values = np.take(_values(self.bits, self.low), packed, axis=0).reshape(-1)[: stop - start]
        values = values.astype(np.int8 if self.low < 0 else np.uint8).reshape(shape)
        return Codes(
            bits=self.bits, signed=self.low < 0, values=values, group=group,
            scale=scale.reshape(grid), offset=zero.reshape(grid), offset_kind="bias",
        )  # fmt: skip

    def from_codes(
        self, codes: Codes, spec: TensorSpec, params: Params
    ) -> tuple[dict[str, np.ndarray], Exactness] | None:
        length, columns = params.get("group_size"), spec.shape[-1] if spec.shape else 0
        whole = length is None and codes.group == spec.shape
        rows = len(spec.shape) == 2 and length is not None and codes.group == (length // max(columns, 1), columns)
        along = length is not None and set(codes.group[:-1]) <= {1} and not columns % codes.group[-1]
        if not (whole or rows or (along and length and not codes.group[-1] % length)):
            return None
        shift = 0 if codes.signed == (self.low < 0) or codes.bits < self.bits else -self.low if self.low else None
        if codes.bits > self.bits or shift is None or (codes.signed and not self.low):
            return None
        scale = codes.scale.astype(np.float64).reshape(-1)
        offset = np.zeros_like(scale) if codes.offset is None else codes.offset.astype(np.float64).reshape(-1)
        zero = (-offset * scale if codes.offset_kind == "zero_point" else offset) + shift * scale
        if along and length:
            scale, zero = (np.repeat(column, codes.group[-1] // length) for column in (scale, zero))
        table = np.zeros((len(scale), 4), np.uint32)
        table[:, 2], table[:, 3] = (column.astype(np.float32).view(np.uint32) for column in (scale, zero))
        if not np.isfinite(table[:, 2:].view(np.float32)).all():
            return None
        made = {"codes": self._pack(codes.values.reshape(-1).astype(np.int16) - shift), "table": table}
        same = not shift and codes.offset_kind == "bias" and codes.bits == self.bits
        if (
            same
            and np.array_equal(table[:, 2].view(np.float32), scale)
            and np.array_equal(table[:, 3].view(np.float32), zero)
        ):
            return made, SAME_BYTES
        largest = float((np.abs(scale) * (1 << self.bits) + np.abs(zero)).max(initial=0))
        return made, Exactness("bounded", error=largest * 2.0**-22)

    def _pairs(self, parts: Parts, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
        rows = np.ascontiguousarray(parts["table"][first:last])
        if len(rows) and (rows[:, :2] != rows[0, :2]).any():
            raise CodecError("entries of another tensor stand between its scales [P3]", part="table", code="P3")
        pairs = rows[:, 2:].copy().view(np.float32)
        if not np.isfinite(pairs).all():
            raise CodecError("a scale or zero is not finite [P3]", part="table", code="P3")
        return pairs[:, 0], pairs[:, 1]

    def _quantised(self, groups: np.ndarray, search: str | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Codes, scales and zeros of rows; with `search`, the range is narrowed where that lowers the squared error."""
        best = self._rounded(groups, 1.0)
        for share in SEARCHED[1:] if search else ():
            other = self._rounded(groups, share)
            better = _error(groups, other) < _error(groups, best)
            best = tuple(
                np.where(better[:, None] if one.ndim == 2 else better, two, one) for one, two in zip(best, other)
            )  # type: ignore[assignment]
        return best

    def _rounded(self, groups: np.ndarray, share: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        most = (1 << self.bits) - 1
        low, high = (edge.astype(np.float64) for edge in (groups.min(axis=1), groups.max(axis=1)))
        middle, half = (low + high) / 2, (high - low) / 2 * share
        scale = (2 * half / most).astype(np.float32)
        zero = (middle - half - self.low * 2 * half / most).astype(np.float32)
        if not (np.isfinite(scale).all() and np.isfinite(zero).all()):
            raise CodecError("a group's range does not fit f32", code="values", hint="Keep the tensor as it is.")
        step = np.where(scale == 0, np.float32(1), scale)
        codes = np.rint((groups - zero[:, None]) / step[:, None])
        codes = np.clip(codes, self.low, self.low + most).astype(np.int8)
        codes[scale == 0] = 0
        return codes, scale, zero

    def _pack(self, codes: np.ndarray) -> np.ndarray:
        per_byte = 8 // self.bits
        flat = np.zeros(-(-len(codes) // per_byte) * per_byte, np.uint8)
        flat[: len(codes)] = codes.astype(np.uint8) & (1 << self.bits) - 1
        packed = np.zeros(len(flat) // per_byte, np.uint8)
        for place in range(per_byte):
            packed |= flat[place::per_byte] << (self.bits * place)
        return packed


class Int4(Packed):
    """Two's complement nibbles, low one first."""

    bits, low = 4, -8


class Int2(Packed):
    """Unsigned crumbs, least significant first."""

    bits, low = 2, 0


@cache
def _values(bits: int, low: int) -> np.ndarray:
    """The codes of every byte, as f32."""
    codes = np.arange(256)[:, None] >> np.arange(0, 8, bits) & (1 << bits) - 1
    signed = codes - (codes >= -low) * (1 << bits) if low else codes
    return signed.astype(np.float32)


def _flat(region: Region, spec: TensorSpec) -> tuple[int, int]:
    """A region of whole rows as a range of the flat order."""
    if not spec.shape:
        return 0, 1
    inner = prod(spec.shape[1:])
    return region[0].start * inner, region[0].stop * inner


def _error(groups: np.ndarray, made: tuple[np.ndarray, np.ndarray, np.ndarray]) -> np.ndarray:
    codes, scale, zero = made
    return np.square(groups - (codes * scale[:, None] + zero[:, None])).sum(axis=1)
