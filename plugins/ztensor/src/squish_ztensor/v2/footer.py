"""The file structure of v2: magic at both ends, a footer of 40 bytes, a hashed manifest (Draft 4; wires 6.1)."""

from __future__ import annotations

import struct

from squish_core.api import FormatError, LimitError, Limits, Source, TruncatedError, UnsupportedVersionError

MAGIC = b"\x89ZT2\r\n\x1a\n"
SIZE = 40
ALIGNMENT, CANONICAL = 4096, 65536
"""Alignment of every blob, and of those in canonical files."""
CAP = 1 << 30
_LAYOUT = struct.Struct("<QQQII8s")


def pack(offset: int, manifest: bytes) -> bytes:
    """Return the footer of a file with this manifest at `offset`."""
    import xxhash

    return _LAYOUT.pack(offset, len(manifest), xxhash.xxh3_64_intdigest(manifest), 2, 0, MAGIC)


def read(source: Source) -> tuple[int, int, int]:
    """Read offset, length and hash of the manifest, all 0 in a data shard; FormatError if damaged or newer."""
    if source.size < len(MAGIC) + SIZE:
        raise TruncatedError(
            "truncated: too short for zTensor v2",
            expected=f"at least {len(MAGIC) + SIZE} bytes",
            found=f"{source.size} bytes",
            code="truncated",
            hint="Download the file again.",
        )
    at = source.size - SIZE
    offset, length, digest, version, _, magic = _LAYOUT.unpack(source.read(at, SIZE, "the footer"))
    if magic != MAGIC:
        raise TruncatedError(
            "no footer magic: the file is truncated, or bytes were appended",
            offset=source.size - len(MAGIC),
            expected=MAGIC,
            found=magic,
            code="footer",
            hint="Download the file again.",
        )
    if version != 2:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        raise UnsupportedVersionError(
            "unsupported zTensor version",
            offset=at + 24,
            expected="2",
            found=version,
            code="version",
            hint="The byte order is swapped." if swapped == 2 else "A newer squish-ztensor may read it.",
        )
    return offset, length, digest


def manifest_range(source: Source, limits: Limits) -> tuple[int, int]:
    """Return offset and length of the manifest, both 0 in a data shard, after checking its bounds, not its hash."""
    offset, length, digest = read(source)
    at = source.size - SIZE
    if not (offset or length or digest):
        return 0, 0
    if length > CAP:
        raise LimitError(
            "the manifest is larger than 1 GiB",
            offset=at + 8,
            expected=f"at most {CAP} bytes",
            found=length,
            code="manifest-size",
        )
    if not length:
        raise FormatError(
            "the manifest is empty", offset=at + 8, expected="at least 1 byte", found=0, code="manifest-size"
        )
    if offset < ALIGNMENT or offset + length > at:
        raise FormatError(
            "the manifest is out of bounds",
            offset=at,
            expected=f"{ALIGNMENT} to {at}",
            found=f"{offset} to {offset + length}",
            code="bounds",
        )
    if offset % ALIGNMENT:
        raise FormatError(
            "the offset of the manifest is not aligned",
            offset=at,
            expected=f"a multiple of {ALIGNMENT}",
            found=offset,
            code="alignment",
        )
    # Check one byte before reading a gigabyte.
    if (first := source.read(offset, 1))[0] >> 5 != 5:
        raise FormatError(
            "the manifest is not a map in CBOR",
            offset=offset,
            expected="a map",
            found=f"byte 0x{first.hex()}",
            code="manifest",
        )
    if length > limits.header:
        raise LimitError(
            "the manifest is too large",
            offset=at + 8,
            expected=f"at most {limits.header} bytes",
            found=length,
            code="manifest-size",
            limit="header",
        )
    return offset, length


def check_hash(source: Source, data: bytes) -> None:
    """Raise FormatError unless the manifest matches its hash."""
    import xxhash

    expected, found = read(source)[2], xxhash.xxh3_64_intdigest(data)
    if expected != found:
        raise FormatError(
            "hash mismatch of the manifest",
            offset=source.size - 24,
            expected=f"{expected:016x}",
            found=f"{found:016x}",
            code="manifest-hash",
            hint="The file is damaged; download it again.",
        )
