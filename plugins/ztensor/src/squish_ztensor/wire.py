"""Which wire a file is, and where its manifest lies: magics, footer and size (spec I.1, IV.1; v2: see `footer`)."""

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
"""Bytes after the manifest: its size as u64 LE, and the magic again."""
CAP = 1 << 30
"""Manifest bytes above which the specification says to abort (IV.1, step 4)."""

MAGIC_0_1 = b"ZTEN0001"
_ARRAY, _MAP = 4, 5  # CBOR major types


@frozen
class Located:
    """A manifest's wire ("0.1", "1.0", "1.1", "2"), offset and length."""

    wire: str
    offset: int
    length: int


def locate(source: Source, limits: Limits) -> Located:
    """Where the manifest lies; a FormatError that tells a cut file from a damaged or another one."""
    head = source.read(0, min(len(MAGIC), source.size))
    if len(head) < len(MAGIC):
        raise TruncatedError(
            "is shorter than the magic of zTensor", expected=f"{len(MAGIC)} bytes", found=f"{len(head)} bytes",
            code="truncated", hint="Fetch the file again.",
        )  # fmt: skip
    if head == footer.MAGIC:
        return Located("2", *footer.manifest_range(source, limits))
    if head == MAGIC_0_1:
        return _before_size(source, limits, "0.1", _ARRAY)
    if head != MAGIC:
        raise _other_start(source, head)
    if source.size < len(MAGIC) + FOOTER:
        raise TruncatedError(
            "is too short to hold a manifest: cut after the header", expected=f"at least {len(MAGIC) + FOOTER} bytes",
            found=f"{source.size} bytes", code="truncated", hint="Fetch the file again.",
        )  # fmt: skip
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
    return Located("1.1", start, length)


def _other_start(source: Source, head: bytes) -> SquishError:
    """The error for a file that does not begin as zTensor: a damaged one, or something else."""
    tail = source.read(source.size - len(MAGIC), len(MAGIC))
    if tail in (MAGIC, footer.MAGIC):
        return FormatError(
            f"the header magic is wrong, though the footer looks like zTensor {'v1.1' if tail == MAGIC else 'v2'}",
            offset=0, expected=tail, found=head, code="magic", hint="The start of the file is damaged; fetch it again.",
        )  # fmt: skip
    other = lookalike(source.read(0, min(80, source.size)), text=True)
    if other:
        return UnknownFormatError(f"is {other[0]}", code="lookalike", hint=other[1])
    return FormatError("not a zTensor file (bad magic)", offset=0, expected=MAGIC, found=head, code="magic")


def _before_size(source: Source, limits: Limits, wire: str, major: int) -> Located:
    """A manifest with its size behind it at the end of the file (0.1, 1.0)."""
    at = source.size - 8
    if at <= len(MAGIC):
        raise TruncatedError(
            "is too short to hold a manifest", expected=f"at least {len(MAGIC) + 9} bytes",
            found=f"{source.size} bytes", code="truncated", hint="Fetch the file again.",
        )  # fmt: skip
    length = int.from_bytes(source.read(at, 8), "little")
    _check_range(source, at - length, length, limits, at, major)
    return Located(wire, at - length, length)


def _check_range(source: Source, start: int, length: int, limits: Limits, at: int, major: int) -> None:
    if length > CAP:
        raise LimitError(
            "the manifest is over the limit of 1 GiB", offset=at, expected=f"at most {CAP} bytes", found=length,
            code="manifest-size",
        )  # fmt: skip
    if not length:
        raise FormatError("the manifest is empty", offset=at, expected="at least 1 byte", found=0, code="manifest-size")
    if start < len(MAGIC):
        what = "is larger than the file" if start < 0 else "overlaps the header"
        raise FormatError(
            f"the manifest {what}", offset=at, expected=f"at most {at - len(MAGIC)} bytes", found=length,
            code="manifest-size",
        )  # fmt: skip
    # One byte shows that it is none, before a gigabyte of zeros is read.
    if (first := source.read(start, 1))[0] >> 5 != major:
        kind = "a map" if major == _MAP else "an array"
        raise FormatError(
            f"the manifest's root is not {kind}", offset=start, expected=f"{kind} of CBOR",
            found=f"byte 0x{first.hex()}", code="manifest",
        )  # fmt: skip
    if length > limits.header:
        raise LimitError(
            "the manifest is too large", offset=at, expected=f"at most {limits.header} bytes", found=length,
            code="manifest-size", limit="header",
        )  # fmt: skip


def no_footer(source: Source, why: str = "") -> FormatError:
    """The error for a file without the footer magic that is not a v1.0 file either: cut, or with a tail."""
    window = min(64, source.size - len(MAGIC))
    at = source.read(source.size - window, window).rfind(MAGIC)
    after = f"; {window - at - len(MAGIC)} bytes follow a footer" if at >= 0 else ""
    return TruncatedError(
        f"footer magic missing: truncated v1.1/v1.2 file or damaged v1.0 file{after}{why}",
        offset=source.size - len(MAGIC), expected=MAGIC, found=source.read(source.size - len(MAGIC), len(MAGIC)),
        code="footer", hint="Remove the trailing bytes." if after else "Fetch the file again.",
    )  # fmt: skip
