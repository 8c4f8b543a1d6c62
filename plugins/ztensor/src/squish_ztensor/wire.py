"""Version of a file and place of its manifest, from magics, footer and size (spec I.1, IV.1; v2: `footer`)."""

from __future__ import annotations

from attrs import frozen

from squish_core.api import (
    FormatError,
    LimitError,
    Limits,
    Source,
    SquishError,
    TruncatedError,
    UnknownFormatError,
    lookalike,
)

from .v2 import footer

MAGIC = b"ZTEN1000"
FOOTER = 16
"""Bytes after the manifest: its size as u64, and the magic again."""
CAP = 1 << 30
"""Maximum manifest size that the specification allows (IV.1, step 4)."""

MAGIC_0_1 = b"ZTEN0001"
_ARRAY, _MAP = 4, 5  # CBOR major types


@frozen
class Location:
    """Version ("0.1", "1.0", "1.1", "2"), offset and length of a manifest."""

    wire: str
    offset: int
    length: int


def locate(source: Source, limits: Limits) -> Location:
    """Find the manifest; the FormatError says whether the file is truncated, damaged or something else."""
    head = source.read(0, min(len(MAGIC), source.size))
    if len(head) < len(MAGIC):
        raise TruncatedError(
            "truncated: shorter than the magic of zTensor",
            expected=f"{len(MAGIC)} bytes",
            found=f"{len(head)} bytes",
            code="truncated",
            hint="Download the file again.",
        )
    if head == footer.MAGIC:
        return Location("2", *footer.manifest_range(source, limits))
    if head == MAGIC_0_1:
        return _before_size(source, limits, "0.1", _ARRAY)
    if head != MAGIC:
        raise _magic_error(source, head)
    if source.size < len(MAGIC) + FOOTER:
        raise TruncatedError(
            "truncated after the header: too short for a manifest",
            expected=f"at least {len(MAGIC) + FOOTER} bytes",
            found=f"{source.size} bytes",
            code="truncated",
            hint="Download the file again.",
        )
    tail = source.read(source.size - FOOTER, FOOTER)
    if tail[8:] != MAGIC:
        length = int.from_bytes(tail[8:], "little")
        start = source.size - 8 - length
        if not length or start < len(MAGIC) or source.read(start, 1)[0] >> 5 != _MAP:
            raise no_footer(source)
        return _before_size(source, limits, "1.0", _MAP)
    length = int.from_bytes(tail[:8], "little")
    start = source.size - FOOTER - length
    _check_range(source, start, length, limits, source.size - FOOTER, _MAP)
    return Location("1.1", start, length)


def _magic_error(source: Source, head: bytes) -> SquishError:
    """Return the error for a file without the magic of zTensor: damaged, or another format."""
    tail = source.read(source.size - len(MAGIC), len(MAGIC))
    if tail in (MAGIC, footer.MAGIC):
        return FormatError(
            f"bad magic at the start, although the file ends like zTensor {'v1.1' if tail == MAGIC else 'v2'}",
            offset=0,
            expected=tail,
            found=head,
            code="magic",
            hint="The start of the file is damaged; download it again.",
        )
    other = lookalike(source.read(0, min(80, source.size)), text=True)
    if other:
        return UnknownFormatError(f"is {other[0]}", code="lookalike", hint=other[1])
    return FormatError("not a zTensor file (bad magic)", offset=0, expected=MAGIC, found=head, code="magic")


def _before_size(source: Source, limits: Limits, wire: str, major: int) -> Location:
    """Find a manifest that is followed by its size at the end of the file (0.1, 1.0)."""
    at = source.size - 8
    if at <= len(MAGIC):
        raise TruncatedError(
            "truncated: too short for a manifest",
            expected=f"at least {len(MAGIC) + 9} bytes",
            found=f"{source.size} bytes",
            code="truncated",
            hint="Download the file again.",
        )
    length = int.from_bytes(source.read(at, 8), "little")
    _check_range(source, at - length, length, limits, at, major)
    return Location(wire, at - length, length)


def _check_range(source: Source, start: int, length: int, limits: Limits, at: int, major: int) -> None:
    if length > CAP:
        raise LimitError(
            "the manifest is larger than 1 GiB",
            offset=at,
            expected=f"at most {CAP} bytes",
            found=length,
            code="manifest-size",
        )
    if not length:
        raise FormatError("the manifest is empty", offset=at, expected="at least 1 byte", found=0, code="manifest-size")
    if start < len(MAGIC):
        fault = "is larger than the file" if start < 0 else "overlaps the header"
        raise FormatError(
            f"the manifest {fault}",
            offset=at,
            expected=f"at most {at - len(MAGIC)} bytes",
            found=length,
            code="manifest-size",
        )
    # Check one byte before reading a gigabyte of zeros.
    if (first := source.read(start, 1))[0] >> 5 != major:
        kind = "a map" if major == _MAP else "an array"
        raise FormatError(
            f"the manifest is not {kind} in CBOR",
            offset=start,
            expected=f"{kind}",
            found=f"byte 0x{first.hex()}",
            code="manifest",
        )
    if length > limits.header:
        raise LimitError(
            "the manifest is too large",
            offset=at,
            expected=f"at most {limits.header} bytes",
            found=length,
            code="manifest-size",
            limit="header",
        )


def no_footer(source: Source, why: str = "") -> FormatError:
    """Return the error for a file without the footer magic that is not a valid v1.0 file: truncated, or with a tail."""
    window = min(64, source.size - len(MAGIC))
    at = source.read(source.size - window, window).rfind(MAGIC)
    after = f"; {window - at - len(MAGIC)} bytes after a footer" if at >= 0 else ""
    return TruncatedError(
        f"no footer magic: a truncated v1.1 or v1.2 file, or a damaged v1.0 file{after}{why}",
        offset=source.size - len(MAGIC),
        expected=MAGIC,
        found=source.read(source.size - len(MAGIC), len(MAGIC)),
        code="footer",
        hint="Remove the trailing bytes." if after else "Download the file again.",
    )
