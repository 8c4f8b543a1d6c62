"""The section SQXT of a new file: names, shapes, order, metadata and assets."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Any

import cbor2

from squish_core.api import Typed, dump_meta

from ..read import cbor
from ..read.blocks import aligned
from ..read.header import ARCHITECTURES
from .directory import end_of_tables
from .draft import Draft
from .place import Placement

ARCH, META = "squizd.arch_id", "squish.meta"
"""Metadata key of the architecture's number; attribute of SQXT with all other metadata and the assets."""
LAYER_COUNT = "squizd.layer_count"
"""Metadata key of the number of layers, if the last ones have no tensors."""
ATTRS, ORDER = "squizd.attrs", "order"
"""Metadata key of other software's SQXT attributes (CBOR); attribute of SQXT with the order of the tensors."""
DRAFT_CONFIG = "squish.draft_config"
"""Attribute of SQXT with the config.json of the draft head."""
MAX_META = 48 << 20


def arch_of(model_type: Any) -> int:
    """Return the architecture's number for a model type, plain or with its stored type; 0 if SQUIZD has none."""
    text = model_type.value if isinstance(model_type, Typed) else model_type
    names = [name for name in ARCHITECTURES[1:] if isinstance(text, str) and text.lower().startswith(name)]
    return ARCHITECTURES.index(names[0]) if names else 0


def layer_count_of(meta: Mapping[str, Any]) -> int:
    """Return the number of layers in the metadata; 0 if it states none, or one that SQUIZD cannot store."""
    value = meta.get(LAYER_COUNT)
    count = value.value if isinstance(value, Typed) else value
    return count if type(count) is int and 0 <= count <= 0xFFFF else 0


def other_attrs(attrs: Mapping[str, Any]) -> Typed | None:
    """Return the attributes of other software in SQXT as a metadata value."""
    others = {key: value for key, value in attrs.items() if key not in (META, ORDER, DRAFT_CONFIG)}
    return Typed("bytes", cbor2.dumps(others)) if others else None


def _stored_attrs(meta: Mapping[str, Any]) -> dict[str, Any] | None:
    """Unpack the attributes from `other_attrs`; None if the metadata value is something else."""
    value = meta.get(ATTRS)
    packed = value.value if isinstance(value, Typed) else value
    try:
        attrs = cbor.loads(packed) if isinstance(packed, bytes) else None
    except ValueError:
        return None
    return attrs if isinstance(attrs, dict) else None


def logical_shapes(placement: Placement, draft: Draft | None) -> dict[str, list[int]]:
    """Return the shapes that the blocks do not state."""
    named = [(block.spec.name, block) for block in placement.blocks] + placement.tied
    named += [(block.spec.name, block) for block, _ in draft.blocks(0)] if draft else []
    return {name: list(block.spec.shape) for name, block in reversed(named) if block.shape != block.spec.shape}


def names_section(
    placement: Placement,
    meta: Mapping[str, Any],
    assets: Mapping[str, bytes],
    draft: Draft | None,
    directory: Mapping[str, Any],
) -> bytes:
    """Return the content of SQXT as CBOR; its last item is its own offset, by which remote readers find it."""
    global_blocks = [(block.spec.name, block) for block in placement.globals] + placement.tied
    shapes = logical_shapes(placement, draft)
    file_order = [block.spec.name for blocks in placement.layers.values() for block in blocks]
    aliases: dict[str, list[str]] = {}
    for name, shared in placement.tied:
        aliases.setdefault(shared.spec.name, []).append(name)
    for block in placement.globals:
        file_order += [block.spec.name, *aliases.get(block.spec.name, ())]
    foreign = _stored_attrs(meta)
    attrs: dict[str, Any] = dict(foreign or {})
    if file_order != placement.order:
        places = {name: place for place, name in enumerate(file_order)}
        attrs[ORDER] = [places[name] for name in placement.order]
    own = {
        key: value
        for key, value in meta.items()
        if key not in (ARCH, LAYER_COUNT) and (key != ATTRS or foreign is None)
    }
    if (own or assets) and fits_names(own, map(len, assets.values())):
        attrs[META] = dump_meta(own, assets)
    if draft and draft.config:
        attrs[DRAFT_CONFIG] = draft.config
    root: dict[str, Any] = {
        "v": 1,
        "names": {layer: [block.spec.name for block in blocks] for layer, blocks in placement.layers.items() if blocks}
        | (draft.names if draft else {}),
        "globals": [[name, block.start, len(block.header) + block.length] for name, block in global_blocks],
    }
    root |= {key: value for key, value in (("shapes", shapes), ("attrs", attrs), ("directory", directory)) if value}
    return cbor2.dumps(root | {"at": struct.pack("<Q", aligned(end_of_tables(placement, draft)))})


def fits_names(meta: Mapping[str, Any], sizes: Iterable[int]) -> bool:
    """Return whether metadata and assets of these sizes are small enough for the section."""
    return sum(sizes) <= MAX_META and len(dump_meta(meta, {})) <= MAX_META // 4
