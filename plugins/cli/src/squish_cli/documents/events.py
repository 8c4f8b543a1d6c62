"""Documents that are not results of one command: errors, and what `--json-lines` prints before the result.

Apart from the others, because the documents of several commands hold errors.
"""

from __future__ import annotations

from typing import Any, Literal

from attrs import frozen


@frozen
class Suggestion:
    """An encoding that would work instead.

    Attributes
    ----------
    codes
        The codes that the target cannot store.
    encode
        What `--encode` takes, one rule each.
    bits
        Bits per weight.
    snr
        Signal-to-noise ratio in dB; null if it is measured while writing.
    """

    codes: str
    encode: tuple[str, ...]
    bits: float
    snr: float | None


@frozen
class ErrorFields:
    """An error.

    Attributes
    ----------
    type
        Its class in Python.
    message
        What is wrong, without the place.
    text
        What the command prints without `--json`.
    file, tensor, part, offset
        Where.
    expected, found
        The values.
    code
        What is wrong, for programs.
    hint
        The next step.
    suggestions
        Encodings that would work instead, the best first.
    """

    type: str
    message: str
    text: str
    file: str | None
    tensor: str | None
    part: str | None
    offset: int | None
    expected: Any
    found: Any
    code: str | None
    hint: str | None
    suggestions: tuple[Suggestion, ...]


@frozen
class Error:
    """The command could not run; exit code 2."""

    error: ErrorFields


@frozen
class Progress:
    """Progress of a command, with `--json-lines`.

    Attributes
    ----------
    activity
        What the command is doing: verifying, writing, comparing.
    file
        The file that is read; null if there are several at once.
    name
        The current tensor; null at the start.
    done, total
        Amounts; the total is null if it is not known.
    """

    activity: str
    file: str | None
    name: str | None
    done: int
    total: int | None
    unit: Literal["bytes", "tokens"]


@frozen
class Task:
    """A finished task of a job, with `--json-lines` and `--scheduler`.

    Attributes
    ----------
    read, written
        Bytes of the source and of the target.
    """

    worker: str
    read: int
    written: int
    seconds: float


@frozen
class Text:
    """A piece of the text that `squish run --json-lines` generates."""

    text: str
