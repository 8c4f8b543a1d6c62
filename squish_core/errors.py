"""Typed errors: every failure is a `SquishError` with its location and the next step."""

from __future__ import annotations

import re
from typing import Any

from attrs import field, frozen

from squish_core.codes import USAGE_CODES
from squish_core.text import escape, words


@frozen(kw_only=True)
class Problem:
    """A finding: `severity` is "error", "warning" or "note"; `where` names the tensor, field or offset."""

    code: str
    severity: str
    where: str
    message: str = field(converter=words)


MAX_FILE, MAX_PLACE, MAX_VALUE, MAX_MESSAGE = 1000, 300, 500, 1000
"""Maximum characters of a path, tensor, value and message in the text: a file may declare names of megabytes."""
_USER = r"(?:[^/?#\s]*@|[^/?#\s:]*:(?!\d*(?:[/?#\s]|$))\S*@)?"
"""User and password, but not a port; a password may contain an unquoted slash."""
_ADDRESS = re.compile(rf"([A-Za-z][\w+.-]+:/{{1,2}}){_USER}([^?#\s]*)([?#]\S*)?")


class SquishError(Exception):
    """Base of all errors, with the text `<file>: <tensor>/<part>: <fault> (<numbers>). <next step>`.

    The public fields `file`, `tensor`, `part`, `offset`, `expected`, `found`, `code` and `hint` may be None; the core
    fills in the context. They never contain the password or query of a URL, and the text shortens long values.
    `findings`: all problems, if the check did not stop at the first; `verify` lists them. `suggestions`: what would
    work instead, as data, the best first.
    """

    findings: tuple[Problem, ...] = ()
    suggestions: tuple[dict[str, Any], ...] = ()
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
        self.message = words(redact(message))
        super().__init__(self.message)
        self.file, self.tensor, self.part, self.offset = redact(file), tensor, part, offset
        self.expected, self.found, self.code = redact(expected), redact(found), code
        self.hint = hint and words(redact(hint))

    def within(self, **context: Any) -> SquishError:
        """Fill in fields that are None and return the error; errors about an argument stay unchanged."""
        if self.is_about_argument or self.code in USAGE_CODES:
            return self
        for name, value in context.items():
            if getattr(self, name) is None:
                setattr(self, name, words(redact(value)) if name in ("message", "hint") else redact(value))
        return self

    def about_argument(self) -> SquishError:
        """Return the error as one that an argument caused, without file and tensor; a UsageError if it is a codec's."""
        error: SquishError = self
        if isinstance(self, CodecError):
            error = UsageError(self.message)
            vars(error).update(vars(self))
        error.is_about_argument = True
        error.file = error.tensor = None
        return error

    def where(self) -> str:
        """`<tensor>/<part>`, as far as they are set, printable."""
        return escape(shorten("/".join(part for part in (self.tensor, self.part) if part), MAX_PLACE))

    def reason(self) -> str:
        """Return the text without file and tensor: fault, numbers and next step."""
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
        return _rebuild, (type(self), self.message, fields, self.findings, self.suggestions)


class UsageError(SquishError, ValueError):
    """An argument is invalid; also a `ValueError`."""


class FileAccessError(SquishError, OSError):
    """A file cannot be accessed; also an `OSError`."""


class MissingFileError(FileAccessError, FileNotFoundError):
    """A file or folder does not exist; also a `FileNotFoundError`."""


class WriteError(FileAccessError):
    """The target cannot be written; also an `OSError`."""


class FormatError(SquishError):
    """The file violates its format."""


class UnsupportedVersionError(FormatError):
    """The file has an unsupported version of its format."""


class TruncatedError(FormatError):
    """The file is shorter than it declares."""


class LimitError(FormatError):
    """The file exceeds the limits; `limit` names the field of `Limits`, for the hint."""

    def __init__(self, message: str, *, limit: str | None = None, **fields: Any) -> None:
        if limit is not None:
            fields["hint"] = f"If you trust the file, set SQUISH_LIMITS={limit}=... or pass limits=Limits({limit}=...)."
        super().__init__(message, **fields)


class TensorError(SquishError):
    """A tensor cannot be read; the others stay readable."""


class RangeError(TensorError, IndexError):
    """An index is out of range; also an `IndexError`."""


class CodecError(SquishError):
    """A tensor's stored bytes cannot be decoded, or values cannot be encoded."""


class MissingPluginError(SquishError):
    """A plugin or library is not installed; the hint names the package."""


class ConflictError(SquishError):
    """Several plugins claim one id, or the settings are contradictory."""


class AmbiguousFormatError(SquishError):
    """Several formats match the file equally well."""


class UnknownFormatError(SquishError):
    """No format recognizes the file."""


class ClosedError(SquishError):
    """The file is closed."""


def shorten(text: str, limit: int) -> str:
    """Shorten a text to `limit` characters, keeping its beginning and end."""
    if len(text) <= limit:
        return text
    tail = limit // 3
    return f"{text[: limit - tail - 3]}...{text[-tail:]}"


def redact(value: Any) -> Any:
    """Remove user, password, query and fragment from the URLs in a text.

    Parameters
    ----------
    value
        A text; other values are returned unchanged.

    Returns
    -------
    object
        The text without secrets.

    Examples
    --------
    >>> redact("see https://me:secret@example.org/m.gguf?key=1")
    'see https://example.org/m.gguf?...'
    """
    if not isinstance(value, str) or ":/" not in value:
        return value
    return _ADDRESS.sub(lambda match: f"{match[1]}{match[2]}{'?...' if match[3] else ''}", value)


def _value(value: Any) -> str:
    return escape(shorten(str(value), MAX_VALUE))


def _rebuild(
    kind: type[SquishError],
    message: str,
    fields: dict[str, Any],
    findings: tuple[Problem, ...],
    suggestions: tuple[dict[str, Any], ...],
) -> SquishError:
    error = kind(message, **fields)
    error.findings, error.suggestions = findings, suggestions
    return error
