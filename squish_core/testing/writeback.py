"""The property of every conversion: what is written verifies and is what the report states, or nothing is written."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from attrs import frozen

from squish_core import dtypes
from squish_core.analysis.diff import Difference, diff
from squish_core.analysis.verify import verify
from squish_core.codes import BUGS, ErrorCode
from squish_core.conversion.convert import Conversion, convert
from squish_core.conversion.step import Step
from squish_core.errors import MissingPluginError, SquishError
from squish_core.file import File
from squish_core.opening import open as open_file

FAULTS = (*BUGS, ErrorCode.CHANGED)
"""Codes of errors that are no refusal: a bug in a plugin, or a state that a conversion must not reach."""


class WritebackError(AssertionError):
    """A conversion that breaks the property; `kind` is the class of the fault."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind, self.detail = kind, detail


@frozen
class Outcome:
    """`report` of a conversion that was written and holds, or the `refusal`."""

    report: Conversion | None
    refusal: SquishError | None = None


def check_conversion(file: File, target: Path, to: str, encode: str | None = None) -> Outcome:
    """Convert an open file and check all that the result promises; raises WritebackError.

    `target` must not exist; what is written stays there. Its folder must be empty otherwise. An error that opening
    the source reported (a method that is not known) may come over: the conversion did not cause it.
    """
    try:
        report = convert(file, target, to, encode, requantize=True)
    except SquishError as error:
        if error.code in FAULTS:
            raise WritebackError(error.code, str(error)) from error
        if debris := sorted(path.name for path in target.parent.iterdir()):
            raise WritebackError("debris", f"{', '.join(debris)} after: {error}") from error
        return Outcome(None, error)
    except Exception as error:
        raise WritebackError("exception", f"{type(error).__name__}: {error}") from error
    checked = verify(target, deep=True, registry=file.registry)
    for first in checked.problems:
        if first.severity != "error" or first in file.problems:
            continue
        raise WritebackError("verify", f"{first.where}: {first.message} ({first.code})")
    with open_file(target, registry=file.registry) as written:
        _check_tensors(file.without_caches(), written, report)
    return Outcome(report)


def _check_tensors(source: File, written: File, report: Conversion) -> None:
    names = {step.written for step in report.steps}
    if absent := sorted(names.difference(written)):
        raise WritebackError("names", f"in the report and not in the file: {', '.join(absent[:3])}")
    noted = " ".join(report.notes)  # where a format stores a tensor twice, a note names the other one
    if extra := sorted(name for name in set(written).difference(names) if name not in noted):
        raise WritebackError("names", f"in the file and not in the report: {', '.join(extra[:3])}")
    for step in report.steps:
        _check_values(source, written, step)
    steps = [step for step in report.steps if source.index.tensors[step.name].encodings[0] == step.origin]
    _check_difference(diff(source, written, registry=source.registry), steps)


def _check_difference(difference: Difference, steps: Iterable[Step]) -> None:
    """`diff` calls equal what the report calls equal in the source's own dtype."""
    states = {item.name: item.state for item in difference.tensors}
    for step in steps:
        own = step.exactness.kind == "bytes" or step.exactness.dtype == step.spec.dtype
        if own and step.name == step.spec.name and states[step.name] not in ("bytes", "values"):
            raise WritebackError("diff", f"{step.name}: diff says {states[step.name]}, the report {step.exactness}")


def _check_values(source: File, written: File, step: Step) -> None:
    """One tensor of the file is as close to the source's as the report states."""
    import numpy as np

    before, after = source[step.name], written[step.written]
    shape = after.shape if step.row is None else after.shape[1:]
    if before.shape != shape:
        raise WritebackError("shape", f"{step.name}: {before.shape} became {shape}")
    if step.spec.problem and not after.spec.encodings:
        return
    try:
        if before.bound.encoding != step.origin and not step.note:
            raise WritebackError("note", f"{step.name}: not converted from what is read, and no note says so")
        with before.guard("decoding"):
            values = before.file.bind(before.spec, step.origin).read()
    except MissingPluginError:
        return
    except SquishError as error:
        raise WritebackError("unreadable", f"{step.name} was written though it cannot be read: {error}") from error
    result = after.numpy() if step.row is None else after[step.row]
    exactness = step.exactness
    if exactness.kind != "bounded":
        dtype = dtypes.to_numpy(exactness.dtype) if exactness.dtype else values.dtype
        with np.errstate(all="ignore"):
            expected, found = (array.astype(dtype, copy=False) for array in (values, result))
        if not _equal(expected, found):
            raise WritebackError(
                "values", f"{step.name}: {_first_difference(expected, found)}, reported as {exactness}"
            )
        return
    expected, found = _widest_values(values), _widest_values(result)
    lost = np.isfinite(expected) & ~np.isfinite(found)
    if lost.any():
        raise WritebackError("overflow", f"{step.name}: {_first_difference(expected, found, lost)}")
    if exactness.error is not None:
        finite = np.isfinite(expected) & np.isfinite(found)
        gap = float(np.abs(expected[finite] - found[finite]).max(initial=0))
        if gap > exactness.error * (1 + 1e-6):
            raise WritebackError("bound", f"{step.name}: off by {gap}, reported as {exactness}")


def _equal(expected: Any, actual: Any) -> bool:
    """Equal values; any NaN equals any other, and the two zeros are equal."""
    import numpy as np

    with np.errstate(all="ignore"):
        return bool(((expected == actual) | ((expected != expected) & (actual != actual))).all())


def _widest_values(values: Any) -> Any:
    import numpy as np

    with np.errstate(all="ignore"):  # a signaling NaN becomes a quiet one
        return values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)


def _first_difference(expected: Any, actual: Any, where: Any = None) -> str:
    import numpy as np

    differs = ~((expected == actual) | ((expected != expected) & (actual != actual))) if where is None else where
    index = tuple(int(axis) for axis in np.argwhere(differs)[0])
    return f"{expected[index]} became {actual[index]} at {list(index)} ({int(differs.sum())} differ)"
