"""Python's arguments in messages, as options of the command line."""

from __future__ import annotations

import re

OPTIONS = {
    "to": "--to", "encode": "--encode", "rename": "--names", "activations": "--imatrix",
    "requantize": "--requantize", "deep": "--deep", "all": "--all", "format": "--format", "assets": "--assets",
    "only": "--only", "backend": "--backend", "plan": "--job-plan", "scheduler": "--scheduler",
    "task_bytes": "--task-bytes", "resume": "--resume", "journal": "--journal",
}  # fmt: skip
_ARGUMENT = re.compile(rf"\b({'|'.join(OPTIONS)})=(?:\.\.\.|True|'([^']*)'|(FILE|DIR|FOLDER)|(?=[\s.,;:)]|$))")


def command_line(text: str) -> str:
    """`encode='f32'` as `--encode f32`, `deep=True` as `--deep`, `to=...` and `to=` as `--to`."""
    return _ARGUMENT.sub(lambda match: " ".join(filter(None, (OPTIONS[match[1]], _word(match[2]), match[3]))), text)


def _word(value: str | None) -> str | None:
    """A value as a shell word, quoted if the shell would expand it."""
    return f"'{value}'" if value and any(mark in value for mark in "*?[") else value
