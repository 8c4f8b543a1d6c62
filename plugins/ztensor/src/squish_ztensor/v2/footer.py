"""The container of v2: magic at both ends, a footer of 40 bytes, a hashed manifest (Draft 4; wires 6.1)."""

from __future__ import annotations

import struct

from squish_core.api import FormatError, LimitError, Limits, Source, TruncatedError, UnsupportedVersionError

MAGIC = b"\x89ZT2\r\n\x1a\n"
SIZE = 40
ALIGNMENT = 4096
CAP = 1 << 30
_LAYOUT = struct.Struct("<QQQII8s")


def pack(offset: int, manifest: bytes) -> bytes:
    """The footer of a file with this manifest at `offset`."""
    import xxhash

    return _LAYOUT.pack(offset, len(manifest), xxhash.xxh3_64_intdigest(manifest), 2, 0, MAGIC)


def read(source: Source) -> tuple[int, int, int]:
    """Manifest offset, length and hash, all 0 in a data shard; FormatError for a damaged, cut or newer file."""
    if source.size < len(MAGIC) + SIZE:
        raise TruncatedError(
            "is too short for zTensor v2", expected=f"at least {len(MAGIC) + SIZE} bytes",
            found=f"{source.size} bytes", code="truncated", hint="Fetch the file again.",
        )  # fmt: skip
    at = source.size - SIZE
    offset, length, digest, version, _, magic = _LAYOUT.unpack(source.read(at, SIZE, "the footer"))
    if magic != MAGIC:
        raise TruncatedError(
            "footer magic missing: the file is truncated, or bytes were appended", offset=source.size - len(MAGIC),
            expected=MAGIC, found=magic, code="footer", hint="Fetch the file again.",
        )  # fmt: skip
    if version != 2:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        raise UnsupportedVersionError(
            f"unsupported version {version}", offset=at + 24, expected="2", found=version, code="version",
            hint="Its bytes are swapped." if swapped == 2 else "A newer squish-ztensor may read it.",
        )  # fmt: skip
    return offset, length, digest


def manifest_range(source: Source, limits: Limits) -> tuple[int, int]:
    """Offset and length of the manifest, both 0 in a data shard; its bounds are checked and its hash is not."""
    offset, length, digest = read(source)
    at = source.size - SIZE
    if not (offset or length or digest):
        return 0, 0
    if length > CAP:
        raise LimitError(
            "the manifest is too large: over 1 GiB", offset=at + 8, expected=f"at most {CAP} bytes", found=length,
            code="manifest-size",
        )  # fmt: skip
    if not length:
        raise FormatError(
            "the manifest is empty", offset=at + 8, expected="at least 1 byte", found=0, code="manifest-size"
        )
    if offset < ALIGNMENT or offset + length > at:
        raise FormatError(
            "the manifest lies outside the file's body", offset=at, expected=f"{ALIGNMENT} to {at}",
            found=f"{offset} to {offset + length}", code="bounds",
        )  # fmt: skip
    if offset % ALIGNMENT:
        raise FormatError(
            "the manifest's offset is not aligned", offset=at, expected=f"a multiple of {ALIGNMENT}", found=offset,
            code="alignment",
        )  # fmt: skip
    # One byte shows that it is none, before a gigabyte is read.
    if (first := source.read(offset, 1))[0] >> 5 != 5:
        raise FormatError(
            "the manifest's root is not a map", offset=offset, expected="a map of CBOR",
            found=f"byte 0x{first.hex()}", code="manifest",
        )  # fmt: skip
    if length > limits.header:
        raise LimitError(
            "the manifest is too large", offset=at + 8, expected=f"at most {limits.header} bytes", found=length,
            code="manifest-size", limit="header",
        )  # fmt: skip
    return offset, length


def check_hash(source: Source, data: bytes) -> None:
    """The manifest's bytes are those that were written."""
    import xxhash

    expected, found = read(source)[2], xxhash.xxh3_64_intdigest(data)
    if expected != found:
        raise FormatError(
            "the manifest's hash does not match", offset=source.size - 24, expected=f"{expected:016x}",
            found=f"{found:016x}", code="manifest-hash", hint="The file is damaged; fetch it again.",
        )  # fmt: skip
