"""Arguments and options of several commands: one name and one text for each, also in plugins' commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from squish_core.codes import ErrorCode
from squish_core.errors import UsageError

if TYPE_CHECKING:
    from squish_convert.api import Job

FileName = Annotated[str, typer.Argument(metavar="FILE", help="A file of weights, or a model's folder.")]
Patterns = Annotated[
    list[str] | None,
    typer.Argument(metavar="PATTERN", help="Only tensors whose names match, such as 'blk.0.*'."),
]
Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="ID[:key=value,...]",
        help="Read the file as this format instead of detecting it (see `squish formats`).",
    ),
]
Assets = Annotated[
    str | None,
    typer.Option("--assets", metavar="DIR", help="Folder with the config and tokenizer files that the model lacks."),
]
To = Annotated[
    str | None,
    typer.Option(
        "--to", metavar="ID[:key=value,...]", help="Format to write. By default, the format of the target's suffix."
    ),
]
Encode = Annotated[
    list[str] | None,
    typer.Option(
        "--encode",
        metavar="[PATTERN=]SPEC",
        help="Encode values as SPEC: int8, f16, int4:group_size=64, '*embed*=keep'. Repeatable; the last match wins.",
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option("--only", metavar="PATTERN", help="Write only tensors whose names match. Repeatable."),
]
Names = Annotated[
    str | None,
    typer.Option(
        "--names",
        metavar="keep|hf|gguf",
        help="Keep the names, or write Hugging Face's or GGUF's. By default, the names that the target's engine loads.",
    ),
]
Requantize = Annotated[
    bool, typer.Option("--requantize", help="Let --encode quantize tensors that are already quantized.")
]
Backend = Annotated[str | None, typer.Option("--backend", metavar="ID[:key=value]", help="Consider only this backend.")]
Prefer = Annotated[
    str,
    typer.Option(
        "--prefer",
        metavar="NAME",
        help="What to prefer: spec (the format's own order of encodings), smallest (least memory when loaded) or exact "
        "(backends that round neither weights nor inputs).",
    ),
]
Op = Annotated[
    str | None,
    typer.Option(
        "--op",
        metavar="NAME",
        help="The operation: linear (y = x W^T), embed (rows by token id), experts (linear, with one of several "
        "matrices for each row) or dense (the decoded array). By default, linear for a matrix, experts for a stack of "
        "matrices and dense for anything else.",
    ),
]
Scheduler = Annotated[
    str | None,
    typer.Option(
        "--scheduler",
        metavar="local[:N]|dask[:ADDRESS]",
        help="Run as tasks in N processes, or on the workers of a Dask cluster.",
    ),
]
TaskBytes = Annotated[
    str | None,
    typer.Option("--task-bytes", metavar="SIZE", help="Approximate bytes that each task writes. By default, 256MiB."),
]
Resume = Annotated[
    str | None,
    typer.Option(
        "--resume",
        metavar="[=verify]",
        help="Resume the unfinished job of this command; =verify first checks what it has written.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Do not show progress.")]


def job(
    scheduler: str | None, task_bytes: str | None = None, resume: str | None = None, journal: str | None = None
) -> Job | None:
    """`job=` of `convert`, from the values of `--scheduler`, `--task-bytes`, `--resume` and `--journal`.

    Parameters
    ----------
    scheduler, task_bytes, journal
        What was typed.
    resume
        What was typed: nothing, "True" (without a value) or "verify".

    Returns
    -------
    Job or None
        None without any of them.

    Raises
    ------
    UsageError
        A value is invalid, or `--scheduler` is missing.

    Examples
    --------
    >>> job("local:2", resume="True").resume, job(None)
    (True, None)
    """
    if scheduler is None:
        for name, value in (("task_bytes", task_bytes), ("resume", resume), ("journal", journal)):
            if value:
                raise UsageError(f"{name}= needs scheduler=", code=ErrorCode.USAGE, hint="Add scheduler='local'.")
        return None
    from squish_convert.api import Job

    return Job(scheduler, task_bytes=task_bytes, resume=resume == "True" or resume or False, journal=journal)
