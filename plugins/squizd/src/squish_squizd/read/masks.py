"""Sparsity masks: bitmaps of tiles at the end of a layer's weight block (specification 6; profile P6)."""

from __future__ import annotations

from squish_core.api import Source

from ..findings import Findings
from .anatomy import Anatomy, Mask
from .blocks import Block, skip_zeros
from .header import Layer


def read_masks(anatomy: Anatomy, layer: Layer, blocks: list[Block], source: Source, findings: Findings) -> None:
    """Read the bitmaps of a layer, one for each two-dimensional block."""
    where, position, end = f"layer {layer.number}", layer.scale_offset, layer.offset + layer.length
    assert anatomy.header.sparsity is not None
    side = anatomy.header.sparsity[0]
    masks = anatomy.masks[layer.number] = {}
    for block in blocks:
        if len(block.shape) != 2:
            continue
        tiles = -(-block.shape[0] // side) * -(-block.shape[1] // side)
        length = -(-tiles // 8)
        if position + length > end:
            findings.error(
                "P6",
                where,
                "a mask extends past the end of the weight block",
                kind="truncated",
                offset=position,
                expected=f"{length} bytes for {tiles} tiles",
                found=f"{end - position} bytes",
            )
            return
        kept = 0
        for start in range(position, position + length, 1 << 16):
            piece = int.from_bytes(source.read(start, min(1 << 16, position + length - start)), "little")
            kept += (piece & ((1 << min(8 << 16, tiles - 8 * (start - position))) - 1)).bit_count()
        if tiles % 8 and source.read(position + length - 1, 1)[0] >> tiles % 8:
            findings.warn("P6", where, "unused bits of a mask are set", offset=position + length - 1)
        masks[block.start] = Mask(position, length, tiles, kept)
        position += length
    rest = skip_zeros(source, position, end)
    if rest < end:
        findings.error("P6", where, "unexpected data after the masks", offset=rest, expected="zero padding")


def check_sparsity(anatomy: Anatomy, findings: Findings) -> None:
    """Check the totals in the header against the masks."""
    if anatomy.header.sparsity is None:
        return
    _, layers, mean = anatomy.header.sparsity
    masks = [mask for layer_masks in anatomy.masks.values() for mask in layer_masks.values()]
    tiles, kept = sum(mask.tiles for mask in masks), sum(mask.kept for mask in masks)
    actual = (tiles - kept) / tiles if tiles else 0.0
    if layers != len(anatomy.masks):
        findings.warn(
            "P6",
            "n_sparse_layers",
            "differs from the number of layers with masks",
            offset=136,
            expected=len(anatomy.masks),
            found=layers,
        )
    if not abs(mean - actual) <= 1e-6:
        findings.warn(
            "P6",
            "mean_sparsity",
            "differs from the share of zeroed tiles",
            offset=140,
            expected=f"{actual:.7g}",
            found=f"{mean:.7g}",
        )
