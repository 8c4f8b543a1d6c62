"""Where the manifest lies: magics, footer and size of the v1.1 container (spec I.1, IV.1), other wires by name."""

from __future__ import annotations

from squish_core.api import FormatError, LimitError, Limits, Source, TruncatedError, UnsupportedVersionError

MAGIC = b"ZTEN1000"
FOOTER = 16
"""Bytes after the manifest: its size as u64 LE, and the magic again."""
CAP = 1 << 30
"""Manifest bytes above which the specification says to abort (IV.1, step 4)."""

_OTHER_WIRES = {b"ZTEN0001": "v0.1", b"\x89ZT2\r\n\x1a\n": "v2"}
_MAP = 5  # CBOR major type


def manifest_range(source: Source, limits: Limits) -> tuple[int, int]:
    """Offset and length of the manifest; a FormatError that tells a cut file from a damaged or another one."""
    head = source.read(0, min(len(MAGIC), source.size))
    if len(head) < len(MAGIC):
        raise TruncatedError(
            "is shorter than the magic of zTensor", expected=f"{len(MAGIC)} bytes", found=f"{len(head)} bytes",
            code="truncated", hint="Fetch the file again.",
        )  # fmt: skip
    if head in _OTHER_WIRES:
        raise _other_wire(_OTHER_WIRES[head])
    if head != MAGIC:
        raise FormatError(
            "the header magic is wrong, though the footer looks like zTensor v1.1", offset=0,
            expected=MAGIC, found=head, code="magic", hint="The start of the file is damaged; fetch it again.",
        )  # fmt: skip
    if source.size < len(MAGIC) + FOOTER:
        raise TruncatedError(
            "is too short to hold a manifest: cut after the header", expected=f"at least {len(MAGIC) + FOOTER} bytes",
            found=f"{source.size} bytes", code="truncated", hint="Fetch the file again.",
        )  # fmt: skip
    if source.read(source.size - len(MAGIC), len(MAGIC)) != MAGIC:
        raise _no_footer(source)
    length = _u64(source, source.size - FOOTER)
    start = source.size - FOOTER - length
    _check_range(source, start, length, limits)
    return start, length


def _check_range(source: Source, start: int, length: int, limits: Limits) -> None:
    at = source.size - FOOTER
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
    # One byte shows that it is no map, before a gigabyte of zeros is read.
    if not _is_map(source, start):
        raise FormatError(
            "the manifest's root is not a map", offset=start, expected="a CBOR map",
            found=f"byte 0x{source.read(start, 1).hex()}", code="manifest",
        )  # fmt: skip
    if length > limits.header:
        raise LimitError(
            "the manifest is too large", offset=at, expected=f"at most {limits.header} bytes", found=length,
            code="manifest-size", hint="Raise Limits(header=...) if you trust the file.",
        )  # fmt: skip


def _no_footer(source: Source) -> FormatError:
    """The error for a file without the footer magic: a v1.0 file, or a v1.1 file that is cut or has a tail."""
    length = _u64(source, source.size - 8)
    start = source.size - 8 - length
    if length and start >= len(MAGIC) and _is_map(source, start):
        return _other_wire("v1.0")
    window = min(64, source.size - len(MAGIC))
    at = source.read(source.size - window, window).rfind(MAGIC)
    after = f"; {window - at - len(MAGIC)} bytes follow a footer" if at >= 0 else ""
    return TruncatedError(
        f"footer magic missing: truncated v1.1/v1.2 file or damaged v1.0 file{after}",
        offset=source.size - len(MAGIC), expected=MAGIC, found=source.read(source.size - len(MAGIC), len(MAGIC)),
        code="footer", hint="Remove the trailing bytes." if after else "Fetch the file again.",
    )  # fmt: skip


def _other_wire(wire: str) -> UnsupportedVersionError:
    return UnsupportedVersionError(
        f"is a zTensor {wire} file", expected="zTensor 1.1 (or 1.2)", found=wire, code="version",
        hint="Convert it to 1.1 with the software that wrote it.",
    )  # fmt: skip


def _is_map(source: Source, offset: int) -> bool:
    return source.read(offset, 1)[0] >> 5 == _MAP


def _u64(source: Source, offset: int) -> int:
    return int.from_bytes(source.read(offset, 8), "little")
