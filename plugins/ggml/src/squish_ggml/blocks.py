"""The GGML block types of this plugin, by name."""

from __future__ import annotations

from typing import NamedTuple

from squish_core.api import BLOCK_TYPES

from . import encoders, kquants, legacy, small, tail
from .panels import Decode, Encode, Kernel, decoder, encoder


class Block(NamedTuple):
    """One GGML block type: `elements` weights in `nbytes` bytes, its decoder and optional encoder.

    `decode(blocks, out)` fills C-contiguous float32 (rows, blocks*elements) from uint8 (rows, blocks, nbytes),
    which may be read-only, unaligned or a slice of columns. `encode(values, out)` is the inverse.
    """

    name: str
    elements: int
    nbytes: int
    decode: Decode
    encode: Encode | None
    lossless: bool = False


def _block(name: str, decode: Kernel, encode: Kernel | None = None) -> Block:
    _, _, elements, nbytes = BLOCK_TYPES[name]
    encode_panels = encoder(encode, elements, nbytes) if encode else None
    return Block(name, elements, nbytes, decoder(decode, elements, nbytes), encode_panels)


BLOCKS: dict[str, Block] = {
    block.name: block
    for block in (
        _block("q4_0", legacy.decode_q4_0, encoders.encode_q4_0),
        _block("q4_1", legacy.decode_q4_1, encoders.encode_q4_1),
        _block("q5_0", legacy.decode_q5_0, encoders.encode_q5_0),
        _block("q5_1", legacy.decode_q5_1, encoders.encode_q5_1),
        _block("q8_0", legacy.decode_q8_0, encoders.encode_q8_0),
        _block("q8_1", legacy.decode_q8_1),
        _block("q2_k", kquants.decode_q2_k),
        _block("q3_k", kquants.decode_q3_k),
        _block("q4_k", kquants.decode_q4_k),
        _block("q5_k", kquants.decode_q5_k),
        _block("q6_k", kquants.decode_q6_k),
        _block("q8_k", kquants.decode_q8_k),
        _block("q1_0", small.decode_q1_0, small.encode_q1_0),
        _block("q2_0", small.decode_q2_0, small.encode_q2_0),
        _block("tq1_0", small.decode_tq1_0, small.encode_tq1_0),
        _block("tq2_0", small.decode_tq2_0, small.encode_tq2_0),
        _block("mxfp4", small.decode_mxfp4, small.encode_mxfp4),
        _block("nvfp4", small.decode_nvfp4, small.encode_nvfp4),
        _block("iq4_nl", small.decode_iq4_nl),
        _block("iq4_xs", small.decode_iq4_xs),
    )
}
LONG_TAIL: dict[str, Block] = {name: _block(name, kernel) for name, kernel in tail.KERNELS.items()}
"""Block types decoded by gguf-py, if installed."""


def has_encoder(name: str) -> bool:
    """Return whether this package has an encoder for a block type.

    Parameters
    ----------
    name : str
        The short name of the type, such as ``"q4_0"``.

    Returns
    -------
    bool

    Examples
    --------
    >>> has_encoder("q4_0"), has_encoder("iq2_xxs")
    (True, False)
    """
    return name in BLOCKS and BLOCKS[name].encode is not None
