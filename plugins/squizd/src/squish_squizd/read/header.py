"""The fixed header of 256 bytes and the layer index (specification 3, 4, 6, 7; profile P1, P2, P6, P7)."""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

from attrs import field, frozen

from .. import FLAGS
from ..findings import Findings

MAGIC, VERSION, SIZE, ENTRY = b"SQZD", 1, 256, struct.Struct("<IQQQI")
ARCHITECTURES = ("generic", "llama", "mistral", "qwen", "gemma", "deepseek", "phi")
DRAFT_KEY, GLOBAL_KEY = 0x80000000, 0xFFFFFFFF

_FIXED = struct.Struct("<4sHIHHIQ")
_SPARSITY, _EAGLE = struct.Struct("<IIIf16x"), struct.Struct("<QQII8x")
_PRINTED_CRC = 0x00002B5A  # in Appendix A, for a header without SPARSE (P1, erratum)
_LEGACY = struct.Struct("<IHIffQ")
_LEGACY_NAMES = ("hidden_dim", "num_heads", "vocab_size", "compression_bpw", "sparsity_ratio", "calibration_hash")
_RESERVED = ((26, 128), (144, 160), (184, 192), (192, 256))


class Layer(NamedTuple):
    """One entry of the layer index; offsets from the start of the file."""

    number: int
    offset: int
    length: int
    scale_offset: int
    at: int


@frozen(kw_only=True)
class Header:
    """The parsed header; `sparsity` is (block_size, n_sparse_layers, mean), `eagle` (offset, length, layers, vocab)."""

    version: int
    flags: frozenset[str]
    layer_count: int
    arch_id: int
    sparsity: tuple[int, int, float] | None = None
    eagle: tuple[int, int, int, int] | None = None
    legacy: dict[str, int | float] = field(factory=dict)


def fnv1a64(data: bytes) -> int:
    """Return the 64-bit FNV-1a hash."""
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value


def parse_header(data: bytes, findings: Findings) -> Header | None:
    """Parse the first 256 bytes of a file; None if nothing after them can be read."""
    if len(data) < SIZE:
        findings.error(
            "P1",
            "header",
            "truncated",
            kind="truncated",
            expected=f"{SIZE} bytes",
            found=f"{len(data)} bytes",
        )
        return None
    magic, version, flags, layers, arch, crc, digest = _FIXED.unpack_from(data)
    if magic != MAGIC:
        findings.error("P1", "magic", "not a SQUIZD file", offset=0, expected=MAGIC, found=magic)
        return None
    if version != VERSION:
        hint = "The byte order is swapped: SQUIZD files are little-endian." if version == VERSION << 8 else None
        findings.error(
            "P1",
            "version",
            "unsupported version of SQUIZD",
            kind="version",
            offset=4,
            expected=VERSION,
            found=version,
            hint=hint,
        )
        return None
    if flags >> len(FLAGS):
        bits = [bit for bit in range(len(FLAGS), 32) if flags >> bit & 1]
        findings.error(
            "P1",
            "flags",
            f"reserved flag bits {bits} are set",
            offset=6,
            expected="bits 7..31 zero",
            found=f"{flags:#010x}",
        )
        return None
    names = frozenset(name for bit, name in enumerate(FLAGS) if flags >> bit & 1)
    legacy = _legacy(data, findings)
    _reserved(data, findings, skip=bool(legacy))
    return Header(
        version=version,
        flags=names,
        layer_count=layers,
        arch_id=arch,
        legacy=legacy,
        sparsity=_sparsity(data, crc, "SPARSE" in names, findings),
        eagle=_eagle(data, digest, "EAGLE" in names, findings),
    )


def _sparsity(data: bytes, crc: int, flagged: bool, findings: Findings) -> tuple[int, int, float] | None:
    block = data[128:160]
    if not flagged:
        if crc:
            report = findings.note if crc == _PRINTED_CRC else findings.warn
            report(
                "P1",
                "sparsity_crc32",
                "set, although the flag SPARSE is not",
                offset=14,
                expected=0,
                found=f"{crc:#010x}",
            )
        if any(block):
            findings.warn("P1", "sparsity_meta", "not zero, although the flag SPARSE is not set", offset=128)
        return None
    actual = zlib.crc32(block)
    if crc != actual:
        findings.error(
            "P1",
            "sparsity_crc32",
            "checksum mismatch: the sparsity metadata is damaged",
            offset=14,
            expected=f"{actual:#010x}",
            found=f"{crc:#010x}",
        )
    version, block_size, layers, mean = _SPARSITY.unpack(block)
    if version != 1:
        findings.error(
            "P6",
            "sparsity_version",
            "unsupported version of the sparsity metadata",
            kind="version",
            offset=128,
            expected=1,
            found=version,
        )
    if block_size == 0:
        findings.error("P6", "block_size", "invalid tile size", offset=132, expected="1 or more", found=0)
    return block_size, layers, mean


def _eagle(data: bytes, digest: int, flagged: bool, findings: Findings) -> tuple[int, int, int, int] | None:
    block = data[160:192]
    if not flagged:
        if digest:
            findings.warn(
                "P1",
                "eagle_hash",
                "set, although the flag EAGLE is not",
                offset=18,
                expected=0,
                found=f"{digest:#018x}",
            )
        if any(block):
            findings.warn("P1", "eagle_meta", "not zero, although the flag EAGLE is not set", offset=160)
        return None
    actual = fnv1a64(block)
    if digest != actual:
        findings.error(
            "P1",
            "eagle_hash",
            "checksum mismatch: the metadata of the draft head is damaged",
            offset=18,
            expected=f"{actual:#018x}",
            found=f"{digest:#018x}",
        )
    offset, length, layers, vocab = _EAGLE.unpack(block)
    return offset, length, layers, vocab


def _legacy(data: bytes, findings: Findings) -> dict[str, int | float]:
    if not any(data[26:52]) or any(data[52:128]):
        return {}
    findings.warn("P1", "reserved", "fields of a pre-1.0 header, shown as attributes legacy.*", offset=26)
    return dict(zip(_LEGACY_NAMES, _LEGACY.unpack_from(data, 26)))


def _reserved(data: bytes, findings: Findings, *, skip: bool) -> None:
    for start, stop in _RESERVED[1:] if skip else _RESERVED:
        for position in range(start, stop):
            if data[position]:
                findings.warn(
                    "P1", "reserved", "a reserved byte is not zero", offset=position, expected=0, found=data[position]
                )
                break


def parse_index(data: bytes, layers: int, size: int, findings: Findings) -> list[Layer]:
    """Parse the layer index (`data` starts at byte 256); entries must be ascending, in bounds and disjoint."""
    entries: list[Layer] = []
    floor, previous = SIZE + ENTRY.size * layers, -1
    for number in range(layers):
        at = SIZE + number * ENTRY.size
        index, offset, length, scale, reserved = ENTRY.unpack_from(data, number * ENTRY.size)
        entry = Layer(index, offset, length, scale, at)
        where = f"layer {index}"
        if index <= previous or index >= DRAFT_KEY:
            findings.error(
                "P2",
                where,
                "layers are not in ascending order",
                offset=at,
                expected=f"more than {previous}",
                found=index,
            )
        elif index != previous + 1:
            findings.warn("P2", where, "missing layers before it", offset=at, expected=previous + 1, found=index)
        if reserved:
            findings.warn(
                "P1",
                where,
                "the reserved word of its index entry is not zero",
                offset=at + 28,
                expected=0,
                found=reserved,
            )
        if length and (offset < floor or offset + length > size):
            fault = "overlaps the header or index" if offset < floor else "extends past the end of the file"
            findings.error(
                "P2",
                where,
                f"its weight block {fault}",
                kind="format" if offset < floor else "truncated",
                offset=at + 4,
                expected=f"{floor}..{size}",
                found=f"{offset}..{offset + length}",
            )
        previous = max(previous, index)
        entries.append(entry)
    by_offset = sorted((entry for entry in entries if entry.length), key=lambda entry: entry.offset)
    for before, after in zip(by_offset, by_offset[1:]):
        if before.offset + before.length > after.offset:
            findings.error(
                "P2",
                f"layer {after.number}",
                f"its weight block overlaps that of layer {before.number}",
                offset=after.at + 4,
                expected=f"{before.offset + before.length} or more",
                found=after.offset,
            )
    return entries
