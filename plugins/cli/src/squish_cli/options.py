"""Arguments and options of several commands, one name and one text for each, also in plugins' commands; and the app.

Typer 0.29 loads pydantic to convert any value, even text, which takes 0.2 s, and has no setting against it. So commands
override the lookup of a parameter's converter (`get_runtime_param`) to return values of the right type unchanged. Older
versions have no such method and do not load pydantic. `tests/cli/test_cli_process.py` fails if a new version undoes
this.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import wraps
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core
from attrs import evolve

from squish_core.codes import ErrorCode
from squish_core.errors import UsageError

from .output import Answer

if TYPE_CHECKING:
    from squish_convert.api import Job

    from squish_core.plugins.registry import Registry

FileName = Annotated[str, typer.Argument(metavar="FILE", help="A file of weights, or a model's folder.")]
Patterns = Annotated[
    list[str] | None,
    typer.Argument(metavar="PATTERN", help="Only tensors whose names match, such as 'blk.0.*'."),
]
HtmlPage = Annotated[
    str | None,
    typer.Option("--html", metavar="OUT", help="Also write a page with tables and charts. Replaces nothing."),
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
Part = Annotated[
    list[str] | None,
    typer.Option(
        "--part",
        metavar="NAME[=FILE]",
        help="Write this component of a model instead of its text layers: vision, mtp. With FILE, join that file of "
        "the component with SRC, a GGUF of the text layers; repeatable.",
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
        metavar="spec|smallest|exact",
        help="What to prefer: spec (the format's own order of encodings), smallest (least memory when loaded) or exact "
        "(backends that round neither weights nor inputs).",
    ),
]
Op = Annotated[
    str | None,
    typer.Option(
        "--op",
        metavar="linear|embed|experts|dense",
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
Output = Annotated[
    str | None,
    typer.Option(
        "--output", metavar="sarif|github", help="Print findings as SARIF 2.1.0, or as annotations of GitHub."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
JsonLines = Annotated[
    bool, typer.Option("--json-lines", help="Print progress and the result as JSON documents, one a line.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Do not show progress.")]


def components(parts: list[str] | None) -> str | dict[str, str] | None:
    """`part=` of `convert`, from the values of `--part`.

    Parameters
    ----------
    parts
        Names of components, or `NAME=FILE`.

    Returns
    -------
    str, dict or None
        One name, or a file for each component.

    Raises
    ------
    UsageError
        A component has two files, or is named beside others.

    Examples
    --------
    >>> components(["vision=mmproj.gguf"])
    {'vision': 'mmproj.gguf'}
    """
    pairs = [each.partition("=") for each in parts or ()]
    names = [name for name, _, _ in pairs]
    if len(pairs) == 1 and not pairs[0][1]:
        return names[0]
    if any(not equals for _, equals, _ in pairs) or len({*names}) < len(names):
        raise UsageError(
            "--part names one component to write, or one file for each component to join",
            expected="--part NAME, or --part NAME=FILE once for each NAME",
            found=", ".join(parts or ()),
            code=ErrorCode.USAGE,
            hint="Convert into one file for each component.",
        )
    return {name: file for name, _, file in pairs} or None


def job(
    scheduler: str | None, task_bytes: str | None = None, resume: str | None = None, journal: str | None = None
) -> Job | None:
    """`job=` of `convert`, from the values of `--scheduler`, `--task-bytes`, `--resume` and `--journal`.

    Parameters
    ----------
    scheduler, task_bytes, journal
        The values of the options.
    resume
        None, "True" (the option without a value) or "verify".

    Returns
    -------
    Job or None
        None if all are None.

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
        for name, value in (("--task-bytes", task_bytes), ("--resume", resume), ("--journal", journal)):
            if value:
                raise UsageError(f"{name} needs --scheduler", code=ErrorCode.USAGE, hint="Add --scheduler local.")
        return None
    from squish_convert.api import Job

    return Job(scheduler, task_bytes=task_bytes, resume=resume == "True" or resume or False, journal=journal)


class _LazyConverter:
    """Typer's converter of a parameter, called only for values of another type."""

    def __init__(self, converter: Callable[[], Any]) -> None:
        self._converter = converter

    def itself(self) -> _LazyConverter:
        """Replaces `get_runtime_param`."""
        return self

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Convert a value, as typer does; text and switches need no conversion."""
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        annotation = param.type_descriptor.annotation
        if annotation == list[str] and not isinstance(value, str) and {*map(type, value)} <= {str}:
            return list(value)
        return value if type(value) is annotation else self._converter().coerce(value, param=param, ctx=ctx)


def _with_lazy_converters(parameters: Any) -> Any:
    """Return the parameters of a command, with lazy converters."""
    for parameter in parameters:
        converter = getattr(parameter, "get_runtime_param", None)  # older versions do not load pydantic
        if converter is not None and "get_runtime_param" not in vars(parameter):
            lazy = _LazyConverter(converter)
            parameter.get_runtime_param = lazy.itself
    return parameters


class Command(typer.core.TyperCommand):
    """A command whose parameters have lazy converters."""

    def get_params(self, ctx: Any) -> Any:
        return _with_lazy_converters(super().get_params(ctx))


def check_page(path: str | None) -> None:
    """Refuse a page that would replace a file, before the work begins.

    Parameters
    ----------
    path
        The page; None without one.

    Raises
    ------
    UsageError
        The file exists.

    Examples
    --------
    >>> from squish_cli.api import check_page
    >>> check_page("page.html")
    """
    if path is not None and os.path.lexists(path):
        hint = "Remove it, or pass another name."
        raise UsageError("this file exists, and a page replaces nothing", file=path, code=ErrorCode.EXISTS, hint=hint)


class Group(typer.core.TyperGroup):
    """A group whose parameters have lazy converters."""

    def get_params(self, ctx: Any) -> Any:
        return _with_lazy_converters(super().get_params(ctx))


class App(typer.Typer):
    """An app of commands, those of plugins included; each takes `--json`, and may have examples.

    `prefix` precedes the names of its commands in those of their schemas: "cache-". `schemas`: name -> number and
    import string of the class that describes the command's document.
    """

    def __init__(self, *, prefix: str = "", **options: Any) -> None:
        super().__init__(cls=Group, **options)
        self.prefix, self.schemas = prefix, dict[str, tuple[int, str]]()

    def command(
        self,
        name: str | None = None,
        *,
        examples: Sequence[str] = (),
        document: str = "",
        number: int = 1,
        progress: bool = False,
        **options: Any,
    ) -> Any:
        """Add a command, as in typer; its help ends with the examples.

        `document` is "module:Class", the class that describes what it prints with `--json`, and `number` that of its
        schema; with `progress` it also takes `--json-lines`.
        """
        lines = "".join(f"\n  {example}" for example in examples)
        epilog = f"\b\nExample{'s' if len(examples) > 1 else ''}:{lines}" if examples else None
        register = super().command(name, **{"cls": Command, "epilog": epilog, **options})

        def add(function: Callable[..., Any]) -> Callable[..., Any]:
            schema_name = f"{self.prefix}{name or function.__name__.replace('_', '-')}"
            self.schemas[schema_name] = number, document
            register(_with_json(function, f"squish/{schema_name}/{number}", progress))
            return function

        return add

    def add_plugins(self, registry: Registry) -> list[tuple[str, str]]:
        """Add the commands of all plugins; returns (plugin, reason) for each that failed."""
        failed = []
        for implementation in registry.manager.hook.squish_commands.get_hookimpls():
            try:
                implementation.function(self)
            except Exception as error:  # a plugin may raise anything
                failed.append((implementation.plugin_name, f"{type(error).__name__}: {error}"))
        return failed


def _with_json(function: Callable[..., Any], schema: str, progress: bool) -> Callable[..., Any]:
    """Return the function of a command, with `--json` and, with `progress`, `--json-lines`; its answer has a schema."""
    declared = signature(function, eval_str=True)
    added = {"json": Json, **({"json_lines": JsonLines} if progress else {})}

    @wraps(function)
    def command(**arguments: Any) -> Any:
        answer = function(**{name: value for name, value in arguments.items() if name not in added})
        return evolve(answer, schema=schema) if isinstance(answer, Answer) else answer

    new = [Parameter(name, Parameter.KEYWORD_ONLY, default=False, annotation=each) for name, each in added.items()]
    vars(command)["__signature__"] = declared.replace(parameters=[*declared.parameters.values(), *new])
    return command
