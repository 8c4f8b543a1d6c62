"""Blocks of big-endian files: the fields of more than a byte, turned round."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import frozen

from squish_core.api import Codec, CodecError, Codes, Params, PartArray, Parts, Region, TensorSpec

from .blocks import Block
from .codec import GgmlBlocks

if TYPE_CHECKING:
    import numpy as np

# type -> (offset, bytes) of each field; the codes are single bytes
FIELDS: dict[str, tuple[tuple[int, int], ...]] = {
    "q4_0": ((0, 2),), "q4_1": ((0, 2), (2, 2)), "q5_0": ((0, 2),), "q5_1": ((0, 2), (2, 2)), "q8_0": ((0, 2),),
    "q8_1": ((0, 2), (2, 2)), "q2_k": ((80, 2), (82, 2)), "q3_k": ((108, 2),), "q4_k": ((0, 2), (2, 2)),
    "q5_k": ((0, 2), (2, 2)), "q6_k": ((208, 2),), "q1_0": ((0, 2),), "q2_0": ((0, 2),),
    "tq1_0": ((52, 2),), "tq2_0": ((64, 2),), "mxfp4": (), "nvfp4": (), "iq4_nl": ((0, 2),), "iq4_xs": ((0, 2), (2, 2)),
}  # fmt: skip


class BigEndian(Codec):
    """Bound to a block codec by `around`: the same blocks, their fields of more than a byte turned round."""

    def around(self, inner: Codec, params: Params) -> Codec:
        if not isinstance(inner, GgmlBlocks) or inner.block.name not in FIELDS:
            raise CodecError(f"{inner.id} is not read from big-endian files", code="byteorder")
        return _Bound(inner)


class _Bound(Codec):
    """`BigEndian` around one block codec; it takes no parameters, nor do blocks."""

    id = "ggml.big_endian"

    def __init__(self, inner: GgmlBlocks) -> None:
        self.inner = inner

    def parts(self, spec: TensorSpec, params: Params) -> dict[str, tuple[str, tuple[int, ...]]]:
        return self.inner.parts(spec, params)

    def grain(self, spec: TensorSpec, params: Params) -> tuple[int | None, ...]:
        return self.inner.grain(spec, params)

    def decode(self, parts: Parts, spec: TensorSpec, params: Params, *, region: Region, out: np.ndarray) -> None:
        self.inner.decode(self._turned(parts), spec, params, region=region, out=out)

    def codes(self, parts: Parts, spec: TensorSpec, params: Params, region: Region) -> Codes | None:
        return self.inner.codes(self._turned(parts), spec, params, region)

    def _turned(self, parts: Parts) -> Parts:
        return {"data": _Turned(parts["data"], self.inner.block)}


@frozen
class _Turned:
    """Rows of blocks that are turned where they are indexed, by whole blocks."""

    stored: PartArray
    block: Block

    @property
    def shape(self) -> tuple[int, ...]:
        return self.stored.shape

    @property
    def dtype(self) -> np.dtype:
        return self.stored.dtype

    def __getitem__(self, key: Any) -> np.ndarray:
        found = self.stored[key]
        blocks = found.reshape(*found.shape[:-1], -1, self.block.nbytes).copy()
        for at, size in FIELDS[self.block.name]:
            blocks[..., at : at + size] = blocks[..., at : at + size][..., ::-1].copy()
        return blocks.reshape(found.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self[...].astype(dtype or self.dtype)
