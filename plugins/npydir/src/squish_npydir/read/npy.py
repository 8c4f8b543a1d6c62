"""The header of a .npy file: bounded, never evaluated, checked against the file size."""

from __future__ import annotations

import re
from functools import lru_cache

from attrs import frozen

from squish_core.api import ErrorCode, FormatError, LimitError, Limits, TruncatedError, check_shape, dtypes

MAGIC = b"\x93NUMPY"
MAX_HEADER = 10_000
"""Maximum header size, which is also NumPy's default."""

PREFIX = 12
"""Bytes that contain the header length."""

_LENGTHS = {b"\x01\x00": 2, b"\x02\x00": 4, b"\x03\x00": 4}
_ITEM = re.compile(
    r"""\s*(?P<q>['"])(?P<key>\w{1,32})(?P=q)\s*:\s*
    (?: (?P<r>['"])(?P<text>[^'"\\]{0,32})(?P=r) | (?P<flag>True|False) | \((?P<shape>[\dL,\s]*)\) )
    \s*(?:,\s*|(?=\}))""",
    re.VERBOSE,
)
_KINDS = {"descr": "text", "fortran_order": "flag", "shape": "shape"}
_DTYPES = {
    "i1": "i8", "u1": "u8", "b1": "bool", "i2": "i16", "u2": "u16", "f2": "f16", "i4": "i32", "u4": "u32", "f4": "f32",
    "i8": "i64", "u8": "u64", "f8": "f64",
}  # fmt: skip


@frozen
class Npy:
    """An array in a .npy file: data offset, dtype and shape."""

    dtype: str
    shape: tuple[int, ...]
    byteorder: str
    offset: int

    @property
    def nbytes(self) -> int:
        """Size of the data in bytes."""
        return dtypes.nbytes(self.dtype, self.shape)


def parse(head: bytes, size: int | None, limits: Limits) -> Npy:
    """Parse the header of a file of `size` bytes (None: unknown); `head` is all of the header.

    FormatError for objects (pickles), structured and text types, Fortran order of matrices, duplicate or unknown keys,
    and a size that does not match header and data. Source: NEP 1.
    """
    fields = _parsed(head, limits)
    begin = fields.offset
    if size is not None and size != begin + fields.nbytes:
        kind = TruncatedError if size < begin + fields.nbytes else FormatError
        fault = "truncated" if size < begin + fields.nbytes else "unexpected bytes after the array"
        raise kind(fault, offset=begin, expected=f"{begin + fields.nbytes} bytes", found=f"{size} bytes", code="size")
    return fields


@lru_cache(1 << 12)
def _parsed(head: bytes, limits: Limits) -> Npy:
    """Parse a header; cached, since a model has many files with few distinct headers."""
    text = _text(head)
    fields = _fields(text)
    dtype, byteorder = _dtype(fields["descr"])
    shape = _shape(fields["shape"], limits)
    if fields["fortran_order"] == "True" and sum(length > 1 for length in shape) > 1:
        raise FormatError(
            "unsupported Fortran order",
            expected="C order",
            found=f"shape {list(shape)}",
            code="order",
            hint="Save numpy.ascontiguousarray(array) instead.",
        )
    return Npy(dtype, shape, byteorder, len(MAGIC) + 2 + _LENGTHS[head[6:8]] + len(text))


def header_size(first: bytes) -> int:
    """Return the data offset from the first PREFIX bytes of a file."""
    return 8 + sum(_lengths(first))


def header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """Return NumPy's header for a C-order array: version 1.0, padded to 64 bytes."""
    code = next(code for code, name in _DTYPES.items() if name == dtype)
    descr = f"{'|' if code[1] == '1' else '<'}{code}"
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape!r}, }}"
    text += " " * (21 - len(str(shape[0]))) if shape else ""  # NumPy reserves room for the first axis to grow
    length = -(-(len(MAGIC) + 4 + len(text) + 1) // 64) * 64
    body = text.ljust(length - len(MAGIC) - 5) + "\n"
    return MAGIC + b"\x01\x00" + len(body).to_bytes(2, "little") + body.encode("latin-1")


WRITABLE = tuple(_DTYPES.values())


def _text(head: bytes) -> str:
    """Return the text of the header."""
    width, length = _lengths(head)
    text = head[8 + width : 8 + width + length]
    if len(text) < length:
        raise TruncatedError(
            "truncated header", expected=f"{8 + width + length} bytes", found=f"{len(head)} bytes", code="size"
        )
    return text.decode("latin-1")


def _lengths(head: bytes) -> tuple[int, int]:
    """Return the size of the length field, and the header length."""
    if not head.startswith(MAGIC):
        raise FormatError(
            "not a .npy file (bad magic)",
            offset=0,
            expected=repr(MAGIC),
            found=repr(head[:6]) if head else "an empty file",
            code="magic",
        )
    width = _LENGTHS.get(head[6:8], 0)
    if len(head) >= 8 and not width:
        raise FormatError(
            "unknown .npy version", offset=6, expected="1.0, 2.0 or 3.0", found=list(head[6:8]), code="version"
        )
    if not width or len(head) < 8 + width:
        raise TruncatedError("truncated header", expected="10 bytes or more", found=f"{len(head)} bytes", code="size")
    length = int.from_bytes(head[8 : 8 + width], "little")
    if length > MAX_HEADER:
        raise LimitError(
            "header too long", offset=8, expected=f"at most {MAX_HEADER} bytes", found=length, code="header"
        )
    return width, length


def _fields(text: str) -> dict[str, str]:
    """Parse the three entries of the header by pattern, without evaluating the literal."""
    body = text.strip()
    place, fields = 1, dict[str, str]()
    while body[:1] == "{" and (item := _ITEM.match(body, place)):
        key = item["key"]
        if key in fields:
            raise FormatError("duplicate key in the header", found=key, code=ErrorCode.DUPLICATE)
        if key not in _KINDS or item[_KINDS[key]] is None:
            break
        fields[key] = item[_KINDS[key]]
        place = item.end()
    if body[place:] != "}" or len(fields) != len(_KINDS):
        content = "an array of objects, stored as a pickle" if "'O'" in body or "|O" in body else None
        raise FormatError(
            "unsupported header",
            expected="descr, fortran_order and shape",
            found=content or repr(body[:80]),
            code="npy-header",
            hint="Only arrays of numbers are supported, not structured or text arrays.",
        )
    return fields


def _dtype(descr: str) -> tuple[str, str]:
    """Return dtype and byte order of a numeric type."""
    dtype = _DTYPES.get(descr[1:])
    if dtype is None or descr[0] not in "<>|=" or (descr[0] == "|" and descr[2:] != "1"):
        fault = "an array of Python objects, stored as a pickle" if "O" in descr else "unsupported dtype"
        raise FormatError(fault, expected=", ".join(_DTYPES), found=repr(descr), code="dtype")
    return dtype, ">" if descr[0] == ">" and descr[2:] != "1" else "<"


def _shape(text: str, limits: Limits) -> tuple[int, ...]:
    numbers = [piece.strip().removesuffix("L") for piece in text.split(",")]
    if not numbers[-1]:
        numbers.pop()
    if not all(number.isdecimal() and len(number) < 20 for number in numbers) or (numbers and "," not in text):
        raise FormatError("invalid shape", found=repr(text[:80]), code="shape")
    return check_shape([int(number) for number in numbers], limits, tensor="")
