"""INT4 and INT2 blocks: the shared affine codec over flat order, its scales and biases inside table entries (P3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from squish_codecs.affine import Affine

from squish_core.api import Codec, CodecError, Codes, Exactness, Params, PartArray, Parts, Region, TensorSpec

SEARCHED = (0.95, 0.9, 0.85, 0.8, 0.75, 0.7)
"""Shares of a group's range that `search=mse` tries; the full range is the first candidate."""


class Packed(Codec):
    """`w = scale * q + zero` in f32; `group_size` elements of the flat order share a pair (absent: the whole tensor).

    Parts: `codes` u8, and `table` u32 (pairs, 4): the entries as the file has them (id, scale, zero). Encoding takes
    `search=mse` too: a narrower range where that lowers a group's squared error.
    """

    scanned = ("table",)  # one entry may be for all rows
    bits: ClassVar[int]
    signed: ClassVar[bool]
    affine = Affine()

    def scheme(self, params: Params) -> dict[str, Any]:
        """The same in the affine codec's terms."""
        return {
            "bits": self.bits, "axis": "flat", "offset": "bias", "signed": self.signed,
            "group_size": params.get("group_size", 0),
        }  # fmt: skip

    def parts(self, spec: TensorSpec, params: Params) -> dict[str, tuple[str, tuple[int, ...]]]:
        declared = self.affine.parts(spec, self.scheme(params))
        pairs = declared["scale"][1][0] if "group_size" in params else 1
        return {"codes": declared["data"], "table": ("u32", (pairs, 4))}

    def grain(self, spec: TensorSpec, params: Params) -> tuple[int | None, ...]:
        return self.affine.grain(spec, self.scheme(params))

    def encode_grain(self, spec: TensorSpec, params: Params) -> tuple[int | None, ...]:
        return self.affine.encode_grain(spec, self.scheme(params))

    def decode(self, parts: Parts, spec: TensorSpec, params: Params, *, region: Region, out: np.ndarray) -> None:
        self.affine.decode(_columns(parts), spec, self.scheme(params), region=region, out=out)

    def encode(
        self, panel: np.ndarray, params: Params, *, stats: Mapping[str, np.ndarray] | None = None
    ) -> dict[str, np.ndarray]:
        best = self.affine.encode(panel, self.scheme(params))
        if params.get("search") and panel.size:
            best = self._searched(panel.reshape(-1), params, best)
        return {"codes": best["data"], "table": _table(best)}

    def params_for(self, spec: TensorSpec, params: Params) -> Params:
        size, search = params.get("group_size", 64), params.get("search")
        if set(params) - {"group_size", "search"} or type(size) is not int or size < 1 or search not in (None, "mse"):
            raise CodecError(
                f"{self.id} takes group_size (1 or more) and search=mse", code="params",
                found=", ".join(f"{key}={value}" for key, value in params.items()),
            )  # fmt: skip
        elements = max(spec.elements, 1)
        size = -(-elements // -(-elements // size))  # what a reader derives from the number of pairs
        return {"group_size": size, **({"search": search} if search else {})}

    def codes(self, parts: Parts, spec: TensorSpec, params: Params, region: Region) -> Codes | None:
        return self.affine.codes(_columns(parts), spec, self.scheme(params), region)

    def from_codes(
        self, codes: Codes, spec: TensorSpec, params: Params
    ) -> tuple[dict[str, np.ndarray], Exactness] | None:
        made = self.affine.from_codes(codes, spec, self.scheme(params))
        return made and ({"codes": made[0]["data"], "table": _table(made[0])}, made[1])

    def _searched(self, flat: np.ndarray, params: Params, best: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """For each group the range, of those tried, that gives the least squared error."""
        size, spec = params["group_size"], TensorSpec(name="", shape=flat.shape, dtype="f32")
        scheme = self.scheme(params)
        groups = np.pad(flat, (0, -len(flat) % size), mode="edge").reshape(-1, size)
        low, high = groups.min(axis=1, keepdims=True), groups.max(axis=1, keepdims=True)
        middle, half = low / 2 + high / 2, high / 2 - low / 2
        least = self._error(best, spec, scheme, size, flat)
        codes = self._unpacked(best)
        for share in SEARCHED:
            narrow = np.clip(groups, middle - half * share, middle + half * share).reshape(-1)[: len(flat)]
            other = self.affine.encode(narrow, scheme)
            error = self._error(other, spec, scheme, size, flat)
            better = error < least
            least = np.where(better, error, least)
            chosen = np.flatnonzero(np.repeat(better, size)[: len(flat)])
            codes[chosen] = self._unpacked(other)[chosen]
            for role in ("scale", "offset"):
                best = {**best, role: np.where(better, other[role], best[role])}
        return {**best, "data": self._packed(codes)}

    def _error(
        self, made: Mapping[str, Any], spec: TensorSpec, scheme: Params, size: int, flat: np.ndarray
    ) -> np.ndarray:
        values = np.empty(flat.shape, np.float32)
        self.affine.decode(made, spec, scheme, region=(slice(0, len(flat)),), out=values)
        squares = np.pad(np.square(values - flat, dtype=np.float64), (0, -len(flat) % size))
        error: np.ndarray = squares.reshape(-1, size).sum(axis=1)
        return error

    def _unpacked(self, made: dict[str, np.ndarray]) -> np.ndarray:
        shifts = np.arange(0, 8, self.bits, dtype=np.uint8)
        codes: np.ndarray = (made["data"][:, None] >> shifts & (1 << self.bits) - 1).reshape(-1)
        return codes

    def _packed(self, codes: np.ndarray) -> np.ndarray:
        shifts = np.arange(0, 8, self.bits, dtype=np.uint8)
        packed: np.ndarray = np.bitwise_or.reduce(codes.reshape(-1, len(shifts)) << shifts, axis=1)
        return packed


class Int4(Packed):
    """Two's complement nibbles, low one first."""

    bits, signed = 4, True


class Int2(Packed):
    """Unsigned crumbs, least significant first."""

    bits, signed = 2, False


class _Column:
    """Scales or zeros out of table entries: a view of one column as f32."""

    def __init__(self, table: PartArray, column: int) -> None:
        self._table, self._column = table, column
        self.shape, self.dtype = table.shape[:1], np.dtype("<f4")

    def __getitem__(self, key: Any) -> np.ndarray:
        rows = self._table[key]
        if rows.ndim > 1 and len(rows) and (rows[:, :2] != rows[0, :2]).any():
            raise CodecError("entries of another tensor stand between its scales [P3]", part="table", code="P3")
        values = np.ascontiguousarray(rows[..., self._column]).view(self.dtype)
        if not np.isfinite(values).all():
            raise CodecError("a scale or zero is not finite [P3]", part="table", code="P3")
        return values

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self[:], dtype=dtype)


def _columns(parts: Parts) -> Parts:
    return {"data": parts["codes"], "scale": _Column(parts["table"], 2), "offset": _Column(parts["table"], 3)}


def _table(made: Mapping[str, np.ndarray]) -> np.ndarray:
    """Entries without ids, which are the container's."""
    table = np.zeros((len(made["scale"]), 4), np.uint32)
    table[:, 2], table[:, 3] = made["scale"].view(np.uint32), made["offset"].view(np.uint32)
    return table
