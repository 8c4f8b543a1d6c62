"""Blocks of big-endian files: the fields of more than a byte, turned round."""

from __future__ import annotations

from typing import TYPE_CHECKING

from squish_core.api import CodecError

if TYPE_CHECKING:
    import numpy as np

    from .blocks import Block

# type -> (offset, bytes) of each field; the codes are single bytes
FIELDS: dict[str, tuple[tuple[int, int], ...]] = {
    "q4_0": ((0, 2),), "q4_1": ((0, 2), (2, 2)), "q5_0": ((0, 2),), "q5_1": ((0, 2), (2, 2)), "q8_0": ((0, 2),),
    "q8_1": ((0, 2), (2, 2)), "q2_k": ((80, 2), (82, 2)), "q3_k": ((108, 2),), "q4_k": ((0, 2), (2, 2)),
    "q5_k": ((0, 2), (2, 2)), "q6_k": ((208, 2),), "tq1_0": ((52, 2),), "tq2_0": ((64, 2),), "mxfp4": (), "nvfp4": (),
    "iq4_nl": ((0, 2),), "iq4_xs": ((0, 2), (2, 2)),
}  # fmt: skip


def little_endian(block: Block, stored: np.ndarray) -> np.ndarray:
    """A copy of rows of blocks with their fields turned; CodecError for types that nothing writes so."""
    if block.name not in FIELDS:
        raise CodecError(f"{block.name.upper()} blocks are not read from big-endian files", code="byteorder")
    blocks = stored.reshape(*stored.shape[:-1], -1, block.nbytes).copy()
    for at, size in FIELDS[block.name]:
        blocks[..., at : at + size] = blocks[..., at : at + size][..., ::-1].copy()
    return blocks.reshape(stored.shape)
