"""What a wrong command line probably meant, as a command that runs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path

from squish_core.codes import ErrorCode
from squish_core.errors import SquishError
from squish_core.plugins.registry import Registry
from squish_core.plugins.registry import registry as installed

from .words import first_word

COMMANDS: dict[str, str] = {
    **dict.fromkeys(("stat", "show", "inspect", "describe", "dump", "metadata", "header", "cat", "file"), "info"),
    **dict.fromkeys(("tree", "head", "list", "dir", "tensors", "ll"), "ls"),
    **dict.fromkeys(("check", "validate", "test", "fsck", "hash", "sha256", "checksum"), "verify"),
    **dict.fromkeys(("compare", "cmp"), "diff"),
    **dict.fromkeys(
        ("quantize", "quant", "merge", "split", "export", "save", "dequantize", "pack", "shard"), "convert"
    ),
    **dict.fromkeys(("copy", "extract", "download", "pull", "get", "fetch"), "cp"),
    **dict.fromkeys(("benchmark", "speed"), "bench"),
    **dict.fromkeys(("explain", "resolve", "why"), "plan"),
    **dict.fromkeys(("deps", "requirements", "install", "require"), "needs"),
    **dict.fromkeys(("generate", "chat", "complete", "infer"), "run"),
    **dict.fromkeys(("perplexity", "ppl", "evaluate"), "eval"),
    **dict.fromkeys(("imatrix", "calibrate"), "activations"),
    **dict.fromkeys(("clean", "health", "status"), "doctor"),
    "format": "formats", "codec": "codecs", "backend": "backends", "plugin": "plugins", "devices": "backends",
    "init": "new-plugin", "new": "new-plugin",
}  # fmt: skip
"""What people type, often a command of other tools -> the command that does it."""
EXTRA_WORDS = {"hash": ("--deep",), "sha256": ("--deep",), "checksum": ("--deep",)}

OPTIONS: dict[str, Mapping[str, str]] = {
    "convert": {
        **dict.fromkeys(("-o", "--output", "--out", "--outfile", "--dst"), ""),
        **dict.fromkeys(("--quantize", "--quant", "--type", "--dtype", "--outtype", "--ftype", "-t"), "--encode"),
        **dict.fromkeys(("--target", "--output-format", "--out-format", "-f"), "--to"),
        **dict.fromkeys(("--include", "--filter", "--tensors"), "--only"), "--rename": "--names",
        **dict.fromkeys(("--force", "--allow-requantize"), "--requantize"),
    },
    "cp": dict.fromkeys(("--include", "--filter"), "--only"),
    "plan": {**dict.fromkeys(("--device", "--engine"), "--backend"), **dict.fromkeys(("--for",), "--op")},
    "run": {**dict.fromkeys(("-p", "--text"), "--prompt"), **dict.fromkeys(("-n", "--max-tokens"), "--max-new-tokens")},
}  # fmt: skip
"""Command -> option that people type -> its option; "" for a word without an option."""
REPOSITORY = re.compile(r"(?:(?:https://)?(?:hf\.co|huggingface\.co)/)?([\w-][\w.-]*/[\w-][\w.-]*)((?:/[\w.-]+)?)$")
USUAL_TYPE = "q8_0"


def advise(error: SquishError, argv: Sequence[str]) -> str | None:
    """The next step for an error of a command line; None if the error's own is the best."""
    if "-" in argv[1:]:
        return _streams(argv)
    return next(filter(None, (answer(error, argv) for answer in ANSWERS)), None)


def _streams(argv: Sequence[str]) -> str:
    """Squish reads and writes at any place of a file, so pipes need a file between."""
    command, *rest = argv
    if rest and rest[-1] == "-" and len([word for word in rest if not word.startswith("--")]) > 1:
        written = _line([command, *rest[:-1], "out.zt"])
        return f"Standard output is not a file: run `{written} && cat out.zt`."
    file = _line([command, *("model.bin" if word == "-" else word for word in rest)])
    return f"Standard input is not a file: run `cat > model.bin && {file}`."


def _unknown_command(error: SquishError, argv: Sequence[str]) -> str | None:
    first = first_word(argv)
    if error.code != ErrorCode.USAGE or not error.message.startswith("No such command"):
        return None
    command = COMMANDS.get(first.lower())
    if command is None:
        return None
    error.message = f"No such command {first!r}"
    rest = [word for word in argv if word != first]
    if command == "convert":
        return _run(_conversion(first.lower(), rest))
    return _run([command, *(rest or ["--help"]), *(EXTRA_WORDS.get(first.lower(), ()) if rest else ())])


def _conversion(word: str, rest: Sequence[str]) -> list[str]:
    """`convert` for llama-quantize's order of words: SRC [DST] TYPE; `merge` and `split` copy."""
    names = [name for name in rest if not name.startswith("-")]
    if not names:
        return ["convert", "--help"]
    if word in ("merge", "split", "shard"):
        path = Path(names[0])
        in_shards = word != "merge" and path.suffix == ".safetensors"
        target = names[1] if len(names) > 1 else f"{path.stem}-{word}{'' if in_shards else path.suffix}"
        return ["convert", names[0], target, *(["--to", "safetensors:max_shard_size=5GB"] if in_shards else [])]
    if word == "dequantize":
        return ["convert", names[0], *(names[1:2] or [f"{Path(names[0]).stem}-f16.gguf"]), "--encode", "f16"]
    encodings = _encodings(installed())
    chosen = next((name for name in names[1:] if name.lower() in encodings), USUAL_TYPE)
    targets = [name for name in names[1:] if name != chosen and not name.isdigit()]
    target = targets[0] if targets else f"{Path(names[0]).stem}-{chosen.lower()}.gguf"
    return ["convert", names[0], target, "--encode", chosen.lower()]


def _encodings(registry: Registry) -> set[str]:
    """The names that `--encode` takes: ids of codecs and allocators, and short names."""
    tables = [entry.info.aliases for entry in registry.codecs.values()]
    tables += [entry.info.aliases for entry in registry.encoders.values()]
    tables += [entry.info.aliases for entry in registry.containers.values()]
    return {*registry.codecs, *registry.allocators, *(name for table in tables for name in table)}


def _wrong_option(error: SquishError, argv: Sequence[str]) -> str | None:
    """The command line with the option that was meant."""
    match = re.match(r"No such option:? '?(--?[\w-]+)", error.message)
    meant = OPTIONS.get(first_word(argv), {}).get(match[1]) if match else None
    if meant is None or match is None:
        return None
    words = list[str]()
    for word in argv:
        name, equals, value = word.partition("=")
        words += [word] if name != match[1] else [f"{meant}{equals}{value}"] if meant else [value] if equals else []
    return _run(words)


def _extra_words(error: SquishError, argv: Sequence[str]) -> str | None:
    """`convert SRC DST q8_0`, as llama-quantize has it."""
    match = re.match(r"Got unexpected extra arguments? ?\(?s?\)? ?\((.+)\)", error.message)
    if match is None or first_word(argv) != "convert":
        return None
    extra = match[1].split()
    if len(extra) == 1 and extra[0].lower() in _encodings(installed()):
        return _run([word for word in argv if word != extra[0]] + ["--encode", extra[0].lower()])
    return None


def _missing(error: SquishError, argv: Sequence[str]) -> str | None:
    """A repository of the Hugging Face Hub instead of a path."""
    return _repository(error.file or "", argv) if error.code == ErrorCode.MISSING else None


def _repository(name: str, argv: Sequence[str]) -> str | None:
    match = REPOSITORY.match(name)
    if match is None or (Path(name).parts[0] == match[1].partition("/")[0] and Path(name).parent.exists()):
        return None
    return f"If it is a repository of the Hugging Face Hub: {_run(_replaced(argv, name, f'hf://{match[1]}{match[2]}'))}"


def _folder(error: SquishError, argv: Sequence[str]) -> str | None:
    """The files of a folder that can be opened."""
    folder = Path(error.file or "")
    if error.code not in (ErrorCode.UNKNOWN, ErrorCode.FOLDER) or not folder.is_dir():
        return None
    files = list(_readable(folder))
    if not files:
        return None
    names = f"It has {', '.join(path.name for path in files[:3])}{', ...' if len(files) > 3 else ''}: "
    return (names if len(files) > 1 else "") + _run(_replaced(argv, error.file or "", str(files[0])))


def _readable(folder: Path) -> Iterator[Path]:
    """Files of a folder whose format is recognized."""
    from squish_core.detect import detect
    from squish_core.io.local import open_source

    for path in sorted(folder.iterdir()):
        with suppress(SquishError, OSError):
            if path.is_file():
                with closing(open_source(str(path))) as source:
                    detect(source, installed())
                yield path


def _target(error: SquishError, argv: Sequence[str]) -> str | None:
    """A target that is the id of a format, or whose suffix no format has."""
    if not error.message.startswith("the target format is not clear"):
        return None
    target, containers = error.file or "", installed().containers
    names = [word for word in argv[1:] if not word.startswith("-")]
    source = names[0] if names else "SRC"
    stem = Path(source.rstrip("/")).stem or "model"
    if target.lower() in containers:
        suffixes = containers[target.lower()].info.suffixes
        if suffixes and suffixes[0] != ".mlpackage":
            return _run(_replaced(argv, target, f"{stem}{suffixes[0]}"))
        return _run([*_replaced(argv, target, f"{stem}-{target.lower()}"), "--to", target.lower()])
    return f"{error.hint} For example `{_line([*argv, '--to', _format_of(source)])}`."


def _format_of(source: str) -> str:
    """The format of a source, if it can be written; else zTensor, which holds everything."""
    from squish_core.opening import open as open_file

    with suppress(SquishError, OSError), open_file(source) as file:
        if installed().containers[file.format].info.can_write:
            return file.format
    return "ztensor"


def _no_target(error: SquishError, argv: Sequence[str]) -> str | None:
    """A target beside the source, in the format that holds everything."""
    names = [word for word in argv[1:] if not word.startswith("-")]
    if not error.message.startswith("convert needs a source and a target") or len(names) != 1:
        return None
    target = f"{Path(names[0].rstrip('/')).stem}.zt"
    return f"For example `{_line([*argv, target])}`."


ANSWERS: tuple[Callable[[SquishError, Sequence[str]], str | None], ...] = (
    _unknown_command, _wrong_option, _extra_words, _missing, _folder, _target, _no_target,
)  # fmt: skip


def _replaced(argv: Sequence[str], old: str, new: str) -> list[str]:
    return [new if word in (old, f"{old}/") else word for word in argv]


def _line(words: Sequence[str]) -> str:
    """A command line of `squish` for a shell."""
    return " ".join(["squish", *map(shlex.quote, words)])


def _run(words: Sequence[str]) -> str:
    return f"Run `{_line(words)}`."
