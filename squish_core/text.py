"""Formatting of text: printable names, byte counts, close matches."""

from __future__ import annotations

import re
from collections.abc import Iterable

SITE = "https://squish-weights.github.io/squish/"
"""Where the documentation is published."""
_OPTION = re.compile(r"\{option:(\w+)(?:=((?:[^{}]|\{[^{}]*\})*))?\}")


def argument(name: str, value: str) -> str:
    """Spell an option as an argument of a Python function: `encode='f32'`, `part={'vision': FILE}`."""
    key, _, file = value.partition("=")
    if file == "FILE":
        return f"{name}={{{key!r}: {file}}}"
    return f"{name}={value if value in ('', '...', 'True', 'FILE', 'DIR', 'FOLDER') else repr(value)}"


spelling = argument
"""Spells the options that texts name; the command line replaces it while it runs."""


def words(text: str) -> str:
    """Spell the options that a text names, `{option:encode}` or `{option:encode=f32}`, for its reader.

    >>> words("Decode it with {option:encode=f32}, or leave out {option:scheduler}.")
    "Decode it with encode='f32', or leave out scheduler=."
    """
    return _OPTION.sub(lambda match: spelling(match[1], match[2] or ""), text)


def site_page(name: str) -> str:
    """Return the address of a page of the documentation, for a hint.

    Parameters
    ----------
    name
        Page, and perhaps `#` and a section.

    Returns
    -------
    str
        An address on `SITE`.

    Examples
    --------
    >>> site_page("models#add-a-family").removeprefix(SITE)
    'models.html#add-a-family'
    """
    page, mark, section = name.partition("#")
    return f"{SITE}{page}.html{mark}{section}"


def escape(text: str) -> str:
    """Make control and bidirectional-override characters visible, so that a name cannot spoof output."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def install_hint(commands: Iterable[str | None]) -> str | None:
    """Name each install command once, as alternatives; None if there are none.

    >>> install_hint(("pip install ./plugins/astc", None, "pip install scipy"))
    'Run `pip install ./plugins/astc`, or `pip install scipy`.'
    """
    names = [f"`{command}`" for command in dict.fromkeys(commands) if command]
    return f"Run {', or '.join(names)}." if names else None


def format_bytes(nbytes: float) -> str:
    """Format a byte count with a unit, in powers of 1000.

    Parameters
    ----------
    nbytes
        The count.

    Returns
    -------
    str
        Four digits and the unit.

    Examples
    --------
    >>> format_bytes(1234567)
    '1.235 MB'
    """
    for unit in ("B", "kB", "MB", "GB"):
        if abs(nbytes) < 1000:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.4g} {unit}"
        nbytes /= 1000
    return f"{nbytes:.4g} TB"


def counted(count: int, noun: str, plural: str = "") -> str:
    """Format a count with its noun in the singular or the plural.

    Parameters
    ----------
    count
        The number.
    noun
        The singular.
    plural
        The plural, if it is not the singular with an "s".

    Returns
    -------
    str
        The number, with commas, and the noun.

    Examples
    --------
    >>> counted(1, "tensor"), counted(2000, "tensor"), counted(2, "entry", "entries")
    ('1 tensor', '2,000 tensors', '2 entries')
    """
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


_UNITS = {"": 1, **{f"{unit}b": 1000**power for power, unit in enumerate(("", "k", "m", "g", "t"))}}
_UNITS |= {f"{unit}ib": 1024**power for power, unit in enumerate(("k", "m", "g", "t"), 1)}
_UNITS |= {unit: _UNITS[f"{unit}b"] for unit in "kmgt"}


def parse_bytes(text: str) -> int | None:
    """Parse a number of bytes.

    Parameters
    ----------
    text
        Such as `256MiB`, `7.5GB`, `5g` (as GB) or `1000`.

    Returns
    -------
    int or None
        None for anything else.

    Examples
    --------
    >>> parse_bytes("256MiB"), parse_bytes("7.5GB"), parse_bytes("some")
    (268435456, 7500000000, None)
    """
    digits = text.strip().rstrip("kKmMgGtTiIbB")
    unit = _UNITS.get(text.strip()[len(digits) :].lower())
    number = digits.strip()
    if not unit or not number.isascii() or not number.replace(".", "", unit > 1).isdigit() or len(number) >= 20:
        return None
    return int(number) * unit if number.isdigit() else int(float(number) * unit)


def close_matches(name: object, candidates: Iterable[str]) -> list[str]:
    """Up to three candidates similar to `name`.

    >>> close_matches("q4k", ["q4_k", "q8_0"])
    ['q4_k']
    """
    import difflib

    return difflib.get_close_matches(str(name), candidates, 3, 0.5)


def did_you_mean(name: object, candidates: Iterable[str]) -> str:
    """Return a sentence with up to three similar candidates; "" if there is none.

    >>> did_you_mean("q4k", ["q4_k", "q8_0"])
    'Close matches: q4_k.'
    """
    near = close_matches(name, candidates)
    return f"Close matches: {', '.join(near)}." if near else ""
