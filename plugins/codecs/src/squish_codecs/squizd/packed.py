"""INT4 and INT2 blocks: the affine codec over the flattened tensor, with scales and biases in table entries (P3)."""

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
    Params,
    PartArray,
    Parts,
    Region,
    TensorSpec,
)

from ..affine.codec import Affine

_FORMS: dict[str, Mapping[str, Any]] = {
    "squizd.int4": {"bits": 4, "axis": "flat", "signed": True, "offset": "bias"},
    "squizd.int2": {"bits": 2, "axis": "flat", "offset": "bias"},
}
_ENTRIES = 1 << 16
"""Table entries per read."""


class Packed(Codec):
    """`w = scale * q + zero` in f32, with one pair per `group_size` flattened elements (default: the whole tensor).

    Parts: `codes` u8, and `table` u32 (pairs, 4): the stored entries (id, scale, zero). The encoder supports the affine
    codec's `search` and `scale_dtype`: pairs representable in f16 or bf16 can be repacked into formats with unsigned
    codes, whose biases are 8 scales lower.
    """

    encoder_only_params = ("search", "scale_dtype")
    unsliced_parts = ("table",)  # one entry may cover all rows
    affine = Affine()

    def scheme(self, params: Params) -> dict[str, Any]:
        """Return the equivalent affine parameters."""
        return {**_FORMS[self.id], "group_size": params.get("group_size", 0)}

    def parts(self, spec: TensorSpec, params: Params) -> dict[str, tuple[str, tuple[int, ...]]]:
        layouts = self.affine.parts(spec, self.scheme(params))
        pairs = layouts["scale"][1][0] if "group_size" in params else 1
        return {"codes": layouts["data"], "table": ("u32", (pairs, 4))}

    def grain(self, spec: TensorSpec, params: Params) -> tuple[int | None, ...]:
        return self.affine.grain(spec, self.scheme(params))

    def encode_grain(self, spec: TensorSpec, params: Params) -> tuple[int | None, ...]:
        return self.affine.encode_grain(spec, self.scheme(params))

    def decode(self, parts: Parts, spec: TensorSpec, params: Params, *, region: Region, out: np.ndarray) -> None:
        self.affine.decode(_columns(parts), spec, self.scheme(params), region=region, out=out)

    def check_parts(self, parts: Parts, spec: TensorSpec, params: Params) -> None:
        columns = _columns(parts)
        for start in range(0, parts["table"].shape[0], _ENTRIES):
            for role in ("scale", "offset"):
                columns[role][start : start + _ENTRIES]

    def encode(
        self, panel: np.ndarray, params: Params, *, activations: np.ndarray | None = None
    ) -> dict[str, np.ndarray]:
        parts = self.affine.encode(panel, self._encoding(params), activations=activations)
        return {"codes": parts["data"], "table": _table(parts)}

    def params_for(self, spec: TensorSpec, params: Params) -> Params:
        size = params.get("group_size", 64)
        if set(params) - {"group_size", *self.encoder_only_params} or type(size) is not int or size < 1:
            raise CodecError(
                f"{self.id} accepts group_size (1 or more), {' and '.join(self.encoder_only_params)}",
                code=ErrorCode.PARAMS,
                found=", ".join(f"{key}={value}" for key, value in params.items()),
            )  # fmt: skip
        elements = max(spec.elements, 1)
        size = -(-elements // -(-elements // size))  # readers derive the size from the number of pairs
        params = {**params, "group_size": size}
        self.affine.params_for(spec, self._encoding(params))
        return params

    def needs_activations(self, params: Params) -> bool:
        return params.get("search") == "activations"

    def code_layout(self, spec: TensorSpec, params: Params) -> CodeLayout | None:
        return self.affine.code_layout(spec, self.scheme(params))

    def codes(self, parts: Parts, spec: TensorSpec, params: Params, region: Region) -> Codes | None:
        return self.affine.codes(_columns(parts), spec, self.scheme(params), region)

    def from_codes(
        self, codes: Codes, spec: TensorSpec, params: Params
    ) -> tuple[dict[str, np.ndarray], Exactness] | None:
        repacked = self.affine.from_codes(codes, spec, self.scheme(params))
        if repacked is None:
            return None
        table = _table(repacked[0])
        if not np.isfinite(table[:, 2:].view(np.float32)).all():
            raise CodecError(
                "non-finite scale or zero point; a scale table only stores finite numbers [P3]",
                code=ErrorCode.RANGE,
                hint="The source is damaged, or was quantized from non-finite values.",
            )  # fmt: skip
        return {"codes": repacked[0]["data"], "table": table}, repacked[1]

    def _encoding(self, params: Params) -> dict[str, Any]:
        return self.scheme(params) | {name: params[name] for name in self.encoder_only_params if name in params}


class SquizdInt4(Packed):
    """Two's complement nibbles, low nibble first."""

    id = "squizd.int4"


class SquizdInt2(Packed):
    """Unsigned 2-bit codes, least significant first."""

    id = "squizd.int2"


class _Column:
    """One f32 column of the table entries: scales or zeros."""

    def __init__(self, table: PartArray, column: int) -> None:
        self._table, self._column = table, column
        self.shape, self.dtype = table.shape[:1], np.dtype("<f4")

    def __getitem__(self, key: Any) -> np.ndarray:
        rows = self._table[key]
        if rows.ndim > 1 and len(rows) and (rows[:, :2] != rows[0, :2]).any():
            raise CodecError("entries of another tensor between its scales [P3]", part="table", code="P3")
        values = np.ascontiguousarray(rows[..., self._column]).view(self.dtype)
        if not np.isfinite(values).all():
            raise CodecError("a scale or zero is not finite [P3]", part="table", code="P3")
        return values

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self[:], dtype=dtype)


def _columns(parts: Parts) -> Parts:
    return {"data": parts["codes"], "scale": _Column(parts["table"], 2), "offset": _Column(parts["table"], 3)}


def _table(parts: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return table entries; the container sets their ids."""
    table = np.zeros((len(parts["scale"]), 4), np.uint32)
    for column, role in ((2, "scale"), (3, "offset")):
        table[:, column] = parts[role].astype(np.float32).view(np.uint32)
    return table
