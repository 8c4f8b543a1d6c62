"""The one module of the command line that a plugin imports: options, results and progress of its commands."""

from __future__ import annotations

from squish_core.plugins.lazy import lazy_exports

_NAMES = {
    "squish_cli": ("options",),
    "squish_cli.annotations": ("Finding", "check_output", "finding_lines"),
    "squish_cli.charts": ("Plot",),
    "squish_cli.options": ("check_page",),
    "squish_cli.pages": ("page", "section", "write_page"),
    "squish_convert.html": ("Html", "breakable", "details", "element", "facts", "table"),
    "squish_cli.output": ("JSON", "JSON_LINES", "PIECE", "TEXT", "Answer", "Progress", "print_document", "style"),
}

__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
