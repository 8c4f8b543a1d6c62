"""Groups in any order: each input column has a group index (`g_idx` of GPTQ's act-order)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from attrs import evolve
from squish_codecs.api import Affine, read_affine, row_major, unpack_codes

from squish_core.api import (
    Codec,
    CodecError,
    CodecSpec,
    CodeLayout,
    Codes,
    ErrorCode,
    PartArray,
    Parts,
    Region,
    TensorSpec,
    Wrapper,
)

ROLE = "g_idx"
PANEL = 1 << 20
"""Elements decoded at a time if groups are not in order."""


class ActOrder(Wrapper):
    """Wraps `affine` with a part `g_idx` i32 [in]: column i has the scale and zero point of group `g_idx[i]`.

    Most files store `i // group_size` and are decoded like plain `affine`.
    Source: gptqmodel, TorchLinear; compressed-tensors before 0.12, `weight_g_idx`.
    """

    inner: Affine
    unsliced_parts = (ROLE,)

    def bind(self) -> None:
        if not isinstance(self.inner, Affine):
            raise CodecError("activation order requires affine codes", found=self.inner.id, code="wrap")
        self.scheme = self.inner.scheme

    def parts(self, spec: TensorSpec) -> dict[str, tuple[str, tuple[int, ...]]]:
        return {**self.inner.parts(spec), ROLE: ("i32", spec.shape[-1:])}

    def grain(self, spec: TensorSpec) -> tuple[int | None, ...]:
        return (*self.inner.grain(spec)[:-1], None)

    def decode(self, parts: Parts, spec: TensorSpec, *, region: Region, out: np.ndarray) -> None:
        order = self._order(parts, spec)
        if order is None:
            self.inner.decode(parts, spec, region=region, out=out)
            return
        words, scale, offset = read_affine(self.scheme, parts, region)
        codes = unpack_codes(self.scheme, words, out.shape, self.scheme.upright.pack_axis)
        step = max(1, PANEL // max(out.shape[-1], 1))
        with np.errstate(all="ignore"):
            for low in range(0, len(out), step):
                panel = out[low : low + step]
                panel[...] = codes[low : low + step]
                panel -= np.float32(self.scheme.zero)
                if offset is not None:
                    panel -= offset[low : low + step][..., order]
                panel *= scale[low : low + step][..., order]

    def check_parts(self, parts: Parts, spec: TensorSpec) -> None:
        self._order(parts, spec)

    def doubts(self, parts: Parts, spec: TensorSpec) -> Iterator[str]:
        """Yield a doubt about groups of different sizes: GPTQ's groups have equally many columns, in any order."""
        order = self._order(parts, spec)
        if order is not None:
            size = self.scheme.group_size or spec.shape[-1]
            counts = np.bincount(order, minlength=spec.shape[-1] // size)
            if (counts != size).any():
                yield (
                    f"its g_idx gives the {len(counts)} groups {counts.min()} to {counts.max()} columns, "
                    f"not {size} each: engines that read it and engines that do not compute different values"
                )

    def code_layout(self, spec: TensorSpec) -> CodeLayout | None:
        """Return the layout of groups in order, which may not match the data."""
        return self.inner.code_layout(spec)

    def examine(self, parts: Parts, spec: TensorSpec) -> CodecSpec:
        return evolve(self.specification, inner=self.inner.examine(parts, spec))

    def codes(self, parts: Parts, spec: TensorSpec, region: Region) -> Codes | None:
        if self._order(parts, spec) is not None:
            raise CodecError(
                "its groups are in activation order, which the target cannot store",
                part=ROLE,
                code="act-order",
                hint="Encode it again with --encode, or write the same method.",
            )
        return self.inner.codes(parts, spec, region)

    def column_permuted(self, spec: TensorSpec) -> CodecSpec | None:
        return CodecSpec("affine", self.inner.params) if len(spec.shape) == 2 else None

    def permute_columns(
        self, parts: Parts, spec: TensorSpec
    ) -> tuple[Codec, Mapping[str, PartArray], np.ndarray | None]:
        """Permute columns so that groups are contiguous; CodecError if groups differ in size."""
        order = self._order(parts, spec)
        arrays: dict[str, PartArray] = {role: parts[role] for role in parts if role != ROLE}
        if order is None:
            return self.inner, arrays, None
        counts = np.bincount(order, minlength=spec.shape[-1] // self.scheme.group_size)
        if (counts != self.scheme.group_size).any():
            raise CodecError(
                "compiled kernels do not support groups with different numbers of columns",
                part=ROLE,
                code=ErrorCode.UNCOVERED,
                expected=f"{self.scheme.group_size} each",
                found=f"{counts.min()} to {counts.max()}",
                hint="The NumPy backend runs this tensor.",
            )
        columns = np.argsort(order, kind="stable")
        moved: Any = self._moved(parts["data"][...], columns, spec)
        return self.inner, {**arrays, "data": moved}, columns

    def _moved(self, stored: np.ndarray, columns: np.ndarray, spec: TensorSpec) -> np.ndarray:
        """Return the codes with permuted columns, in the same words."""
        scheme, out = self.scheme, np.empty_like(stored)
        words, target = (array.swapaxes(0, 1) if scheme.transposed else array for array in (stored, out))
        step = max(1, PANEL // max(len(columns), 1))
        for low in range(0, spec.shape[0], step):
            codes = scheme.packing.unpack(row_major(words[low : low + step]), len(columns))
            target[low : low + step] = scheme.packing.pack(codes.take(columns, axis=-1))
        return out

    def _order(self, parts: Parts, spec: TensorSpec) -> np.ndarray | None:
        """Return the group of each column, or None if groups are in order; CodecError for an invalid group."""
        order = parts[ROLE][:]
        size = self.scheme.group_size or max(spec.shape[-1], 1)
        groups = spec.shape[-1] // size
        if order.size and not 0 <= int(order.min()) <= int(order.max()) < groups:
            raise CodecError(
                "invalid group index of a column",
                part=ROLE,
                expected=f"0 to {groups - 1}",
                found=f"{order.min()} to {order.max()}",
                code="g_idx",
            )
        return None if (order == np.arange(order.size) // size).all() else order
