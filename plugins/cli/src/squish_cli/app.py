"""The typer app: its commands, the plugins' commands, and how answers and errors become exit codes."""

from __future__ import annotations

import io
import os
import re
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import typer

from squish_core.codes import ErrorCode
from squish_core.errors import SquishError, UsageError, redact

from . import words
from .output import Answer, show, show_error, show_warning
from .parameters import App
from .settings import check_settings

# command -> (module of the function with its name, examples); a command loads no other commands
COMMANDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "ls": ("views", ("squish ls model.gguf", "squish ls -l model.gguf 'blk.0.*'", "squish ls model.gguf --sort size")),
    "info": (
        "views",
        (
            "squish info model.gguf",
            "squish info model.gguf --meta tokenizer.chat_template",
            "squish info model.gguf blk.0.attn_q.weight",
        ),
    ),
    "plan": ("views", ("squish plan model.gguf 'blk.0.*'", "squish plan --format gguf --feature dtype=q4_k")),
    "needs": ("needs", ("squish needs model.gguf --backend cpu", "squish needs model.gguf --requirements")),
    "verify": ("checks", ("squish verify model.gguf", "squish verify *.gguf --deep --strict")),
    "diff": ("checks", ("squish diff model.gguf model.zt", "squish diff model.gguf small.gguf --all")),
    "convert": (
        "checks",
        (
            "squish convert model.gguf model.zt",
            "squish convert in.safetensors q8.gguf --encode q8_0 --encode '*embed*=keep'",
            "squish convert in.gguf out.zt --to ztensor:encoding=zstd --only 'blk.0.*'",
            "squish convert q8.gguf q4.gguf --encode q4_0 --requantize",
            "squish convert in.gguf out.zt --dry-run",
            "squish convert model/ out.gguf --encode q4_k --scheduler local:8 --resume",
        ),
    ),
    "cp": (
        "cp",
        (
            "squish cp https://example.org/model.gguf layer0.gguf --only 'blk.0.*'",
            "squish cp s3://models/moe/ expert3.safetensors --only '*.experts.3.*'",
        ),
    ),
    "matrix": ("listings", ("squish matrix squizd", "squish matrix npydir --backend cpu --backend numpy")),
    "bench": ("bench", ("squish bench model.gguf", "squish bench --synthetic --json")),
    "formats": ("listings", ("squish formats", "squish formats gguf")),
    "codecs": ("listings", ("squish codecs",)),
    "backends": ("listings", ("squish backends",)),
    "plugins": ("listings", ("squish plugins", "SQUISH_PLUGINS=-squish-gguf squish plugins")),
    "new-plugin": ("scaffold", ("squish new-plugin my-format", "squish new-plugin my-format -o plugins")),
    "doctor": ("listings", ("squish doctor", "squish doctor models --clean")),
}


def run(argv: Sequence[str]) -> int:
    """Run one command line and return its exit code; KeyboardInterrupt if it is interrupted."""
    try:
        return _run(argv)
    except BrokenPipeError:
        # The reader is gone (`| head`): print nothing, not even while Python flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _run(argv: Sequence[str]) -> int:
    as_json = "--json" in argv  # parsed here, so that usage errors are JSON, too
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a name must not stop a terminal that is not UTF-8
    showwarning = warnings.showwarning
    warnings.showwarning = show_warning
    line = list(argv)
    try:
        if words.first_word(line) != "doctor":  # which reports them
            check_settings()
        line = words.understood(argv)
        app = build(line)
        if (first := words.first_word(line)) and first not in COMMANDS:
            from . import extras

            line = words.with_command(line, extras.command_names(app))
        # standalone_mode=False: typer's own error handling has other exit codes and messages.
        result: Any = app(args=line or ["--help"], prog_name="squish", standalone_mode=False)
        if result == 130:  # typer's answer to Ctrl-C
            raise KeyboardInterrupt
        if isinstance(result, Answer):
            show(result, as_json)
        sys.stdout.flush()
        return result.code if isinstance(result, Answer) else int(result or 0)
    except typer.Abort:
        raise KeyboardInterrupt from None
    except BrokenPipeError:
        raise
    except (SquishError, OSError) as error:
        show_error(advised(error, line), as_json)
        sys.stdout.flush()
    except Exception as error:
        if not hasattr(error, "format_message"):  # typer's usage errors have it in every version
            raise
        show_error(advised(usage(error), line), as_json)
    finally:
        warnings.showwarning = showwarning
    return 2


def advised(error: Exception, argv: Sequence[str]) -> Exception:
    """The error, with a command that does what was probably meant."""
    from .advice import advise

    if isinstance(error, SquishError) and (hint := advise(error, argv)):
        error.hint = redact(hint)
    return error


def usage(error: Any) -> SquishError:
    """The UsageError for a command line that typer cannot parse."""
    context = getattr(error, "ctx", None)
    command = getattr(context, "command_path", "squish")
    message, expected = error.format_message().rstrip("."), None
    if context is not None and message == context.get_help().rstrip("."):  # a group without a command
        message, expected = f"`{command}` needs a command", ", ".join(context.command.commands)
    epilog = getattr(getattr(context, "command", None), "epilog", None) or ""
    example = re.search(r"^ +(squish .+)$", epilog, re.MULTILINE)
    for_example = f"For example `{example[1]}`. " if example and not message.startswith("No such") else ""
    return UsageError(message, code=ErrorCode.USAGE, expected=expected, hint=f"{for_example}See `{command} --help`.")


def build(argv: Sequence[str]) -> typer.Typer:
    """The app, with a single command if `argv` names one: building all of them and loading plugins takes time."""
    app = App(
        rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )  # fmt: skip
    app.callback()(squish)
    first = words.first_word(argv)
    for name in [first] if first in COMMANDS else COMMANDS:
        add_command(app, name)
    if first in COMMANDS or "--version" in argv:
        return app
    from . import extras
    from .cache import cache_group

    app.add_typer(cache_group(), name="cache")
    names = [word for word in argv if not word.startswith("-")]
    extras.check_known(app, names, extras.add_commands(app))
    return app


def add_command(app: typer.Typer, name: str) -> None:
    """Add one command, with its examples."""
    module, examples = COMMANDS[name]
    function = getattr(import_module(f"squish_cli.{module}"), name.replace("-", "_"))
    lines = "\n".join(f"  {example}" for example in examples)
    app.command(name, epilog=f"\b\nExample{'s' if len(examples) > 1 else ''}:\n{lines}")(function)


def print_version(version: bool) -> None:
    """Print the version and stop, on request."""
    if version:
        from squish_core.version import __version__

        print(f"squish-core {__version__}")
        raise typer.Exit


def squish(
    version: Annotated[
        bool, typer.Option("--version", "-V", help="Print the version.", callback=print_version)
    ] = False,
) -> None:
    """Inspect, check, compare and convert compressed transformer weights of any format.

    Every command takes --json. Exit codes: 0 success, 1 there is a fault or a difference, 2 the command could not run.
    """
