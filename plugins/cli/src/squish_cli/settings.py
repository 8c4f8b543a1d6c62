"""Environment variables of Squish, checked when a command starts rather than when something reads them."""

from __future__ import annotations

import os
import re

from squish_core.codes import ErrorCode
from squish_core.errors import UsageError

PATTERNS = {
    "SQUISH_THREADS": (r"[1-9]\d{0,3}", "a number of threads"),
    "SQUISH_CACHE_SIZE": (r"\d{1,19}", "a number of bytes"),
    "SQUISH_CPU_THREADS": (r"[1-9]\d{0,2}|10[01]\d|102[0-4]", "a number of threads, 1 to 1024"),
    "SQUISH_CPU_INSTRUCTIONS": ("avx512|avx2|portable", "avx512, avx2 or portable"),
    "SQUISH_METAL": ("cpu", "cpu, which runs MLX without a Metal device"),
}
"""Variable -> pattern of its values, and what they are."""
OTHERS = ("SQUISH_PLUGINS", "SQUISH_LIMITS", "SQUISH_SOURCE", "SQUISH_CACHE", "SQUISH_CPU_LIBRARY", "SQUISH_TIERS")


def check_settings() -> None:
    """UsageError for a variable whose value cannot be used; a warning for one whose name is a known one's, mistyped."""
    names = [name for name in os.environ if name.startswith("SQUISH_") and os.environ[name]]
    for name in names:
        pattern, expected = PATTERNS.get(name, ("(?s:.*)", ""))
        if not re.fullmatch(pattern, os.environ[name], re.ASCII):
            raise UsageError(
                f"{name} is invalid", found=repr(os.environ[name]), expected=expected, code=ErrorCode.USAGE,
                hint=f"Unset it, or set it to {expected}.",
            )  # fmt: skip
    if "SQUISH_LIMITS" in names:
        from squish_core.limits import default

        default()
    if "SQUISH_SOURCE" in names:
        from squish_core.plugins.sources import options_from_environment

        options_from_environment()
    names_in_use = (*PATTERNS, *OTHERS)
    for name in names:
        if name not in names_in_use:
            _warn(name, names_in_use)


def _warn(name: str, names_in_use: tuple[str, ...]) -> None:
    import difflib

    from .output import show_warning

    if near := difflib.get_close_matches(name, names_in_use, 1, 0.85):
        show_warning(f"{name} is not used; did you mean {near[0]}?")
