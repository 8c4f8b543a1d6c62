"""The section SQXT of a new file: names, shapes, order, metadata and assets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import cbor2

from squish_core.api import Typed, dump_meta

from ..read import cbor
from .draft import Draft
from .place import Placement

ARCH, META = "squizd.arch_id", "squish.meta"
"""Keys of the metadata: the architecture's number, and under which SQXT holds all others and the assets."""
ATTRS, ORDER = "squizd.attrs", "order"
"""Key of the metadata for attributes of SQXT that are not ours (CBOR), and the attribute that is the tensors' order."""
MOST_META = 48 << 20


def other_attrs(attrs: Mapping[str, Any]) -> Typed | None:
    """Attributes of SQXT that are not ours, as a metadata value."""
    others = {key: value for key, value in attrs.items() if key not in (META, ORDER)}
    return Typed("bytes", cbor2.dumps(others)) if others else None


def _stored_attrs(meta: Mapping[str, Any]) -> dict[str, Any] | None:
    """The attributes that `other_attrs` packed; None where the metadata hold something else under the key."""
    value = meta.get(ATTRS)
    packed = value.value if isinstance(value, Typed) else value
    try:
        attrs = cbor.loads(packed) if isinstance(packed, bytes) else None
    except ValueError:
        return None
    return attrs if isinstance(attrs, dict) else None


def logical_shapes(placement: Placement, draft: Draft | None) -> dict[str, list[int]]:
    """Shapes of tensors that their blocks do not state."""
    named = [(block.spec.name, block) for block in placement.placed] + placement.tied
    named += [(block.spec.name, block) for block, _ in draft.blocks(0)] if draft else []
    return {name: list(block.spec.shape) for name, block in reversed(named) if block.shape != block.spec.shape}


def names_section(
    placement: Placement, meta: Mapping[str, Any], assets: Mapping[str, bytes], draft: Draft | None
) -> bytes:
    """The map of SQXT, encoded."""
    outside = [(block.spec.name, block) for block in placement.globals] + placement.tied
    shapes = logical_shapes(placement, draft)
    natural = [block.spec.name for blocks in placement.layers.values() for block in blocks]
    others: dict[str, list[str]] = {}
    for name, shared in placement.tied:
        others.setdefault(shared.spec.name, []).append(name)
    for block in placement.globals:
        natural += [block.spec.name, *others.get(block.spec.name, ())]
    foreign = _stored_attrs(meta)
    attrs: dict[str, Any] = dict(foreign or {})
    if natural != placement.order:
        places = {name: place for place, name in enumerate(natural)}
        attrs[ORDER] = [places[name] for name in placement.order]
    own = {key: value for key, value in meta.items() if key != ARCH and (key != ATTRS or foreign is None)}
    if (own or assets) and fits_names(own, assets):
        attrs[META] = dump_meta(own, assets)
    root: dict[str, Any] = {
        "v": 1,
        "names": {layer: [block.spec.name for block in blocks] for layer, blocks in placement.layers.items() if blocks}
        | (draft.names if draft else {}),
        "globals": [[name, block.start, len(block.header) + block.length] for name, block in outside],
    }
    root |= {key: value for key, value in (("shapes", shapes), ("attrs", attrs)) if value}
    return cbor2.dumps(root)


def fits_names(meta: Mapping[str, Any], assets: Mapping[str, bytes]) -> bool:
    """Whether metadata and assets are few enough for the section."""
    return sum(map(len, assets.values())) <= MOST_META and len(dump_meta(meta, {})) <= MOST_META // 4
