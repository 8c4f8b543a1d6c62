"""`Job`: how a conversion runs in other processes."""

from __future__ import annotations

from typing import Any

from attrs import field, frozen

from squish_core.codes import ErrorCode
from squish_core.errors import UsageError
from squish_core.text import parse_bytes

TASK_BYTES = 256 << 20
"""Approximate bytes that a task writes."""
VERIFY = "verify"
"""`resume` that reads all finished tasks again."""


def _nbytes(size: int | str | None) -> int:
    nbytes = TASK_BYTES if size is None else parse_bytes(str(size))
    if not nbytes:
        raise UsageError(
            "invalid {option:task_bytes}", expected="a size such as 256MiB", found=repr(size), code=ErrorCode.USAGE
        )
    return nbytes


@frozen
class Job:
    """Run a conversion as tasks in other processes, with the same bytes and the same report.

    Attributes
    ----------
    scheduler
        Where tasks run: "local:2", or "dask:tcp://..." (with squish-dask).
    task_bytes
        Approximate bytes that a task writes: a number, or a size such as "256MiB" (the default).
    resume
        True: resume an unfinished job with the same arguments. "verify": first check everything that it has written.
    journal
        Path of the job's journal; by default `NAME.squish-journal` beside the target.

    Raises
    ------
    UsageError
        A value is invalid.

    Examples
    --------
    >>> squish.Job("local:8", task_bytes="1MiB").task_bytes
    1048576
    """

    scheduler: str = field()
    task_bytes: int = field(default=TASK_BYTES, converter=_nbytes, kw_only=True)
    resume: bool | str = field(default=False, kw_only=True)
    journal: Any = field(default=None, kw_only=True)

    @scheduler.validator
    def _check_scheduler(self, attribute: object, value: object) -> None:
        if not isinstance(value, str):
            raise UsageError(
                "invalid job=",
                expected="a scheduler such as 'local:8', or squish.Job('local:8', ...)",
                found=repr(value),
                code=ErrorCode.USAGE,
            )

    @resume.validator
    def _check_resume(self, attribute: object, value: object) -> None:
        if value not in (False, True, VERIFY):
            raise UsageError(
                "invalid {option:resume}", expected="True or 'verify'", found=repr(value), code=ErrorCode.USAGE
            )
