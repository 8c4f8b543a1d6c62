"""A parsed file: its sections, blocks and findings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attrs import define, field

from squish_core.api import Section

from .blocks import Block
from .coreml import Appendix
from .header import DRAFT_KEY, GLOBAL_KEY, Header, Layer
from .names import Names
from .tables import Scales, Table


@define
class Mask:
    """The bitmap of a block: its bytes, the numbers of its tiles and kept tiles, and its copy in the directory."""

    offset: int
    length: int
    tiles: int
    kept: int
    copy: bytes = b""


@define
class Anatomy:
    """A parsed file; blocks by layer key, in file order."""

    header: Header
    layers: list[Layer]
    blocks: dict[int, list[Block]] = field(factory=dict)
    masks: dict[int, dict[int, Mask]] = field(factory=dict)
    globals: list[Block] = field(factory=list)
    tables: list[Table] = field(factory=list)
    names: Names = field(factory=Names)
    draft: dict[int, list[Block]] | None = None
    count: int = 0
    scales: dict[int, Scales] = field(factory=dict)
    appendix: Appendix | None = None
    sections: list[Section] = field(factory=list)
    directory: Any = None
    """The directory that the blocks were read from, if any."""

    def add(self, kind: str, offset: int, end: int, content: str) -> None:
        """Add a section to the map."""
        self.sections.append(Section(offset, end - offset, kind, content))

    def ordered_sections(self) -> list[Section]:
        """Return the sections by offset."""
        return sorted(self.sections, key=lambda section: section.offset)

    def named(self, *, draft: bool = False) -> Iterator[tuple[int, str, Block]]:
        """Yield (layer key, name, block) in table order, of the layers and globals or of the draft head."""
        for key, blocks in ((self.draft or {}) if draft else self.blocks).items():
            names = self.names.names.get(key)
            number = key - DRAFT_KEY if draft else key
            for i, block in enumerate(blocks):
                yield key, names[i] if names else f"layers.{number}.w{i}", block
        if not draft:
            for i, block in enumerate(self.globals):
                yield GLOBAL_KEY, (self.global_names(block) or [f"globals.w{i}"])[0], block

    def global_names(self, block: Block) -> list[str]:
        """Return all names of a global block: tied tensors share one."""
        return self.names.by_extent.get((block.start, block.end - block.start), [])
