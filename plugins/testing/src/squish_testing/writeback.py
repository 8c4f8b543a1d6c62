"""Check a conversion: the output verifies and matches the report, or nothing is written."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from attrs import frozen
from squish_convert.compare.diff import Difference, diff
from squish_convert.convert import Conversion, convert
from squish_convert.step import Step

from squish_core import dtypes
from squish_core.checking.verify import verify
from squish_core.codes import BUGS, ErrorCode
from squish_core.errors import MissingPluginError, SquishError
from squish_core.file import File
from squish_core.opening import open as open_file

FAULTS = (*BUGS, ErrorCode.CHANGED)
"""Error codes that are not refusals: a plugin's bug, or a state that a conversion must not reach."""


class WritebackError(AssertionError):
    """A conversion that fails the check; `kind` is the kind of fault."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind, self.detail = kind, detail


@frozen
class Outcome:
    """The `report` of a conversion that passed, or the `refusal`."""

    report: Conversion | None
    refusal: SquishError | None = None


def check_conversion(file: File, target: Path, to: str, encode: str | None = None) -> Outcome:
    """Convert an open file and check the output against the report; raises WritebackError.

    `target` must not exist and its folder must be empty; the output stays there. Errors that opening the source
    reported (such as an unknown method) may also occur in the output: the conversion did not cause them.
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
    with open_file(target, registry=file.registry) as output:
        _check_tensors(file.without_caches(), output, report)
    return Outcome(report)


def _check_tensors(source: File, output: File, report: Conversion) -> None:
    names = {step.written for step in report.steps}
    if absent := sorted(names.difference(output)):
        raise WritebackError("names", f"in the report but not in the file: {', '.join(absent[:3])}")
    notes = " ".join(report.notes)  # if a format stores a tensor twice, a note names the copy
    if extra := sorted(name for name in set(output).difference(names) if name not in notes):
        raise WritebackError("names", f"in the file but not in the report: {', '.join(extra[:3])}")
    for step in report.steps:
        _check_values(source, output, step)
    steps = [step for step in report.steps if source.index.tensors[step.name].encodings[0] == step.origin]
    _check_difference(diff(source, output, registry=source.registry), steps)


def _check_difference(difference: Difference, steps: Iterable[Step]) -> None:
    """Tensors that the report calls equal in the source's dtype are also equal for `diff`."""
    states = {item.name: item.state for item in difference.tensors}
    for step in steps:
        own = step.exactness.kind == "bytes" or step.exactness.dtype == step.spec.dtype
        if own and step.name == step.spec.name and states[step.name] not in ("bytes", "values"):
            raise WritebackError("diff", f"{step.name}: diff says {states[step.name]}, the report {step.exactness}")


def _check_values(source: File, output: File, step: Step) -> None:
    """A tensor is as close to its source as the report says."""
    import numpy as np

    before, after = source[step.name], output[step.written]
    shape = after.shape if step.row is None else after.shape[1:]
    if before.shape != shape:
        raise WritebackError("shape", f"{step.name}: {before.shape} became {shape}")
    if step.spec.problem and not after.spec.encodings:
        return
    try:
        if before.bound.encoding != step.origin and not step.note:
            raise WritebackError("note", f"{step.name}: not converted from the encoding that is read, without a note")
        with before.guard("decoding"):
            values = before.file.bind(before.spec, step.origin).read()
    except MissingPluginError:
        return
    except SquishError as error:
        raise WritebackError("unreadable", f"{step.name} was written although it cannot be read: {error}") from error
    result = after.numpy() if step.row is None else after[step.row]
    exactness = step.exactness
    if exactness.kind != "bounded":
        dtype = dtypes.to_numpy(exactness.dtype) if exactness.dtype else values.dtype
        with np.errstate(all="ignore"):
            expected, actual = (array.astype(dtype, copy=False) for array in (values, result))
        if not _equal(expected, actual):
            raise WritebackError(
                "values", f"{step.name}: {_first_difference(expected, actual)}, reported as {exactness}"
            )
        return
    expected, actual = _widest_values(values), _widest_values(result)
    lost = np.isfinite(expected) & ~np.isfinite(actual)
    if lost.any():
        raise WritebackError("overflow", f"{step.name}: {_first_difference(expected, actual, lost)}")
    if exactness.error is not None:
        finite = np.isfinite(expected) & np.isfinite(actual)
        gap = float(np.abs(expected[finite] - actual[finite]).max(initial=0))
        if gap > exactness.error * (1 + 1e-6):
            raise WritebackError("bound", f"{step.name}: off by {gap}, reported as {exactness}")


def _equal(expected: Any, actual: Any) -> bool:
    """Return whether values are equal, all NaNs being equal and both zeros."""
    import numpy as np

    with np.errstate(all="ignore"):
        return bool(((expected == actual) | ((expected != expected) & (actual != actual))).all())


def _widest_values(values: Any) -> Any:
    import numpy as np

    with np.errstate(all="ignore"):  # converting a signaling NaN warns
        return values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)


def _first_difference(expected: Any, actual: Any, where: Any = None) -> str:
    import numpy as np

    differs = ~((expected == actual) | ((expected != expected) & (actual != actual))) if where is None else where
    index = tuple(int(axis) for axis in np.argwhere(differs)[0])
    return f"{expected[index]} became {actual[index]} at {list(index)} ({int(differs.sum())} differ)"
