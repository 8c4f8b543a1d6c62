"""Typed errors: everything that can go wrong is a `SquishError` that says where and what to do next."""

from __future__ import annotations

import re
from typing import Any

from attrs import frozen

from squish_core.codes import USAGE_CODES
from squish_core.text import escape


@frozen(kw_only=True)
class Problem:
    """A finding: `severity` is "error", "warning" or "note"; `where` names the tensor, field or offset."""

    code: str
    severity: str
    where: str
    message: str


MAX_FILE, MAX_PLACE, MAX_VALUE, MAX_MESSAGE = 1000, 300, 500, 1000
"""Characters shown of a path, of a tensor, of a value, and of a message: a file may declare names of megabytes."""
_USER = r"(?:[^/?#\s]*@|[^/?#\s:]*:(?!\d*(?:[/?#\s]|$))\S*@)?"
"""User and password; a password may hold an unquoted slash, and a port is none."""
_ADDRESS = re.compile(rf"([A-Za-z][\w+.-]+:/{{1,2}}){_USER}([^?#\s]*)([?#]\S*)?")


class SquishError(Exception):
    """Base of all errors; reads `<file>: <tensor>/<part>: <what is wrong> (<numbers>). <next step>`.

    The fields `file`, `tensor`, `part`, `offset`, `expected`, `found`, `code` and `hint` are public, may be
    None, and are filled in by the core where the raiser did not know them. They never hold the password or the
    query of an address, and the text shortens what is long. `findings` are all Problems that were met, where the
    raiser looked for more than the first; `verify` lists them.
    """

    findings: tuple[Problem, ...] = ()
    is_about_argument = False

    FIELDS = ("file", "tensor", "part", "offset", "expected", "found", "code", "hint")

    def __init__(
        self,
        message: str,
        *,
        file: str | None = None,
        tensor: str | None = None,
        part: str | None = None,
        offset: int | None = None,
        expected: Any = None,
        found: Any = None,
        code: str | None = None,
        hint: str | None = None,
    ) -> None:
        self.message = redact(message)
        super().__init__(self.message)
        self.file, self.tensor, self.part, self.offset = redact(file), tensor, part, offset
        self.expected, self.found, self.code, self.hint = redact(expected), redact(found), code, redact(hint)

    def within(self, **context: Any) -> SquishError:
        """Fill in the fields that are still unknown, and return self; errors about an argument stay as they are."""
        if self.is_about_argument or self.code in USAGE_CODES:
            return self
        for field, value in context.items():
            if getattr(self, field) is None:
                setattr(self, field, redact(value))
        return self

    def about_argument(self) -> SquishError:
        """The same error without file and tensor, which are not at fault; they are not filled in later either."""
        self.is_about_argument = True
        self.file = self.tensor = None
        return self

    def where(self) -> str:
        """`<tensor>/<part>` as far as known, printable."""
        return escape(shorten("/".join(part for part in (self.tensor, self.part) if part), MAX_PLACE))

    def reason(self) -> str:
        """The text without file and tensor: what is wrong, the numbers and the next step."""
        numbers = [f"at byte {self.offset}"] if self.offset is not None else []
        numbers += [f"expected {_value(self.expected)}"] if self.expected is not None else []
        numbers += [f"found {_value(self.found)}"] if self.found is not None else []
        text = escape(shorten(self.message, MAX_MESSAGE))
        if numbers:
            text += f" ({', '.join(numbers)})"
        if not self.hint:
            return text
        return f"{text}{'' if text.endswith('?') else '.'} {escape(shorten(self.hint, MAX_MESSAGE))}"

    def __str__(self) -> str:
        file = escape(shorten(self.file, MAX_FILE)) if self.file else None
        return "".join(f"{place}: " for place in (file, self.where()) if place) + self.reason()

    def __reduce__(self) -> tuple[Any, ...]:
        fields = {name: getattr(self, name) for name in self.FIELDS}
        return _rebuild, (type(self), self.message, fields, self.findings)


class UsageError(SquishError, ValueError):
    """An argument makes no sense, whatever the file holds; a `ValueError` as well."""


class FileAccessError(SquishError, OSError):
    """The system does not let a file be read; an `OSError` as well."""


class MissingFileError(FileAccessError, FileNotFoundError):
    """There is no such file or folder; a `FileNotFoundError` as well."""


class WriteError(FileAccessError):
    """The target cannot be written; an `OSError` as well."""


class FormatError(SquishError):
    """The file breaks its format."""


class UnsupportedVersionError(FormatError):
    """The file is of a version of its format that is not supported."""


class TruncatedError(FormatError):
    """The file ends before what it declares."""


class LimitError(FormatError):
    """The file asks for more than the limits in force allow; `limit`: which of `Limits` is in its way, for the hint."""

    def __init__(self, message: str, *, limit: str | None = None, **fields: Any) -> None:
        if limit is not None:
            fields["hint"] = f"If you trust the file, set SQUISH_LIMITS={limit}=... (or give Limits)."
        super().__init__(message, **fields)


class TensorError(SquishError):
    """One tensor cannot be given; the others stay readable."""


class RangeError(TensorError, IndexError):
    """An index lies outside its axis; an `IndexError` as well, as for any sequence."""


class CodecError(SquishError):
    """A tensor's stored bytes cannot be decoded, or values cannot be encoded."""


class MissingPluginError(SquishError):
    """A plugin or a library that this needs is not installed; the hint names the package."""


class ConflictError(SquishError):
    """Two plugins claim the same id, or contradict the registry's settings."""


class AmbiguousFormatError(SquishError):
    """Several formats match the file equally well."""


class UnknownFormatError(SquishError):
    """No format recognizes the file."""


class ClosedError(SquishError):
    """The file was closed before this read."""


def shorten(text: str, limit: int) -> str:
    """At most `limit` characters of a text: its beginning and its end."""
    if len(text) <= limit:
        return text
    tail = limit // 3
    return f"{text[: limit - tail - 3]}...{text[-tail:]}"


def redact(value: Any) -> Any:
    """A text whose addresses (`https://...`) have lost user, password, query and fragment; other values unchanged."""
    if not isinstance(value, str) or ":/" not in value:
        return value
    return _ADDRESS.sub(lambda match: f"{match[1]}{match[2]}{'?...' if match[3] else ''}", value)


def _value(value: Any) -> str:
    return escape(shorten(str(value), MAX_VALUE))


def _rebuild(
    kind: type[SquishError], message: str, fields: dict[str, Any], findings: tuple[Problem, ...]
) -> SquishError:
    error = kind(message, **fields)
    error.findings = findings
    return error
