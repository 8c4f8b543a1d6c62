"""Limits that bound what a hostile file can cost."""

from attrs import frozen

MIB = 1 << 20
GIB = 1 << 30


@frozen(kw_only=True)
class Limits:
    """Caps applied before memory is taken; bytes unless said otherwise.

    `header`: header, manifest or key/value section. `tensors`: number of tensors. `name`: UTF-8 bytes of a
    tensor name. `rank`: dimensions. `depth`: nesting of metadata. `decoded`: one decoded tensor or part.
    `ratio`: decoded bytes per stored byte of a byte codec.
    """

    header: int = 100 * MIB
    tensors: int = 1_000_000
    name: int = 1024
    rank: int = 64
    depth: int = 32
    decoded: int = 64 * GIB
    ratio: int = 4096


DEFAULT = Limits()
