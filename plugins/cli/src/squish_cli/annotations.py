"""Findings about files for other software: SARIF 2.1.0 (code scanning), and annotations of GitHub's workflows.

https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from attrs import frozen

from squish_core.codes import ErrorCode
from squish_core.errors import Problem, UsageError

from .output import TEXT, style

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
COMMANDS = {"error": "error", "warning": "warning", "note": "notice"}
"""Severity -> GitHub's command; SARIF has the same levels as `Problem`."""
_MESSAGE = {"%": "%25", "\r": "%0D", "\n": "%0A"}
_PROPERTY = {**_MESSAGE, ":": "%3A", ",": "%2C"}
"""Characters of messages and of properties that GitHub's commands encode."""


@frozen
class Finding:
    """A problem of a file.

    Attributes
    ----------
    file
        Its path or URL.
    problem
        What is wrong with it.
    """

    file: str
    problem: Problem


def check_output(output: str | None) -> None:
    """Raise UsageError for a value of `--output` that does not exist, and beside `--json`.

    Parameters
    ----------
    output
        The value; None without the option.

    Raises
    ------
    UsageError
        There is no such output, or the result is printed as JSON.

    Examples
    --------
    >>> check_output("sarif")
    """
    if output is None:
        return
    if output not in OUTPUTS:
        raise UsageError("no such --output", found=repr(output), expected=" or ".join(OUTPUTS), code=ErrorCode.USAGE)
    if style() != TEXT:
        raise UsageError(f"--output and {style()} cannot be combined", code=ErrorCode.USAGE, hint=f"Omit {style()}.")


def finding_lines(output: str, findings: Iterable[Finding]) -> list[str]:
    """Return findings as lines of `--output`.

    Parameters
    ----------
    output
        "sarif" or "github".
    findings
        The findings in one or several files.

    Returns
    -------
    list of str
        Lines to print as they are: an `Answer` with `verbatim`.

    Examples
    --------
    >>> problem = Problem(code="digest", severity="error", where="a.weight", message="the digest differs")
    >>> finding_lines("github", [Finding("model.gguf", problem)])
    ['::error file=model.gguf::a.weight: the digest differs [digest]']
    """
    return list(OUTPUTS[output](list(findings)))


def _github(findings: Sequence[Finding]) -> Iterator[str]:
    for finding in findings:
        problem = finding.problem
        text = _encoded(f"{problem.where}: {problem.message} [{problem.code}]", _MESSAGE)
        yield f"::{COMMANDS[problem.severity]} file={_encoded(finding.file, _PROPERTY)}::{text}"


def _encoded(text: str, table: Mapping[str, str]) -> str:
    return "".join(table.get(character, character) for character in text)


def _sarif(findings: Sequence[Finding]) -> Iterator[str]:
    from squish_core.version import __version__

    codes = list(dict.fromkeys(finding.problem.code for finding in findings))
    driver = {"name": "squish", "version": __version__, "rules": [{"id": code} for code in codes]}
    results = [_result(finding, codes.index(finding.problem.code)) for finding in findings]
    document = {"$schema": SCHEMA, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}
    yield from json.dumps(document, indent=1).split("\n")


def _result(finding: Finding, rule: int) -> dict[str, Any]:
    """A finding; the tensor or field is its logical location, because files of weights have no lines."""
    problem = finding.problem
    return {
        "ruleId": problem.code,
        "ruleIndex": rule,
        "level": problem.severity,
        "message": {"text": f"{problem.where}: {problem.message}"},
        "locations": [
            {
                "physicalLocation": {"artifactLocation": {"uri": _uri(finding.file)}},
                "logicalLocations": [{"fullyQualifiedName": problem.where}],
            }
        ],
    }


def _uri(file: str) -> str:
    """Return a file's URL, or its path as a relative reference."""
    if "://" in file:
        return quote(file, safe="/:?#[]@!$&'()*+,;=%~")
    path = Path(file)
    return path.as_uri() if path.is_absolute() else quote(path.as_posix())


OUTPUTS: dict[str, Callable[[Sequence[Finding]], Iterator[str]]] = {"sarif": _sarif, "github": _github}
"""Value of `--output` -> what prints the findings."""
