"""Blocks of big-endian files: two-byte fields are byte-swapped."""

from __future__ import annotations

from typing import Any

import numpy as np
from attrs import frozen

from squish_core.api import CodecError, CodeLayout, Codes, PartArray, Parts, Region, TensorSpec, Wrapper

from .blocks import Block
from .codec import GgmlBlocks

# type -> offsets of its two-byte fields; all other fields are single bytes
PAIRS: dict[str, tuple[int, ...]] = {
    "q4_0": (0,), "q4_1": (0, 2), "q5_0": (0,), "q5_1": (0, 2), "q8_0": (0,), "q8_1": (0, 2), "q2_k": (80, 82),
    "q3_k": (108,), "q4_k": (0, 2), "q5_k": (0, 2), "q6_k": (208,), "q1_0": (0,), "q2_0": (0,), "tq1_0": (52,),
    "tq2_0": (64,), "mxfp4": (), "nvfp4": (), "iq4_nl": (0,), "iq4_xs": (0, 2),
}  # fmt: skip


class BigEndian(Wrapper):
    """Wraps a block codec: the same blocks with byte-swapped two-byte fields."""

    inner: GgmlBlocks

    def bind(self) -> None:
        if not isinstance(self.inner, GgmlBlocks) or self.inner.block.name not in PAIRS:
            raise CodecError(f"{self.inner.id} is not supported in big-endian files", code="byteorder")

    def decode(self, parts: Parts, spec: TensorSpec, *, region: Region, out: np.ndarray) -> None:
        self.inner.decode(self._swapped(parts), spec, region=region, out=out)

    def code_layout(self, spec: TensorSpec) -> CodeLayout | None:
        return self.inner.code_layout(spec)

    def codes(self, parts: Parts, spec: TensorSpec, region: Region) -> Codes | None:
        return self.inner.codes(self._swapped(parts), spec, region)

    def _swapped(self, parts: Parts) -> Parts:
        return {"data": _SwappedPart(parts["data"], self.inner.block)}


@frozen
class _SwappedPart:
    """Rows of blocks, byte-swapped on access; indexed by whole blocks."""

    part: PartArray
    block: Block

    @property
    def shape(self) -> tuple[int, ...]:
        return self.part.shape

    @property
    def dtype(self) -> np.dtype:
        return self.part.dtype

    def __getitem__(self, key: Any) -> np.ndarray:
        data = np.array(self.part[key])
        blocks = data.reshape(*data.shape[:-1], data.shape[-1] // self.block.nbytes, self.block.nbytes)
        for at in PAIRS[self.block.name]:
            pair = blocks[..., at : at + 2]
            pair[...] = pair[..., ::-1]
        return data

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self[...].astype(dtype or self.dtype)
