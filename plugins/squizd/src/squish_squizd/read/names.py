"""The optional section SQXT: names, shapes beyond two dimensions, tensors outside layers (profile P9)."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from attrs import field, frozen

from squish_core.api import Limits, Source, SquishError, check_name, counted

from ..findings import Findings
from . import cbor
from .blocks import Block

MAGIC, MAX_LENGTH = b"SQXT", 64 << 20


@frozen(kw_only=True)
class Names:
    """The content of the section; empty if the file has none."""

    names: Mapping[int, list[str]] = field(factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(factory=dict)
    globals: Sequence[tuple[str, int, int]] = ()
    attrs: Mapping[str, Any] = field(factory=dict)
    directory: Any = None
    """Copies of all block headers, unchecked; see `directory`."""

    @cached_property
    def by_extent(self) -> dict[tuple[int, int], list[str]]:
        """Names of globals by (offset, length)."""
        extents: dict[tuple[int, int], list[str]] = {}
        for name, offset, length in self.globals:
            extents.setdefault((offset, length), []).append(name)
        return extents


def read_names(source: Source, at: int, end: int, limits: Limits, findings: Findings) -> tuple[Names | None, int]:
    """Read the section at `at`; returns it (None if missing or invalid) and its end."""
    if at + 8 > end or source.read(at, 4) != MAGIC:
        return None, at
    (length,) = struct.unpack("<I", source.read(at + 4, 4))
    if at + 8 + length > end:
        # Other sections are found from the end of this one, so it cannot be skipped.
        findings.error(
            "P9",
            "SQXT",
            "extends past the end of the file",
            kind="truncated",
            offset=at + 4,
            expected=f"at most {end - at - 8} bytes",
            found=f"{length} bytes",
        )
        return None, end
    stop = at + 8 + length
    try:
        if length > MAX_LENGTH:
            raise ValueError(f"{length} bytes, at most {MAX_LENGTH} are allowed")
        return _parse(cbor.loads(source.read(at + 8, length)), limits), stop
    except (ValueError, SquishError) as error:
        findings.warn("P9", "SQXT", f"ignored, so tensors get names such as layers.0.w0: {error}", offset=at)
        return None, stop


def _parse(root: Any, limits: Limits) -> Names:
    if not isinstance(root, dict) or type(root.get("v")) is not int:
        raise ValueError("not a map with an integer v")
    if root["v"] != 1:
        raise ValueError(f"unsupported version {root['v']} (expected 1)")
    names, shapes, global_items = root.get("names", {}), root.get("shapes", {}), root.get("globals", [])
    attrs = root.get("attrs", {})
    if not (isinstance(names, dict) and isinstance(shapes, dict) and isinstance(attrs, dict)):
        raise ValueError("names, shapes and attrs must be maps")
    for key, listed in names.items():
        if type(key) is not int or not 0 <= key < 1 << 32 or not isinstance(listed, list):
            raise ValueError(f"names must map layer numbers to lists of names (key {key!r})")
        for name in listed:
            _encodable(check_name(name, limits))
    if not isinstance(global_items, list):
        raise ValueError("globals must be a list")
    for item in global_items:
        if not (isinstance(item, list) and len(item) == 3 and type(item[1]) is type(item[2]) is int):
            raise ValueError("each global must be [name, offset, length]")
        _encodable(check_name(item[0], limits))
    for name, shape in shapes.items():
        if not (
            isinstance(shape, list)
            and len(shape) <= limits.rank
            and all(type(size) is int and size >= 0 for size in shape)
        ):
            raise ValueError(f"the shape of {name!r} must be a list of at most {limits.rank} sizes")
    return Names(
        names=names,
        shapes={name: tuple(shape) for name, shape in shapes.items()},
        globals=[(item[0], item[1], item[2]) for item in global_items],
        attrs=attrs,
        directory=root.get("directory"),
    )


def check_names(
    names: Names,
    blocks: Mapping[int, Sequence[Block]],
    global_blocks: Sequence[Block],
    draft: Mapping[int, Sequence[Block]],
) -> None:
    """Raise ValueError if the section does not fit the blocks of the file."""
    layers = {**blocks, **draft}
    for key, listed in names.names.items():
        if len(listed) != (count := len(layers.get(key, ()))):
            raise ValueError(f"layer {key} has {counted(count, 'block')}, but {counted(len(listed), 'name')}")
    extents = {(block.start, block.end - block.start) for block in global_blocks}
    for name, offset, length in names.globals:
        if (offset, length) not in extents:
            raise ValueError(f"global {name!r} does not point to a tensor block")
    for keys in (blocks, draft):
        all_names = [name for key, listed in names.names.items() if key in keys for name in listed]
        all_names += [name for name, _, _ in names.globals] if keys is blocks else []
        if len(set(all_names)) != len(all_names):
            raise ValueError("several tensors have the same name")


def shape_in(shapes: Mapping[str, tuple[int, ...]], name: str, stored: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a block: the section's for its name if it has as many elements, otherwise the stored one."""
    shape = shapes.get(name, stored)
    return shape if math.prod(shape) == math.prod(stored) else stored


def check_shapes(names: Names, blocks: Iterable[tuple[str, Block]], findings: Findings) -> None:
    """Warn about shapes that fit no block of their name; a tensor of the draft head may share the name of another."""
    stored: dict[str, list[Block]] = {}
    for name, block in blocks:
        if name in names.shapes:
            stored.setdefault(name, []).append(block)
    for name, same_name in stored.items():
        if math.prod(names.shapes[name]) not in {block.elements for block in same_name}:
            findings.warn(
                "P9",
                name,
                "its shape in SQXT has a different number of elements than its block",
                expected=list(same_name[0].shape),
                found=list(names.shapes[name]),
            )


def _encodable(name: str) -> None:
    try:
        name.encode()
    except UnicodeError:
        raise ValueError(f"the name {name!r} is not valid Unicode") from None
