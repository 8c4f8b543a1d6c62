"""Verify a file: structure from the header, and with `deep` every digest and every tensor's decoding."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from attrs import evolve, frozen

from squish_core import opening
from squish_core.codecs.regions import PANEL_BYTES, decode_all
from squish_core.codes import ErrorCode
from squish_core.display.tables import counted, fit_all
from squish_core.errors import MAX_MESSAGE, MAX_PLACE, FormatError, MissingPluginError, Problem, SquishError, shorten
from squish_core.file import File
from squish_core.guard import computing, guarded
from squish_core.io.digest import Verdict, check_digest
from squish_core.limits import Limits
from squish_core.model import Part, to_json
from squish_core.plugins.registry import Registry
from squish_core.reader import file_problems
from squish_core.tensor import Tensor

if TYPE_CHECKING:
    import numpy as np

Progress = Callable[[str, int, int | None], None]
PLACES = 4
"""Number of places listed for one finding."""


@frozen(kw_only=True, repr=False)
class Report:
    """The findings of `verify`. `ok` is False if there is an error; `decoded` counts decoded tensors. `digests` counts
    digests of parts; `unverified` of them could not be checked: an unknown algorithm, a missing plugin or package,
    unreadable bytes. `not_checked`: what was not checked, in words."""

    file: str
    format: str | None
    tensors: int
    deep: bool
    decoded: int
    digests: int
    unverified: int
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
        """No finding is an error."""
        return not any(problem.severity == "error" for problem in self.problems)

    @property
    def clean(self) -> bool:
        """No finding is an error or a warning."""
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
    progress: Progress | None = None,
) -> Report:
    """Check a file and list every finding; never raises because of the file's content.

    Reads into memory, never through a mapping, so that a file truncated meanwhile is a finding, too.

    Parameters
    ----------
    target
        A path, bytes or an open `File`.
    deep
        Check every digest and decode every tensor, too.
    format
        Read the file as this container, as in `open`.
    limits, registry
        As in `open`.
    progress
        Called with the tensor's name, the bytes done and the bytes in all.

    Returns
    -------
    Report
        `ok` without an error, `clean` without a warning; `problems` in the order of the file.

    Examples
    --------
    >>> report = squish.verify("model.gguf", deep=True)
    >>> report.ok, report.decoded
    (True, 3)
    """
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
        return Report(
            file=name, format=format, tensors=0, deep=deep, decoded=0, digests=0, unverified=0,
            problems=error.findings or (problem,),
        )  # fmt: skip
    try:
        check = Check(file, progress)
        check.structure()
        if deep:
            check.data()
        return Report(
            file=file.name, format=file.format, tensors=len(file), deep=deep, decoded=check.decoded,
            digests=check.digests, unverified=check.unverified, problems=tuple(check.problems),
            not_checked=tuple(check.not_checked(deep)),
        )  # fmt: skip
    finally:
        file.close()


def as_problem(error: SquishError, severity: str = "error") -> Problem:
    """An error as a finding, with its place apart from the text."""
    place = error.where() or (f"byte {error.offset}" if error.offset is not None else "file")
    return Problem(code=error.code or "format", severity=severity, where=place, message=error.reason())


def check_part(file: File, name: str, role: str, part: Part) -> bool:
    """Check a part against its digest: True if it matches or there is none, False for an unknown algorithm;
    FormatError if it differs."""
    if part.digest is None:
        return True
    with guarded(FormatError, "hashing", file=file.name, tensor=name, part=role):
        array = file.array(part)
        chunks_of: dict[str, Any] = {"stored": array.stored_chunks, "decoded": array.chunks}
        verdict = check_digest(part.digest, chunks_of.pop(part.digest_of)())
        if verdict.state == "wrong":
            error = digest_error(part, verdict)
            [(other_kind, chunks)] = chunks_of.items()
            with suppress(SquishError):  # damaged bytes may not decode, or their plugin is not installed
                if part.filters and check_digest(part.digest, chunks()).state == "ok":
                    error.hint = f"It matches the {other_kind} bytes; this format hashes the {part.digest_of} ones."
            raise error
        return verdict.state == "ok"


def digest_error(part: Part, verdict: Verdict) -> FormatError:
    """The error for a part whose digest is another one."""
    return FormatError(
        "the digest does not match", offset=part.segments[0].offset if part.segments else None,
        expected=verdict.expected, found=verdict.found, code=ErrorCode.DIGEST,
        hint="The bytes are damaged, or the digest covers other bytes.",
    )  # fmt: skip


def check_empty(file: File, name: str, role: str, part: Part) -> None:
    """Undo the filters of an empty part, which reading never does."""
    if part.filters and not part.nbytes:
        with guarded(FormatError, "decoding", file=file.name, tensor=name, part=role):
            file.array(part).bytes(0, 0)


class Check:
    """One run over an open file, collecting findings."""

    def __init__(self, file: File, progress: Progress | None) -> None:
        self.file, self.problems, self.digests, self.unverified = file, list(file.problems), 0, 0
        self.decoded = 0
        self._progress = progress
        self._scratch: np.ndarray | None = None
        self._done = 0
        self._total: int | None = None

    def structure(self) -> None:
        """The findings of the format's own `verify`, and tensors that cannot be read."""
        container = self.file.registry.container(self.file.format)
        with self._collect(), computing(FormatError, "verifying", file=self.file.name):
            self.problems += container.verify(self.file.index, self.file.source, self.file.limits)
            self.problems += file_problems(self.file)
        reported = {(problem.where, problem.message) for problem in self.problems}
        for name, spec in self.file.index.tensors.items():
            if spec.problem and (name, spec.problem) not in reported:
                self.problems.append(
                    Problem(code=ErrorCode.UNREADABLE, severity="error", where=name, message=spec.problem)
                )  # fmt: skip
        for child in self.file.children.values():
            inner = Check(child, None)
            inner.structure()
            self.problems += inner.problems

    def data(self) -> None:
        """Digests of all parts, and the decoding of all tensors, panel by panel."""
        tensors = [self.file[name] for name in self.file]
        self._total = sum(tensor.nbytes for tensor in tensors)
        for tensor in tensors:
            encodings = [encoding.parts for encoding in tensor.spec.encodings]
            for parts in (*encodings, tensor.spec.extras):
                for role, part in parts.items():
                    self._digest(tensor, role, part)
            if not tensor.spec.problem:
                with self._collect():
                    self._decode(tensor)
                    self.decoded += 1
            self._done += tensor.nbytes
            if self._progress:
                self._progress(tensor.name, self._done, self._total)
        for child in self.file.children.values():
            inner = Check(child, None)
            inner.problems = []  # `structure` lists those of opening
            inner.data()
            self.problems += inner.problems
            self.digests += inner.digests
            self.unverified += inner.unverified

    def not_checked(self, deep: bool) -> Iterator[str]:
        """What this run did not check, in words."""
        index = self.file.index
        parts = [
            part for spec in index.tensors.values()
            for roles in (*(encoding.parts for encoding in spec.encodings), spec.extras) for part in roles.values()
        ]  # fmt: skip
        digests = sum(part.digest is not None for part in parts)
        if not deep:
            yield f"the values of {counted(len(self.file), 'tensor')} (deep=True decodes them)"
            if digests:
                yield f"{counted(digests, 'digest')} (deep=True checks them)"
            return
        if undecoded := len(self.file) - self.decoded:
            yield f"the values of {counted(undecoded, 'tensor')}, which cannot be decoded here"
        if self.unverified:
            yield f"{counted(self.unverified, 'digest')} that cannot be checked here"
        if not digests and all(ref.digest is None for ref in index.files):
            yield "whether the values are the original ones (the file has no digests)"

    def _digest(self, tensor: Tensor, role: str, part: Part) -> None:
        if part.digest is None:
            return
        self.digests += 1
        self.unverified += 1  # until it is compared
        with self._collect():
            try:
                is_comparable = check_part(self.file, tensor.name, role, part)
            except SquishError as error:
                self.unverified -= error.code == ErrorCode.DIGEST
                raise
            if is_comparable:
                self.unverified -= 1
            else:
                message = f"the digest {part.digest[:40]!r} is of an unknown kind"
                where = f"{tensor.name}/{role}"
                self.problems.append(Problem(code="unverified", severity="note", where=where, message=message))

    def _decode(self, tensor: Tensor) -> None:
        import numpy as np

        with tensor.guard("decoding"):
            bound = tensor.bound.held() if self.file.source.is_remote else tensor.bound
            bound.check_limits()
            for role, part in bound.encoding.parts.items():
                check_empty(self.file, tensor.name, role, part)
            if self._scratch is None:
                self._scratch = np.empty(2 * PANEL_BYTES, np.uint8)  # new memory for each panel would cost page faults
            decode_all(bound.codec, bound.parts, tensor.spec, bound.params, self._scratch)

    def _collect(self) -> Any:
        return _Collect(self.problems)


class _Collect:
    """Turns a SquishError raised in the block into a finding."""

    def __init__(self, problems: list[Problem]) -> None:
        self._problems = problems

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        if isinstance(error, SquishError):
            # A missing plugin leaves a tensor unchecked; the file itself may be fine.
            severity = "warning" if isinstance(error, MissingPluginError) else "error"
            self._problems.append(as_problem(error, severity))
            return True
        return False


def severities(problems: tuple[Problem, ...]) -> Iterator[tuple[str, int]]:
    """How many findings of each severity, worst first."""
    for severity in ("error", "warning", "note"):
        count = sum(problem.severity == severity for problem in problems)
        if count:
            yield severity, count


def report_lines(report: Report, strict: bool = False) -> Iterator[str]:
    """The findings, equal ones merged, then the verdict and what was not checked."""
    places: dict[tuple[str, str, str], list[str]] = {}
    for problem in report.problems:
        places.setdefault((problem.severity, problem.code, problem.message), []).append(problem.where)
    for (severity, code, message), locations in places.items():
        more = f" and {len(locations) - PLACES} more" if len(locations) > PLACES else ""
        shown_places = ", ".join(shorten(place, MAX_PLACE) for place in locations[:PLACES])
        yield from (f"{severity:8} {shown_places}{more} ({code})", f"         {shorten(message, MAX_MESSAGE)}")
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
