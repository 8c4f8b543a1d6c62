"""The directory of a new file: copies of all block headers and masks, for readers of remote files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import cbor2

from ..read.blocks import aligned
from ..read.header import DRAFT_KEY, GLOBAL_KEY
from ..read.tables import QUANTIZED, Table
from .draft import Draft
from .place import PlacedBlock, Placement

LIMIT = 4 << 20
"""Maximum size of a directory in bytes; a larger one would take longer to fetch than it saves."""


def tables_of(placement: Placement, draft: Draft | None) -> list[Table]:
    """Place the scale tables."""
    blocks = [*placement.blocks, *(block for block, _ in draft.blocks(0))] if draft else placement.blocks
    quantized = [block for block in blocks if block.kind in QUANTIZED]
    if not quantized:
        return []
    level = Table(aligned(placement.end), len(quantized))
    pairs = sum(block.pairs for block in quantized)
    return [level, Table(aligned(level.end), pairs)] if pairs else [level]


def end_of_tables(placement: Placement, draft: Draft | None) -> int:
    """Return the end of the last section before the names."""
    tables = tables_of(placement, draft)
    return tables[-1].end if tables else placement.end


def directory(placement: Placement, draft: Draft | None, masks: Mapping[int, bytes]) -> dict[str, Any]:
    """Return the directory as data for CBOR; empty if it would be too large."""
    layers: dict[int, list[PlacedBlock]] = {**placement.layers, GLOBAL_KEY: placement.globals}
    if draft is not None:
        # Where the draft head begins depends on the size of this section, so its blocks count from its start.
        layers[DRAFT_KEY] = [block for block, _ in draft.blocks(8)]
    root: dict[str, Any] = {"blocks": {key: list(map(_item, blocks)) for key, blocks in layers.items() if blocks}}
    if tables := tables_of(placement, draft):
        root["tables"] = [[table.at, table.count] for table in tables]
    if masks:
        root["masks"] = dict(masks)
    return root if len(cbor2.dumps(root)) <= LIMIT else {}


def _item(block: PlacedBlock) -> list[Any]:
    return [block.start, block.header, block.pairs]
