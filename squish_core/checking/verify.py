"""Verify a file: structure from the header, and with `deep` every digest and every tensor's decoding."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from attrs import evolve, field, frozen

from squish_core import opening
from squish_core.checking.check import Check, ProgressCallback, as_problem
from squish_core.codes import ErrorCode
from squish_core.display import fit_all, to_json
from squish_core.errors import MAX_MESSAGE, MAX_PLACE, Problem, SquishError, UsageError, redact, shorten
from squish_core.file import File
from squish_core.limits import Limits
from squish_core.plugins.registry import Registry
from squish_core.shown import Shown
from squish_core.text import counted, words

PLACES = 4
"""Number of places to list per finding."""


@frozen(kw_only=True, repr=False)
class Report(Shown):
    """The findings of `verify`. `ok` is False if there is an error.

    `decoded`: number of decoded tensors. `digests`: number of digests of parts, of which `unverified` could not be
    checked (unknown algorithm, missing plugin or package, unreadable bytes). `not_checked`: what was not checked.
    """

    file: str = field(converter=redact)
    format: str | None
    tensors: int = 0
    deep: bool
    decoded: int = 0
    digests: int = 0
    unverified: int = 0
    problems: tuple[Problem, ...]
    not_checked: tuple[str, ...] = ()

    def __repr__(self) -> str:
        by_severity = ", ".join(f"{count} {severity}" for severity, count in severities(self.problems))
        counts = f"tensors={self.tensors} digests={self.digests} unverified={self.unverified} problems=({by_severity})"
        return f"<Report {self.file!r} format={self.format} ok={self.ok} deep={self.deep} {counts}>"

    def __str__(self) -> str:
        return "\n".join(fit_all(report_lines(self)))

    @property
    def ok(self) -> bool:
        """Whether there are no errors."""
        return not any(problem.severity == "error" for problem in self.problems)

    @property
    def clean(self) -> bool:
        """Whether there are neither errors nor warnings."""
        return all(problem.severity == "note" for problem in self.problems)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON.

        Returns
        -------
        dict
            `ok` and the fields by name.

        Examples
        --------
        >>> squish.verify("model.gguf").to_dict()["ok"]
        True
        """
        return {"ok": self.ok, **to_json(self)}


def verify(
    target: Any,
    *,
    deep: bool = False,
    format: str | None = None,  # noqa: A002
    limits: Limits | None = None,
    registry: Registry | None = None,
    progress: ProgressCallback | None = None,
    scheduler: str | None = None,
) -> Report:
    """Check a file and list all findings; never raises for a damaged file.

    Reads into memory and never through a mapping, so that truncation during the check is a finding, too.

    Parameters
    ----------
    target
        A path, bytes or an open `File`.
    deep
        Also check every digest, decode every tensor, and warn of NaN, infinite values and matrices of zeros. A file
        named by a digest (`sha256-...`, or in a folder `blobs`) must have it.
    format
        Read the file as this format, as in `open`.
    limits, registry
        As in `open`.
    progress
        Called with the tensor's name, the bytes checked and the total bytes.
    scheduler
        Check the tensors in other processes, with `deep`: "local:2", or "dask:tcp://..." (with squish-dask).

    Returns
    -------
    Report
        `ok` without errors, `clean` without warnings; `problems` in file order.

    Raises
    ------
    UsageError
        `scheduler` without `deep`, or for a file that other processes cannot open.

    Examples
    --------
    >>> report = squish.verify("model.gguf", deep=True)
    >>> report.ok, report.decoded
    (True, 3)
    """
    if scheduler is not None and not deep:
        hint = "Structure is checked in one process."
        raise UsageError("{option:scheduler} needs {option:deep=True}", code=ErrorCode.USAGE, hint=hint)
    try:
        if isinstance(target, File):
            file = File(target.source.unmapped(), target.index, target.registry, target.limits)
        else:
            file = opening.open(target, format, mmap=False, limits=limits, registry=registry)
    except SquishError as error:
        name = os.fspath(target) if isinstance(target, (str, os.PathLike)) else error.file or "<bytes>"
        problem = as_problem(error)
        if error.file and os.path.basename(error.file) != os.path.basename(name):  # one of several
            problem = evolve(problem, where=f"{error.file}: {problem.where}")
        return Report(file=name, format=format, deep=deep, problems=error.findings or (problem,))
    try:
        check = Check(file, progress)
        check.structure()
        if deep:
            check.data(scheduler)
        return Report(
            file=file.name,
            format=file.format,
            tensors=len(file),
            deep=deep,
            decoded=check.decoded,
            digests=check.digests,
            unverified=check.unverified,
            problems=tuple(check.problems),
            not_checked=tuple(map(words, check.not_checked(deep))),
        )
    finally:
        if not isinstance(target, File) or file.source is not target.source:  # a remote source has no twin
            file.close()


def severities(problems: tuple[Problem, ...]) -> Iterator[tuple[str, int]]:
    """Number of findings by severity, worst first."""
    for severity in ("error", "warning", "note"):
        count = sum(problem.severity == severity for problem in problems)
        if count:
            yield severity, count


def report_lines(report: Report, strict: bool = False) -> Iterator[str]:
    """Yield the findings, equal ones merged, then the verdict and what was not checked."""
    places: dict[tuple[str, str, str], list[str]] = {}
    for problem in report.problems:
        places.setdefault((problem.severity, problem.code, problem.message), []).append(problem.where)
    for (severity, code, message), locations in places.items():
        more = f" and {len(locations) - PLACES} more" if len(locations) > PLACES else ""
        listing = ", ".join(shorten(place, MAX_PLACE) for place in locations[:PLACES])
        yield from (f"{severity:8} {listing}{more} ({code})", f"         {shorten(message, MAX_MESSAGE)}")
    counts = ", ".join(counted(count, word) for word, count in severities(report.problems)) or "no findings"
    summary = f"{report.format}, {counted(report.tensors, 'tensor')}" if report.format else "cannot be opened"
    if report.deep and report.format:
        decoded = f"{'all' if report.decoded == report.tensors else f'{report.decoded:,} of them'} decoded"
        checked = f"{report.digests - report.unverified:,} of " if report.unverified else ""
        summary += f", {decoded}, {checked}{counted(report.digests, 'digest')} checked"
    ok = report.clean if strict else report.ok
    yield f"{'ok' if ok else 'error'}: {report.file}: {summary}; {counts}"
    if report.not_checked:
        yield f"not checked: {'; '.join(report.not_checked)}"
