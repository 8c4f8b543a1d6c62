"""A bounds-checked cursor over the head of a file; GGUF does not state its length, so windows grow as needed."""

from __future__ import annotations

from struct import Struct
from typing import Any

from squish_core.api import FormatError, LimitError, Limits, Problem, Source, TruncatedError

from .types import ARRAY_HEAD, MAX_DEPTH, MAX_INNER, SCALARS, VALUES
from .values import GgufArray, big_endian, little_endian, text, unpack

_WINDOW = 4096
_SMALL = 64 << 10
"""Up to this size the window doubles; larger ones extend `_AHEAD` past the likely end."""
_AHEAD = 1.25
_U32, _U64 = SCALARS["u32"], SCALARS["u64"]


class Cursor:
    """Read forward from byte 0.

    `what` names the current field in errors; `problems` collects findings. With `big` the file is big-endian:
    values read the same, and arrays are swapped to little-endian bytes. `run` is the array or table being walked:
    its start, the items walked so far and their count.
    """

    def __init__(self, source: Source, limits: Limits) -> None:
        self.source, self.limits = source, limits
        self.data, self.at, self.what = memoryview(b""), 0, "the header"
        self.inner = 0
        self.run = (0, 0, 0)
        self.problems: list[Problem] = []
        self.big = False

    def need(self, end: int) -> None:
        """Grow the window to cover the file up to `end`."""
        have = len(self.data)
        if end <= have:
            return
        if end > self.source.size:
            raise self.truncated(end)
        if end > self.limits.header:
            raise LimitError(
                f"{self.what} makes the header too long",
                offset=self.at,
                expected=f"at most {self.limits.header} bytes",
                found=f"at least {end}",
                code="header",
                limit="header",
            )
        most = min(self.source.size, self.limits.header)
        if self.source.cheap_views:
            # A view, not a copy: a damaged length may reach over gigabytes of tensor data.
            self.data = self.source.view(0, min(max(end, 2 * have, _WINDOW), most), self.what)
            return
        ahead = int(max(end, self._likely_end()) * _AHEAD)
        size = min(max(end, 2 * have, _WINDOW), _SMALL) if end <= _SMALL else ahead
        size = min(size, most)
        grown = bytearray(size)
        grown[:have] = self.data
        self.source.read_into(have, memoryview(grown)[have:], self.what)
        self.data = memoryview(grown).toreadonly()

    def _likely_end(self) -> int:
        """Estimate the end of the current run of items from the items walked so far."""
        start, done, count = self.run
        return self.at + (count - done) * (self.at - start) // done if done else 0

    def room_for(self, count: int, smallest: int) -> None:
        """Raise before a loop if the rest of the file cannot hold `count` entries."""
        if count * smallest > self.source.size - self.at:
            raise self.truncated(self.at + count * smallest, f"{count} entries of at least {smallest} bytes")

    def at_most(self, most: int, count: int, things: str, *, limit: str | None = None) -> None:
        """Raise if a count exceeds what real files contain: each entry is parsed individually."""
        if count > most:
            raise LimitError(
                f"{self.what} has too many {things}",
                offset=self.at,
                expected=f"at most {most}",
                found=count,
                code="count",
                limit=limit,
            )

    def truncated(self, end: int, why: str | None = None) -> TruncatedError:
        """Return the error for a file shorter than `end`."""
        return TruncatedError(
            f"truncated in {self.what}: the file has {self.source.size} of {end} bytes",
            offset=self.at,
            expected=why,
            code="truncated",
            hint="The file is truncated (an interrupted download?) or damaged; fetch it again.",
        )

    def wrong(self, message: str, at: int, *, expected: Any = None, found: Any = None, code: str) -> FormatError:
        """Return the error for an invalid field."""
        return FormatError(f"{self.what} {message}", offset=at, expected=expected, found=found, code=code)

    def take(self, form: Struct) -> tuple[Any, ...]:
        """Unpack the next fields."""
        form = big_endian(form) if self.big else form
        start, end = self.at, self.at + form.size
        if end > len(self.data):
            self.need(end)
        self.at = end
        return form.unpack_from(self.data, start)

    def skip(self, length: int) -> int:
        """Step over bytes, loading them into the window; returns their start."""
        start = self.at
        self.need(start + length)
        self.at = start + length
        return start

    def string(self, longest: int | None = None) -> bytes:
        """Read a length-prefixed string."""
        at = self.at
        (length,) = self.take(_U64)
        if longest is not None and length > longest:
            raise self.wrong("is too long", at, expected=f"at most {longest}", found=f"{length} bytes", code="name")
        return self.copy(self.skip(length), self.at)

    def copy(self, start: int, end: int) -> bytes:
        """Copy bytes out of the window."""
        return bytes(self.data[start:end])

    def kind(self) -> str:
        """Read a metadata type code and return its name."""
        at = self.at
        (code,) = self.take(_U32)
        return self.type_name(code, at)

    def type_name(self, code: int, at: int) -> str:
        """Return the name of a metadata type code."""
        if code >= len(VALUES):
            raise self.wrong("has an unknown type", at, expected=f"0 to {len(VALUES) - 1}", found=code, code="type")
        return VALUES[code]

    def value(self, kind: str) -> tuple[str, Any]:
        """Read a metadata value: its full type ("array:..." for arrays) and the value for `Typed`."""
        if kind == "str":
            value = text(self.string())
            if isinstance(value, bytes):
                self.note("is not UTF-8; kept as bytes")
            return kind, value
        if kind != "array":
            start = self.skip(SCALARS[kind].size)
            if kind == "bool":
                self._check_bools(start)
            raw = self.data[start : self.at]
            return kind, unpack(kind, bytes(raw)[::-1] if self.big else raw, 0)
        array = self._array()
        return f"array:{array.kind}", array

    def note(self, message: str) -> None:
        """Record a warning about the current field."""
        self.problems.append(Problem(code="utf-8", severity="warning", where=self.what, message=message))

    def _array(self) -> GgufArray:
        start = self.at
        kind, count = self._walk(1)
        raw = self.copy(start + ARRAY_HEAD.size, self.at)
        return GgufArray(kind, count, little_endian(kind, count, raw) if self.big else raw)

    def _walk(self, depth: int) -> tuple[str, int]:
        """Step over an array without allocating by its count; returns element type and count."""
        at = self.at
        code, count = self.take(ARRAY_HEAD)
        kind = self.type_name(code, at)
        if kind == "str":
            self._walk_strings(count)
        elif kind == "array":
            kind = self._walk_arrays(count, depth)
        else:
            self.room_for(count, SCALARS[kind].size)
            start = self.skip(count * SCALARS[kind].size)
            if kind == "bool":
                self._check_bools(start)
        return kind, count

    def _walk_arrays(self, count: int, depth: int) -> str:
        if depth >= min(MAX_DEPTH, self.limits.depth):
            raise LimitError(
                f"{self.what} nests arrays too deep",
                offset=self.at,
                expected=f"at most {MAX_DEPTH} levels",
                code="depth",
            )
        self.room_for(count, ARRAY_HEAD.size)
        self.inner += count
        self.at_most(MAX_INNER, self.inner, "inner arrays")
        inner = None
        for _ in range(count):
            at = self.at
            kind, _ = self._walk(depth + 1)
            if inner not in (None, kind):
                raise self.wrong("has inner arrays of different types", at, expected=inner, found=kind, code="type")
            inner = kind
        return f"array:{inner or 'u32'}"

    def _walk_strings(self, count: int) -> None:
        """Step over strings. The loop is kept tight: vocabularies have hundreds of thousands."""
        self.room_for(count, _U64.size)
        data, start = self.data, self.at
        length_at = (big_endian(_U64) if self.big else _U64).unpack_from
        at, have = start, len(data)
        long = []
        for number in range(count):
            if at + 8 > have:
                self.at, self.run = at, (start, number, count)
                self.need(at + 8)
                data = self.data
                have = len(data)
            (length,) = length_at(data, at)
            if length > 127:
                long.append(at)
            at += 8 + length
        self.run = (0, 0, 0)
        self.need(at)
        self.at = at
        # Length fields below 128 are valid ASCII, so a run of short strings is checked as one text.
        cuts = [start - 8, *long, at]
        if all(isinstance(text(self.copy(here + 8, there)), str) for here, there in zip(cuts, cuts[1:])):
            return
        self.note("has strings that are not UTF-8; kept as bytes")

    def _check_bools(self, start: int) -> None:
        other = self.copy(start, self.at).translate(None, b"\0\1")
        if other:
            raise self.wrong("is a bool other than 0 or 1", start, found=other[0], code="bool")
