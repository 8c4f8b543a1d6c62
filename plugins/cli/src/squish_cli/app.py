"""The app: check settings, collect the commands (also of plugins), run one, and turn its result into an exit code."""

from __future__ import annotations

import io
import os
import re
import sys
import warnings
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer

from squish_core import text
from squish_core.codes import ErrorCode
from squish_core.errors import MissingPluginError, SquishError, UsageError, redact
from squish_core.io.system import IS_POSIX

from . import settings, spellings, tables
from .options import App
from .output import Answer, option, printing, show, show_error, show_warning
from .shells import install_completion, show_completion

if TYPE_CHECKING:
    from squish_core.plugins.registry import Registry

# command -> (module of the function with its name, examples); a command loads no other commands
COMMANDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "ls": ("views", ("squish ls model.gguf", "squish ls -l model.gguf 'blk.0.*'", "squish ls model.gguf --sort size")),
    "info": (
        "views",
        (
            "squish info model.gguf",
            "squish info model.gguf --meta tokenizer.chat_template",
            "squish info model.gguf blk.0.attn_q.weight",
            "squish info model.gguf --by layer",
        ),
    ),
    "plan": ("views", ("squish plan model.gguf 'blk.0.*'", "squish plan --format gguf --feature dtype=q4_k")),
    "needs": ("needs", ("squish needs model.gguf --backend cpu", "squish needs model.gguf --requirements")),
    "verify": (
        "checks",
        (
            "squish verify model.gguf",
            "squish verify *.gguf --deep --strict",
            "squish verify model.gguf --manifest model.json",
            "squish verify model.gguf --signature model.gguf.sig --key key.pub",
        ),
    ),
    "diff": ("checks", ("squish diff model.gguf model.zt", "squish diff model.gguf small.gguf --all")),
    "convert": (
        "checks",
        (
            "squish convert model.gguf model.zt",
            "squish convert in.safetensors q8.gguf --encode q8_0 --encode '*embed*=keep'",
            "squish convert in.gguf out.zt --to ztensor:encoding=zstd --only 'blk.0.*'",
            "squish convert q8.gguf q4.gguf --encode q4_0 --requantize",
            "squish convert in.gguf out.zt --dry-run",
            "squish convert model/ model.gguf --family my.toml",
            "squish convert model/ out.gguf --encode q4_k --scheduler local:8 --resume",
        ),
    ),
    "card": (
        "card",
        (
            "squish card model.gguf > README.md",
            "squish card q4.gguf --base model/",
            "squish card hf://ORG/NAME/q4.gguf",
        ),
    ),
    "cp": (
        "checks",
        (
            "squish cp https://example.org/model.gguf layer0.gguf --only 'blk.0.*'",
            "squish cp s3://models/moe/ expert3.safetensors --only '*.experts.3.*'",
            "squish cp model.gguf deeper.gguf --layers 0-11,8-15",
            "squish cp model/ stacked/ --to hf --experts stack",
        ),
    ),
    "hash": (
        "identity",
        (
            "squish hash model.gguf",
            "squish hash model.gguf --gguf",
            "squish hash model/ --manifest model.json",
            "squish hash model.gguf --sign key.pem",
        ),
    ),
    "edit": (
        "editing",
        (
            "squish edit model.gguf --set general.name=Tiny --chat-template template.jinja",
            "squish edit model.zt --add lora.safetensors",
            "squish edit model.zt --remove 'blk.0.*' --set license=MIT --unset note",
            "squish edit model/ --rename 'model.layers.*=layers.*' -o renamed/",
            "squish edit model.zt --recover",
        ),
    ),
    "prove": ("identity", ("squish prove q4.gguf model/", "squish prove q4.gguf model/ --imatrix imatrix.gguf")),
    "merge": (
        "merging",
        (
            "squish merge model/ lora/ -o merged.gguf",
            "squish merge q4.gguf style.gguf=0.5 facts.gguf -o merged.gguf --requantize",
            "squish merge model/ lora/ -o merged.gguf --encode q4_k_m",
        ),
    ),
    "matrix": ("listings", ("squish matrix squizd", "squish matrix npydir --backend cpu --backend numpy")),
    "report": (
        "report",
        (
            "squish report model.gguf",
            "squish report model.gguf --values -o page.html",
            "squish report model.gguf small.gguf",
        ),
    ),
    "browse": ("browse", ("squish browse model.gguf", "squish browse model.gguf small.gguf")),
    "bench": ("checks", ("squish bench model.gguf", "squish bench --synthetic --json")),
    "formats": ("listings", ("squish formats", "squish formats gguf")),
    "codecs": ("listings", ("squish codecs",)),
    "backends": ("listings", ("squish backends",)),
    "plugins": (
        "listings",
        ("squish plugins", "squish plugins --available onnx", "SQUISH_PLUGINS=-squish-gguf squish plugins"),
    ),
    "new-plugin": (
        "scaffold",
        (
            "squish new-plugin my-format",
            "squish new-plugin my-format -o plugins",
            "squish new-plugin my-codec --kind codec",
            "squish new-plugin my-family --kind family --base qwen3",
        ),
    ),
    "install": (
        "install",
        (
            "squish install squish-gguf",
            "squish install 'squish-remote[fsspec]' --dry-run",
            "squish install squish-gguf --find-links wheels --yes",
        ),
    ),
    "explain": ("explain", ("squish explain missing", "squish explain q4_k_m", "squish explain --encode")),
    "doctor": ("diagnosis", ("squish doctor", "squish doctor models --clean")),
    "schema": ("schema", ("squish schema convert", "squish schema cache list", "squish schema error")),
}
COMMAND_EXTRAS = {"serve": "[serve]", **dict.fromkeys(("run", "eval", "tune", "activations"), "[transformers]")}
"""Command of a plugin -> the extra of its package with the libraries that it needs."""
PROGRESS = ("verify", "diff", "convert", "cp", "card", "hash", "prove", "merge", "report")
"""Commands that show progress."""
NUMBERS: dict[str, int] = {}
"""Command -> number of its schema, if it is not the first."""


GROUPS = {"cache": "cache_group", "config": "config_group"}
"""Command with commands of its own -> function of the module of its name that makes it."""


def run(argv: Sequence[str]) -> int:
    """Run one command line and return its exit code; KeyboardInterrupt if it is interrupted."""
    try:
        with printing(argv):
            return _run(argv)
    except BrokenPipeError:
        # The reader is gone (`| head`): print nothing, not even while Python flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _run(argv: Sequence[str]) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A name must not stop a terminal that is not UTF-8; on Windows, files and pipes would not be UTF-8 either.
            stream.reconfigure(encoding=None if IS_POSIX else "utf-8", errors="backslashreplace")
    showwarning, spelling = warnings.showwarning, text.spelling
    warnings.showwarning, text.spelling = show_warning, option
    line = list(argv)
    try:
        result = _result(line, argv)
        if isinstance(result, Answer):
            show(result)
        sys.stdout.flush()
        return result.code if isinstance(result, Answer) else int(result or 0)
    except typer.Abort:
        raise KeyboardInterrupt from None
    except BrokenPipeError:
        raise
    except (SquishError, OSError) as error:
        show_error(with_advice(error, line))
        sys.stdout.flush()
    except Exception as error:
        if not hasattr(error, "format_message"):  # typer's usage errors have it in every version
            raise
        show_error(with_advice(usage(error), line))
    finally:
        warnings.showwarning, text.spelling = showwarning, spelling
    return 2


def _result(line: list[str], argv: Sequence[str]) -> Any:
    """Return what a command returns; `line` becomes the command line that runs, for hints."""
    repairs = spellings.first_word(argv) in ("doctor", "config")  # they show invalid settings
    with ExitStack() as stack:
        if (verbose := spellings.without_verbose(argv)) != list(argv):
            from .logs import shown  # logging takes 10 ms

            argv = verbose
            stack.enter_context(shown())
        stack.enter_context(settings.applied(strict=not repairs))
        if not repairs:
            settings.check()
        line[:] = spellings.normalize(argv)
        app = build(line)
        if (first := spellings.first_word(line)) and first not in COMMANDS:
            line[:] = spellings.with_command(line, command_names(app))
        # standalone_mode=False: typer's own error handling has other exit codes and messages.
        result: Any = app(args=line or ["--help"], prog_name="squish", standalone_mode=False)
    if result == 130:  # typer's answer to Ctrl-C
        raise KeyboardInterrupt
    return result


def with_advice(error: Exception, argv: Sequence[str]) -> Exception:
    """Return the error, with a hint that names the command that was probably meant."""
    if isinstance(error, SquishError) and (hint := spellings.advise(error, argv)):
        error.hint = redact(hint)
    return error


def usage(error: Any) -> SquishError:
    """Return the UsageError for a command line that typer cannot parse."""
    context = getattr(error, "ctx", None)
    command = getattr(context, "command_path", "squish")
    message, expected = error.format_message().rstrip("."), None
    if context is not None and message == context.get_help().rstrip("."):  # a group without a command
        message, expected = f"`{command}` needs a command", ", ".join(context.command.commands)
    epilog = getattr(getattr(context, "command", None), "epilog", None) or ""
    example = re.search(r"^ +(squish .+)$", epilog, re.MULTILINE)
    for_example = f"For example `{example[1]}`. " if example and not message.startswith("No such") else ""
    return UsageError(message, code=ErrorCode.USAGE, expected=expected, hint=f"{for_example}See `{command} --help`.")


def build(argv: Sequence[str], plugins: Registry | None = None) -> App:
    """The app, with a single command if `argv` names one: building all of them and loading plugins takes time.

    `plugins`: those whose commands it has; the installed ones by default.
    """
    app = App(
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=False,
        epilog=f"Documentation: {text.SITE}",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(squish)
    first = spellings.first_word(argv)
    for name in [first] if first in COMMANDS else COMMANDS:
        add_command(app, name)
    if first in COMMANDS or spellings.asks_about_squish(argv):
        return app
    for name in [first] if first == "config" else GROUPS:
        app.add_typer(getattr(import_module(f"squish_cli.{name}"), GROUPS[name])(), name=name)
    if first == "config":  # to which plugins add nothing
        return app
    from squish_core.plugins.registry import registry

    failed = list[tuple[str, str]]()
    with suppress(SquishError):  # invalid settings must not disable `--help`; other commands report them
        failed = app.add_plugins(plugins or registry())
    check_known(app, [word for word in argv if not word.startswith("-")], failed)
    return app


def add_command(app: App, name: str) -> None:
    """Add one command, with its examples."""
    module, examples = COMMANDS[name]
    function = getattr(import_module(f"squish_cli.{module}"), name.replace("-", "_"))
    document = f"squish_cli.documents:{name.title().replace('-', '')}"
    added = app.command(
        name, examples=examples, document=document, number=NUMBERS.get(name, 1), progress=name in PROGRESS
    )
    added(function)


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
    verbose: Annotated[
        bool,
        typer.Option("--verbose", "-v", help="Print on stderr what is opened, resolved and decoded, and why."),
    ] = False,
    install: Annotated[
        str | None,
        typer.Option(
            "--install-completion",
            metavar="[SHELL]",
            help="Install completion for this shell, or for bash, zsh or fish.",
            callback=install_completion,
        ),
    ] = None,
    show: Annotated[
        str | None,
        typer.Option(
            "--show-completion",
            metavar="[SHELL]",
            help="Print the script that completes commands in this shell, or in bash, zsh or fish.",
            callback=show_completion,
        ),
    ] = None,
) -> None:
    """Inspect, check, compare and convert compressed transformer weights of any format.

    Every command takes --json and -v. Exit codes: 0 success, 1 there is a fault or a difference, 2 the command could
    not run.
    """


def command_names(app: typer.Typer) -> set[str]:
    """Return names of all commands, those of groups as `cache list`."""
    groups = {group.name or "": group.typer_instance for group in app.registered_groups}
    names = {entry.name or "" for entry in app.registered_commands} | groups.keys()
    for name, group in groups.items():
        names |= {f"{name} {entry.name}" for entry in group.registered_commands} if group else set()
    return names


def check_known(app: typer.Typer, names: Sequence[str], failed: Sequence[tuple[str, str]]) -> None:
    """Raise MissingPluginError for a command of a package of this repository that is not installed or is broken."""
    from squish_core.plugins import catalog
    from squish_core.plugins.registry import registry

    commands = tables.read("commands")["commands"] if names else {}
    command = next((name for name in (" ".join(names[:2]), " ".join(names[:1])) if name in commands), "")
    if not command or command in command_names(app):
        return
    package = commands[command]["package"]
    broken = {**{plugin.dist: plugin.reason for plugin in registry().broken}, **dict(failed)}
    if package in broken:
        raise MissingPluginError(
            f"the command {command!r} is not available: {package} is broken: {broken[package]}",
            code=ErrorCode.BROKEN,
            hint="`squish doctor` shows details.",
        )
    raise MissingPluginError(
        f"the command {command!r} is not installed",
        code=ErrorCode.NOT_INSTALLED,
        hint=f"Run `{catalog.install_command(package, extra=COMMAND_EXTRAS.get(command, ''))}`.",
    )
