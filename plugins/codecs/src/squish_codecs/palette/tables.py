"""The checked parameters of a palette, and derived shapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from attrs import evolve, frozen

from squish_core.api import CodecError, ErrorCode, Parts, dtypes

from ..affine.scheme import SCALES, Scheme, Shape
from ..checks import choice, integer, refuse
from .fit import FITS

Array = np.ndarray
BOOKS = ("f32", "f16", "bf16", "i8", "u8")

NAMED: dict[str, tuple[float, ...]] = {
    # QLoRA, appendix E.
    "nf4": (
        -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
        -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634,
        0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
    ),
    # Squish's two-bit table.
    "nf2": (-1.5, -0.5, 0.5, 1.5),
}  # fmt: skip


@frozen(kw_only=True)
class Tables:
    """A storage layout of indices, tables and scales; `Palette` documents the parameters."""

    scheme: Scheme
    scaled: bool
    table: str | tuple[float, ...] | None
    codebook_size: int
    codebook_dtype: str
    vector: int
    vector_axis: int
    nested: int
    fit: str

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> Tables:
        """Parse parameters from a file or the command line, with defaults; CodecError if invalid."""
        own = {name: check(name, params[name]) for name, check in _CHECKS.items() if name in params}
        shared = {name: value for name, value in params.items() if name not in _CHECKS}
        if unknown := [name for name in shared if name not in _SHARED]:
            raise CodecError(
                f"palette has no parameter {unknown[0]!r}",
                expected=", ".join((*_SHARED, *_CHECKS)),
                found=", ".join(unknown),
                code=ErrorCode.PARAMS,
                hint="For example palette:bits=4,table=nf4,scale_dtype=f32.",
            )
        scaled = own.pop("scale_dtype", "none")
        dtype = {} if scaled == "none" else {"scale_dtype": scaled}
        tables = cls(
            scheme=Scheme.of({**shared, **dtype, "signed": False}), scaled=scaled != "none", **{**_DEFAULTS, **own}
        )
        tables._check()
        return tables

    def params(self) -> dict[str, Any]:
        """Return the shortest parameters for these tables."""
        shared = {name: value for name, value in self.scheme.params().items() if name in _SHARED}
        if self.scaled:
            shared["scale_dtype"] = self.scheme.scale_dtype
        own = {name: getattr(self, name) for name, default in _DEFAULTS.items() if getattr(self, name) != default}
        return {**shared, **{name: list(value) if isinstance(value, tuple) else value for name, value in own.items()}}

    @property
    def entries(self) -> Array:
        """The entries of a constant table, f32."""
        return np.array(NAMED[self.table] if isinstance(self.table, str) else self.table, np.float32)

    @property
    def constant(self) -> Array:
        """A constant table, f32, zero-padded to all codes."""
        size = 1 << self.scheme.bits
        return np.append(self.entries, np.zeros(size, np.float32))[:size]

    @property
    def indices(self) -> Scheme:
        """The scheme of the indices without scales."""
        return evolve(self.scheme, group_size=0, offset="none")

    def place(self, shape: Shape) -> int:
        """Return the vector axis, counted from the front."""
        return len(shape) + self.vector_axis

    def index_shape(self, shape: Shape) -> Shape:
        """Return the shape of the indices."""
        vector_axis = self.place(shape)
        return tuple(size // self.vector if axis == vector_axis else size for axis, size in enumerate(shape))

    def parts(self, shape: Shape) -> dict[str, tuple[str, Shape]]:
        """Return dtype and shape of each part for a logical shape; CodecError if the shape does not divide."""
        count = dtypes.count(shape)
        along = shape[self.vector_axis] if len(shape) >= -self.vector_axis else 0
        if self.vector > 1 and (not along or along % self.vector):
            raise CodecError(
                "the vectors do not divide the axis",
                expected=f"a multiple of {self.vector}",
                found=f"{list(shape)}",
                code="shape",
            )
        if self.codebook_size and count % self.codebook_size:
            raise CodecError(
                "the codebooks do not divide the tensor",
                expected=f"a multiple of {self.codebook_size}",
                found=count,
                code="shape",
            )
        parts = {"data": self.indices.parts(self.index_shape(shape))["data"]}
        if self.table is None:
            books = (count // self.codebook_size,) if self.codebook_size else ()
            vector = (self.vector,) if self.vector > 1 else ()
            parts["codebook"] = (self.codebook_dtype, (*books, 1 << self.scheme.bits, *vector))
        if self.scaled:
            layouts = self.scheme.parts(shape)
            parts.update({role: part for role, part in layouts.items() if role != "data"})
        if self.nested:
            (groups,) = parts["scale"][1]
            parts["scale"] = ("u8", (groups,))
            parts["scale_codebook"], parts["scale_offset"] = ("f32", (256,)), ("f32", ())
            parts["scale_scale"] = ("f32", (-(-groups // self.nested),))
        return parts

    def scales(self, parts: Parts, shape: Shape) -> Any:
        """Return the scales as a lazily read array; ones if there are none."""
        if self.nested:
            return _Nested(parts, self.nested)
        return parts["scale"] if self.scaled else np.broadcast_to(np.float32(1), self.scheme.parts(shape)["scale"][1])

    def table_parts(self, entries: Array) -> dict[str, Array] | None:
        """Return the parts that store a table exactly, or None."""
        if self.table is not None:
            return {} if entries.tobytes() == self.constant.tobytes() else None
        with np.errstate(all="ignore"):
            book = entries.astype(dtypes.to_numpy(self.codebook_dtype))
        return {"codebook": book} if book.astype(np.float32).tobytes() == entries.tobytes() else None

    def _check(self) -> None:
        vectors = self.vector == 1 or (self.table is None and self.codebook_size % self.vector == 0)
        rules = [
            (self.scheme.axis in (-1, "flat"), "axis", "-1 or flat"),
            (self.scheme.pack_axis == -1, "pack_axis", "-1"),
            (not isinstance(self.table, tuple) or 0 < len(self.table) <= 1 << self.scheme.bits, "table",
             f"1 to {1 << self.scheme.bits} numbers"),
            (not isinstance(self.table, str) or len(NAMED[self.table]) == 1 << self.scheme.bits, "bits",
             "the bits of the table"),
            (self.table is None or not self.codebook_size, "codebook_size", "0 with a constant table"),
            (vectors, "vector", "codebooks of whole vectors"),
            (not self.nested or (self.scheme.flat and self.scaled and self.scheme.offset == "none"), "nested",
             "axis=flat, a scale and no offset"),
            (self.scaled or (self.scheme.offset == "none" and not self.scheme.group_size), "scale_dtype",
             "a dtype, with group_size or offset"),
        ]  # fmt: skip
        for holds, name, expected in rules:
            if not holds:
                value = getattr(self, name) if hasattr(self, name) else getattr(self.scheme, name)
                raise refuse(name, expected, value)


class _Nested:
    """Double-quantized scales: indices into a table, with one factor per run."""

    def __init__(self, parts: Parts, run: int) -> None:
        self.parts, self.run = parts, run

    def __getitem__(self, key: tuple[slice]) -> Array:
        (span,) = key
        start, stop, run = span.start, span.stop, self.run
        table = self.parts["scale_codebook"][...].astype(np.float32, copy=False)
        factors = np.repeat(self.parts["scale_scale"][start // run : -(-stop // run)], run)[start % run :]
        values = table[self.parts["scale"][start:stop]]
        return np.asarray(values * factors[: stop - start] + np.float32(self.parts["scale_offset"][...]))


def _table(name: str, value: Any) -> str | tuple[float, ...]:
    if isinstance(value, str) and value in NAMED:
        return value
    numbers = isinstance(value, (list, tuple)) and len(value) <= 256 and all(type(v) in (int, float) for v in value)
    if not numbers:
        raise refuse(name, f"{', '.join(NAMED)} or numbers", value)
    return tuple(float(np.float32(v)) for v in value)


_SHARED = ("bits", "group_size", "axis", "word", "order", "offset", "offset_dtype")
_CHECKS: dict[str, Any] = {
    "scale_dtype": choice("none", *SCALES), "table": _table, "codebook_size": integer(0, 1 << 40),
    "codebook_dtype": choice(*BOOKS), "vector": integer(1, 64), "vector_axis": integer(-4, -1),
    "nested": integer(0, 1 << 20), "fit": choice(*FITS),
}  # fmt: skip
_DEFAULTS: dict[str, Any] = {
    "table": None, "codebook_size": 0, "codebook_dtype": "f32", "vector": 1, "vector_axis": -1, "nested": 0,
    "fit": FITS[0],
}  # fmt: skip
