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
    encoder_type: type[Affine] = Affine
    """The codec that encodes."""

    def bind(self) -> None:
        self.affine = Affine.from_params(_affine(self.id, self.params))  # the equivalent codec
        self.encoder = self.encoder_type.from_params(_affine(self.id, self.params, *self.encoder_only_params))

    def parts(self, spec: TensorSpec) -> dict[str, tuple[str, tuple[int, ...]]]:
        layouts = self.affine.parts(spec)
        pairs = layouts["scale"][1][0] if "group_size" in self.params else 1
        return {"codes": layouts["data"], "table": ("u32", (pairs, 4))}

    def grain(self, spec: TensorSpec) -> tuple[int | None, ...]:
        return self.affine.grain(spec)

    def encode_grain(self, spec: TensorSpec) -> tuple[int | None, ...]:
        return self.affine.encode_grain(spec)

    def decode(self, parts: Parts, spec: TensorSpec, *, region: Region, out: np.ndarray) -> None:
        self.affine.decode(_columns(parts), spec, region=region, out=out)

    def check_parts(self, parts: Parts, spec: TensorSpec) -> None:
        columns = _columns(parts)
        for start in range(0, parts["table"].shape[0], _ENTRIES):
            for role in ("scale", "offset"):
                columns[role][start : start + _ENTRIES]

    def encode(self, panel: np.ndarray, *, activations: np.ndarray | None = None) -> dict[str, np.ndarray]:
        parts = self.encoder.encode(panel, activations=activations)
        return {"codes": parts["data"], "table": _table(parts)}

    @classmethod
    def params_for(cls, spec: TensorSpec, options: Params) -> Params:
        size = options.get("group_size", 64)
        if set(options) - {"group_size", *cls.encoder_only_params} or type(size) is not int or size < 1:
            raise CodecError(
                f"{cls.id} accepts group_size (1 or more), {' and '.join(cls.encoder_only_params)}",
                code=ErrorCode.PARAMS,
                found=", ".join(f"{key}={value}" for key, value in options.items()),
            )
        elements = max(spec.elements, 1)
        size = -(-elements // -(-elements // size))  # readers derive the size from the number of pairs
        options = {**options, "group_size": size}
        Affine.params_for(spec, _affine(cls.id, options, *cls.encoder_only_params))
        return options

    @classmethod
    def needs_activations(cls, options: Params) -> bool:
        return options.get("search") == "activations"

    def code_layout(self, spec: TensorSpec) -> CodeLayout | None:
        return self.affine.code_layout(spec)

    def codes(self, parts: Parts, spec: TensorSpec, region: Region) -> Codes | None:
        return self.affine.codes(_columns(parts), spec, region)

    def from_codes(self, codes: Codes, spec: TensorSpec) -> tuple[dict[str, np.ndarray], Exactness] | None:
        repacked = self.affine.from_codes(codes, spec)
        if repacked is None:
            return None
        table = _table(repacked[0])
        if not np.isfinite(table[:, 2:].view(np.float32)).all():
            raise CodecError(
                "non-finite scale or zero point; a scale table only stores finite numbers [P3]",
                code=ErrorCode.RANGE,
                hint="The source is damaged, or was quantized from non-finite values.",
            )
        return {"codes": repacked[0]["data"], "table": table}, repacked[1]


def _affine(name: str, params: Params, *more: str) -> dict[str, Any]:
    """Return the equivalent affine parameters, with `more` of the codec's own."""
    own = {key: params[key] for key in more if key in params}
    return {**_FORMS[name], "group_size": params.get("group_size", 0), **own}


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
