"""Other spellings of a command line: old names of options, and the commands and options of other tools.

Old names work, with a warning. Options of llama-quantize and mlx_lm.convert become rules of `--encode`, `--graph` an
option of `--to onnx`. For what does not work, the hint has the command that was probably meant.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from squish_core.codes import ErrorCode
from squish_core.errors import SquishError, UsageError

from .output import show_warning

OLD_OPTIONS = {
    "plan": {"--policy": "--prefer"},
    "convert": {"--policy-file": "--recipe", "--plan": "--job-plan", "--stats": "--imatrix"},
    "cp": {"--tensors": "--only"},
    "new-plugin": {"--out": "--output"},
    "serve": {"--as": "--to"},
    "eval": {"--resume": "--state"},
}
"""Command -> old name of an option -> its name now."""
VALUE_OPTIONAL = {"convert": "--resume", "cache": "--resume"}
"""Command -> its option with an optional value, which must follow a `=`."""
FILE_OPTIONAL = {"run": "--draft", "eval": "--draft"}
"""Command -> its option with an optional file, the next word unless that is an option."""
VERBOSE = ("--verbose", "-v")
OF_EVERY_COMMAND = ("--json", "--help", "-h")
COMPLETION = ("--install-completion", "--show-completion")
"""Options of `squish` itself, with the name of a shell, which may follow as the next word."""
TensorType = Annotated[
    list[str] | None,
    typer.Option("--tensor-type", metavar="REGEX=TYPE", help="llama-quantize: type of the tensors whose names match."),
]
OutputType = Annotated[
    str | None, typer.Option("--output-tensor-type", metavar="TYPE", help="llama-quantize: type of output.weight.")
]
EmbeddingType = Annotated[
    str | None,
    typer.Option("--token-embedding-type", metavar="TYPE", help="llama-quantize: type of the token embeddings."),
]
Pure = Annotated[bool, typer.Option("--pure", help="llama-quantize: one type for all tensors, no mix.")]
Bits = Annotated[int | None, typer.Option("--q-bits", metavar="BITS", help="mlx_lm.convert: bits per weight.")]
GroupSize = Annotated[
    int | None, typer.Option("--q-group-size", metavar="SIZE", help="mlx_lm.convert: weights per group.")
]
Mode = Annotated[
    str | None,
    typer.Option("--q-mode", metavar="affine|mxfp4|mxfp8|nvfp4", help="mlx_lm.convert: mode of the codes."),
]
Graph = Annotated[
    str | None,
    typer.Option(
        "--graph",
        metavar="MODEL.onnx",
        help="ONNX: put the weights into this model's graph. --names FILE maps tensors to initializers (JSON).",
    ),
]
GENERIC = "llama-quantize"
WORDS, PREFIXES = ("keep", "hf", "gguf"), ("hf:", "gguf:")
"""Values of `--names` that are not files."""
MODES = {"affine": (4, 64), "mxfp4": (4, 32), "mxfp8": (8, 32), "nvfp4": (4, 16)}
"""Modes of mlx_lm -> default bits and group size, which only affine can change."""
AFFINE_BITS = (2, 3, 4, 5, 6, 8)
AFFINE_GROUPS = (32, 64, 128)
OTHER_COMMANDS: dict[str, str] = {
    **dict.fromkeys(("stat", "show", "inspect", "describe", "dump", "metadata", "header", "cat", "file"), "info"),
    **dict.fromkeys(("tree", "head", "list", "dir", "tensors", "ll"), "ls"),
    **dict.fromkeys(("check", "validate", "test", "fsck"), "verify"),
    **dict.fromkeys(("sha256", "checksum", "digest", "gguf-hash"), "hash"),
    **dict.fromkeys(("compare", "cmp"), "diff"),
    **dict.fromkeys(
        ("quantize", "quant", "join", "split", "export", "save", "dequantize", "pack", "shard"), "convert"
    ),
    **dict.fromkeys(("fuse", "lora", "export-lora"), "merge"),
    **dict.fromkeys(("copy", "extract", "download", "pull", "get", "fetch"), "cp"),
    **dict.fromkeys(("benchmark", "speed"), "bench"),
    **dict.fromkeys(("resolve", "why"), "plan"),
    **dict.fromkeys(("deps", "requirements", "install", "require"), "needs"),
    **dict.fromkeys(("generate", "chat", "complete", "infer"), "run"),
    **dict.fromkeys(("perplexity", "ppl", "evaluate"), "eval"),
    **dict.fromkeys(("imatrix", "calibrate"), "activations"),
    **dict.fromkeys(("memory", "vram", "ram", "fits"), "fit"),
    **dict.fromkeys(("clean", "health", "status"), "doctor"),
    "format": "formats", "codec": "codecs", "backend": "backends", "plugin": "plugins", "devices": "backends",
    "family": "families", "init": "new-plugin", "new": "new-plugin",
}  # fmt: skip
"""Command that people type, often of another tool -> the command of Squish."""
OTHER_OPTIONS: dict[str, Mapping[str, str]] = {
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
"""Command -> option that people type -> the option of Squish; "" if the value needs no option."""
REPOSITORY = re.compile(r"(?:(?:https://)?(?:hf\.co|huggingface\.co)/)?([\w-][\w.-]*/[\w-][\w.-]*)((?:/[\w.-]+)?)$")
USUAL_TYPE = "q8_0"


def without_verbose(argv: Sequence[str]) -> list[str]:
    """Return the command line without `-v` and `--verbose`, which every command takes."""
    end = argv.index("--") if "--" in argv else len(argv)
    return [word for at, word in enumerate(argv) if at > end or word not in VERBOSE]


def asks_about_squish(argv: Sequence[str]) -> bool:
    """Return whether a command line has an option of `squish` itself instead of a command."""
    return bool(argv) and argv[0].partition("=")[0] in ("--version", *COMPLETION)


def normalize(argv: Sequence[str]) -> list[str]:
    """Return the command line with current names of options, and a value for each option that may omit it."""
    if argv and argv[0] in COMPLETION:
        return [f"{argv[0]}={''.join(argv[1:2])}", *argv[2:]]
    command = first_word(argv)
    if command in ("help", "-V", "version"):
        return _about(argv)
    if command == "explain":  # its word may be an option
        own = [word for word in argv if word in (command, *OF_EVERY_COMMAND)]
        return [*own, "--", *(word for word in argv if word not in own and word != "--")]
    renamed, optional = OLD_OPTIONS.get(command, {}), VALUE_OPTIONAL.get(command)
    with_file = FILE_OPTIONAL.get(command)
    words = list[str]()
    for number, word in enumerate(argv):
        if word == "--":
            return [*words, *argv[number:]]
        name, equals, value = word.partition("=")
        if name in renamed:
            show_warning(f"{name} is now {renamed[name]}")
            word = f"{renamed[name]}{equals}{value}"
        if word == with_file and (number + 1 == len(argv) or argv[number + 1].startswith("-")):
            word = f"{word}="
        words.append(f"{word}=True" if word == optional else word)
    return words


def _about(argv: Sequence[str]) -> list[str]:
    """`help COMMAND` as `COMMAND --help`; `-V` and `version` as `--version`."""
    if first_word(argv) != "help":
        return ["--version"]
    return [*(word for word in argv if word != "help"), "--help"]


def first_word(argv: Sequence[str]) -> str:
    """Return the command: the first word that is not an option, or `-V`."""
    return next((word for word in argv if word == "-V" or not word.startswith("-")), "")


def is_target(word: str) -> bool:
    """Return whether a word names a file, a folder or a URL, or looks like one."""
    return os.path.lexists(word) or "/" in word or bool(os.path.splitext(word)[1])


def with_command(argv: Sequence[str], commands: Container[str]) -> list[str]:
    """`squish FILE` as `squish info FILE`, unless the file has the name of a command."""
    first = first_word(argv)
    return ["info", *argv] if first not in commands and is_target(first) else list(argv)


def preset_rules(
    encode: Sequence[str], types: Sequence[str], output: str | None, embedding: str | None, pure: bool
) -> list[str]:
    """Return the rules of `--encode`, with llama-quantize's options added to the preset as parameters."""
    pairs = [text.rpartition("=") for text in types]
    if invalid := [text for text, (pattern, _, kind) in zip(types, pairs) if not pattern or not kind]:
        raise _error("--tensor-type takes REGEX=TYPE", repr(invalid[0]))
    preset_options = {"output": output, "embedding": embedding, "pure": "yes" if pure else None}
    params = [f"{key}={value}" for key, value in preset_options.items() if value]
    params += [f"{escape(pattern)}={kind}" for pattern, _, kind in pairs]
    if not params:
        return list(encode)
    presets = [index for index, rule in enumerate(encode) if "=" not in rule.partition(":")[0]]
    if len(presets) != 1:
        raise _error(
            "--tensor-type, --output-tensor-type, --token-embedding-type and --pure need one preset in --encode",
            None,
        )
    rules = list(encode)
    name, _, preset_params = rules[presets[0]].partition(":")
    rules[presets[0]] = ":".join((GENERIC, ",".join(filter(None, (*_type(name), preset_params, *params)))))
    return rules


def mlx_rules(
    encode: Sequence[str], to: str | None, bits: int | None, group_size: int | None, mode: str | None
) -> list[str]:
    """Return a rule from mlx_lm's options, then the rules of `--encode`, so that `--encode` wins."""
    if bits is None and group_size is None and mode is None:
        return list(encode)
    if (to or "").partition(":")[0] != "mlx":
        raise UsageError(
            "--q-bits, --q-group-size and --q-mode are for MLX targets",
            expected="--to mlx",
            found=f"--to {to}" if to else "no --to",
            code=ErrorCode.USAGE,
        )
    name = mode or "affine"
    if name not in MODES:
        raise UsageError("no such --q-mode", found=repr(name), expected=", ".join(MODES), code=ErrorCode.USAGE)
    defaults = MODES[name]
    actual = defaults[0] if bits is None else bits, defaults[1] if group_size is None else group_size
    if name != "affine":
        if actual != defaults:
            raise UsageError(
                f"{name} always has {defaults[0]} bits in groups of {defaults[1]}",
                code=ErrorCode.USAGE,
                found="--q-bits {} --q-group-size {}".format(*actual),
            )
        return [name, *encode]
    if actual[0] not in AFFINE_BITS:
        raise UsageError(
            "no such --q-bits", found=actual[0], expected=", ".join(map(str, AFFINE_BITS)), code=ErrorCode.USAGE
        )
    if actual[1] not in AFFINE_GROUPS:
        raise UsageError(
            "no such --q-group-size", found=actual[1], expected=", ".join(map(str, AFFINE_GROUPS)), code=ErrorCode.USAGE
        )
    return ["q{}:group_size={}".format(*actual), *encode]


def graph_target(to: str | None, graph: str | None, names: str | None) -> tuple[str | None, str | None]:
    """`--to` and `--names`; with a graph, `onnx` with its options, and `--names` may be a file."""
    if graph is None:
        return to, names
    format_id, _, target_options = (to or "onnx").partition(":")
    if format_id != "onnx":
        raise UsageError("--graph is for ONNX targets", found=f"--to {to}", expected="--to onnx", code=ErrorCode.USAGE)
    is_file = names is not None and names not in WORDS and not names.startswith(PREFIXES)
    options = [target_options, f"graph={graph}", f"names={names}" if is_file else ""]
    return f"onnx:{','.join(filter(None, options))}", None if is_file else names


def escape(pattern: str) -> str:
    """Return a regular expression as a parameter name: characters of the grammar become %XX."""
    return quote(pattern.lower(), safe="!#$&'*+/;<>?@[\\]^_`{|}~. ")


def _type(name: str) -> list[str]:
    return [] if name == GENERIC else [f"type={name.lower()}"]


def _error(message: str, text: str | None) -> UsageError:
    return UsageError(
        message,
        found=text,
        code=ErrorCode.USAGE,
        hint="For example --encode q4_k_m --tensor-type attn_v=q8_0 --output-tensor-type q6_k.",
    )


def advise(error: SquishError, argv: Sequence[str]) -> str | None:
    """Return the next step for an error of a command line; None if the error's own is the best."""
    if "-" in argv[1:]:
        return _streams(argv)
    return next(filter(None, (answer(error, argv) for answer in ADVICE)), None)


def _streams(argv: Sequence[str]) -> str:
    """Return the command with a file instead of a pipe, since Squish reads and writes at any offset."""
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
    command = OTHER_COMMANDS.get(first.lower())
    if command is None:
        return None
    error.message = f"No such command {first!r}"
    rest = [word for word in argv if word != first]
    if command == "convert":
        return _run(_conversion(first.lower(), rest))
    return _run([command, *(rest or ["--help"])])


def _conversion(word: str, rest: Sequence[str]) -> list[str]:
    """`convert` for llama-quantize's order of words: SRC [DST] TYPE; `join` and `split` copy."""
    names = [name for name in rest if not name.startswith("-")]
    if not names:
        return ["convert", "--help"]
    if word in ("join", "split", "shard"):
        path = Path(names[0])
        in_shards = word != "join" and path.suffix == ".safetensors"
        target = names[1] if len(names) > 1 else f"{path.stem}-{word}{'' if in_shards else path.suffix}"
        return ["convert", names[0], target, *(["--to", "safetensors:max_shard_size=5GB"] if in_shards else [])]
    if word == "dequantize":
        return ["convert", names[0], *(names[1:2] or [f"{Path(names[0]).stem}-f16.gguf"]), "--encode", "f16"]
    encodings = _encodings()
    chosen = next((name for name in names[1:] if name.lower() in encodings), USUAL_TYPE)
    targets = [name for name in names[1:] if name != chosen and not name.isdigit()]
    target = targets[0] if targets else f"{Path(names[0]).stem}-{chosen.lower()}.gguf"
    return ["convert", names[0], target, "--encode", chosen.lower()]


def _encodings() -> set[str]:
    """Return the names that `--encode` takes: ids of codecs and allocators, and short names."""
    from squish_core.plugins.registry import registry as installed

    registry = installed()
    tables = [entry.info.aliases for entry in registry.codecs.values()]
    tables += [entry.info.aliases for entry in registry.encoders.values()]
    tables += [entry.info.aliases for entry in registry.containers.values()]
    return {*registry.codecs, *registry.allocators, *(name for table in tables for name in table)}


def _wrong_option(error: SquishError, argv: Sequence[str]) -> str | None:
    """Return the command line with the option that was meant."""
    match = re.match(r"No such option:? '?(--?[\w-]+)", error.message)
    meant = OTHER_OPTIONS.get(first_word(argv), {}).get(match[1]) if match else None
    if meant is None or match is None:
        return None
    words = list[str]()
    for word in argv:
        name, equals, value = word.partition("=")
        words += [word] if name != match[1] else [f"{meant}{equals}{value}"] if meant else [value] if equals else []
    return _run(words)


def _extra_words(error: SquishError, argv: Sequence[str]) -> str | None:
    """`convert SRC DST q8_0`, in the order of llama-quantize."""
    match = re.match(r"Got unexpected extra arguments? ?\(?s?\)? ?\((.+)\)", error.message)
    if match is None or first_word(argv) != "convert":
        return None
    extra = match[1].split()
    if len(extra) == 1 and extra[0].lower() in _encodings():
        return _run([word for word in argv if word != extra[0]] + ["--encode", extra[0].lower()])
    return None


def _missing(error: SquishError, argv: Sequence[str]) -> str | None:
    """Return a repository of the Hugging Face Hub instead of a path."""
    return _repository(error.file or "", argv) if error.code == ErrorCode.MISSING else None


def _repository(name: str, argv: Sequence[str]) -> str | None:
    match = REPOSITORY.match(name)
    if match is None or (Path(name).parts[0] == match[1].partition("/")[0] and Path(name).parent.exists()):
        return None
    return f"If it is a repository of the Hugging Face Hub: {_run(_replaced(argv, name, f'hf://{match[1]}{match[2]}'))}"


def _folder(error: SquishError, argv: Sequence[str]) -> str | None:
    """Return the files of a folder that can be opened."""
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
    from squish_core.plugins.registry import registry

    for path in sorted(folder.iterdir()):
        with suppress(SquishError, OSError):
            if path.is_file():
                with closing(open_source(str(path))) as source:
                    detect(source, registry())
                yield path


def _target(error: SquishError, argv: Sequence[str]) -> str | None:
    """Return a target that is the id of a format, or has an unknown suffix."""
    if not error.message.startswith("the target format is not clear"):
        return None
    from squish_core.plugins.registry import registry

    target, containers = error.file or "", registry().containers
    names = [word for word in argv[1:] if not word.startswith("-")]
    source = names[0] if names else "SRC"
    stem = Path(source.rstrip("/")).stem or "model"
    if target.lower() in containers:
        suffixes = containers[target.lower()].info.suffixes
        if suffixes and suffixes[0] != ".mlpackage":
            return _run(_replaced(argv, target, f"{stem}{suffixes[0]}"))
        return _run([*_replaced(argv, target, f"{stem}-{target.lower()}"), "--to", target.lower()])
    words = re.split(r"[^a-z0-9]+", target.lower())  # `model-mlx`, `out.mlx`
    stated = next((name for name in words if name in containers and containers[name].info.can_write), None)
    return f"{error.hint} For example `{_line([*argv, '--to', stated or _format_of(source)])}`."


def _format_of(source: str) -> str:
    """Return the format of a source, if it can be written; else zTensor, which stores everything."""
    from squish_core.opening import open as open_file

    with suppress(SquishError, OSError), open_file(source) as file:
        if file.registry.containers[file.format].info.can_write:
            return file.format
    return "ztensor"


def _no_target(error: SquishError, argv: Sequence[str]) -> str | None:
    """Return a target beside the source, in the format that stores everything."""
    names = [word for word in argv[1:] if not word.startswith("-")]
    if not error.message.startswith("convert needs a source and a target") or len(names) != 1:
        return None
    target = f"{Path(names[0].rstrip('/')).stem}.zt"
    return f"For example `{_line([*argv, target])}`."


ADVICE: tuple[Callable[[SquishError, Sequence[str]], str | None], ...] = (
    _unknown_command, _wrong_option, _extra_words, _missing, _folder, _target, _no_target,
)  # fmt: skip


def _replaced(argv: Sequence[str], old: str, new: str) -> list[str]:
    return [new if word in (old, f"{old}/") else word for word in argv]


def _line(words: Sequence[str]) -> str:
    """Return a command line of `squish` for a shell."""
    return " ".join(["squish", *map(shlex.quote, words)])


def _run(words: Sequence[str]) -> str:
    return f"Run `{_line(words)}`."
