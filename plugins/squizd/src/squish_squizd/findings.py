"""Findings with the rule they break: `verify` lists them all, `open` raises the first error."""

from __future__ import annotations

from typing import Any

from squish_core.api import FormatError, Problem, SquishError, TruncatedError, UnsupportedVersionError

_MAX_PROBLEMS = 1000
"""Maximum number of findings: a hostile file may break a rule in every entry."""
_KINDS = {"truncated": TruncatedError, "version": UnsupportedVersionError}


class Findings:
    """Problems of one file in order of discovery; `first` is the typed exception of the first error."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.first: SquishError | None = None

    def error(self, rule: str, where: str, message: str, *, kind: str = "format", **facts: Any) -> None:
        """Add an error: `rule` is the rule it breaks ("P2"), `facts` are offset, expected, found and hint."""
        error = _KINDS.get(kind, FormatError)(
            f"{message} [{rule}]", code=rule, part=where, hint=facts.pop("hint", None), **facts
        )
        self.first = self.first or error
        self._add(rule, "error", where, message, facts)

    def extend(self, other: Findings) -> None:
        """Add the findings of a section that the rest of the file does not depend on, without raising its errors."""
        self.problems += other.problems

    def warn(self, rule: str, where: str, message: str, **facts: Any) -> None:
        """Add a warning, for contradictory redundant data, reserved bytes or a non-canonical order."""
        self._add(rule, "warning", where, message, facts)

    def note(self, rule: str, where: str, message: str, **facts: Any) -> None:
        """Add a note, which strict mode accepts."""
        self._add(rule, "note", where, message, facts)

    def raise_first(self) -> None:
        """Raise the first error, if any, with all findings attached."""
        if self.first is not None:
            self.first.findings = tuple(self.problems)
            raise self.first

    def _add(self, rule: str, severity: str, where: str, message: str, facts: dict[str, Any]) -> None:
        numbers = ", ".join(
            f"{word} {facts[key]}"
            for key, word in (("offset", "at byte"), ("expected", "expected"), ("found", "found"))
            if facts.get(key) is not None
        )
        text = f"{message} ({numbers})" if numbers else message
        if len(self.problems) < _MAX_PROBLEMS:
            self.problems.append(Problem(code=rule, severity=severity, where=where, message=f"{text} [{rule}]"))
