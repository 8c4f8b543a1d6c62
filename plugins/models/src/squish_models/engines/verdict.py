"""What an engine's loader does with a model."""

from __future__ import annotations

from attrs import frozen

from squish_core.api import Problem


@frozen
class Verdict:
    """The problems that the loader finds, and in `unknown` why the tables cannot tell whether there are more."""

    problems: tuple[Problem, ...]
    unknown: str = ""

    @property
    def refuses(self) -> bool:
        """Whether the engine does not load the model."""
        return any(each.severity == "error" for each in self.problems)
