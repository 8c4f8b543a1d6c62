"""Follow llama.cpp's loader through a GGUF: the file, its keys, its tokenizer, its tensors, their types."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from squish_core.api import ErrorCode, File, Problem, TensorSpec, Typed

from ..verdict import Verdict
from .graph import graph_problems
from .keys import ARCHITECTURES, GENERAL, Hyperparameters, key_problem, problem
from .operations import operation_problems, others
from .tensors import Need, needs
from .vocabulary import OTHER_MODELS, PREFIX, model_of, number_of_tokens, vocabulary_problems

MAGIC = b"GGUF"
ARCHITECTURE, EMBEDDINGS = "general.architecture", "token_embd.weight"
LONGEST_NAME, MOST_AXES = 63, 4
OTHER_ARCHITECTURES = frozenset((
    "llama4", "deci", "falcon", "grok", "gptj", "gptneox", "mpt", "baichuan", "starcoder", "refact",
    "neo-bert", "bloom",
    "stablelm", "qwen", "qwen3next", "qwen3vlmoe", "qwen35", "qwen35moe", "clef", "qwen4exp", "phi2", "phimoe", "plamo",
    "plamo2", "plamo3", "codeshell", "orion", "internlm2", "minicpm", "minicpm3", "gemma3n", "gemma4",
    "gemma4-assistant", "gemma-embedding2", "maple",
    "xverse", "cohere2moe", "dbrx", "olmo", "muse-glimmer", "openelm", "arctic", "deepseek", "deepseek2-ocr",
    "chatglm", "bitnet", "t5", "jais", "jais2", "nemotron", "exaone", "exaone-moe", "rwkv6",
    "rwkv6qwen2", "rwkv7", "arwkv7",
    "graniteswitch", "granite_swa", "chameleon", "wavtokenizer-dec", "plm", "bailingmoe", "bailingmoe2", "bailingmoe3",
    "dots1", "dots3note", "arcee", "afmoe", "laguna", "ernie4_5-moe", "hunyuan-moe", "hunyuan_vl", "hy_v3", "hy_v4",
    "dream", "smallthinker", "llada", "llada-moe", "grovemoe", "apertus", "minimax-01", "hrm_text", "minimax-m3",
    "cogvlm", "rnd1", "pangu-embedded", "eagle3", "dflash", "paddleocr", "mimo2", "step35", "spark2_5",
    "llama-embed", "maincoder", "kimi-k3", "glm5-next", "talkie", "mellum", "nanbeige", "qwen3tts",
    "pockettts", "k2-horizon",
))  # fmt: skip
"""Architectures of llama.cpp that these tables do not describe."""


def load(file: File) -> Verdict:
    """Compare a GGUF with what llama.cpp's loader reads; return every problem of the stage at which it stops."""
    meta = file.index.meta
    problems = [*_file_problems(file, meta)]
    if any(each.severity == "error" for each in problems):
        return Verdict(tuple(problems))
    architecture = meta[ARCHITECTURE].value
    if architecture not in ARCHITECTURES:
        return Verdict((), f"llama.cpp's loader for {architecture} is not in squish-models' tables")
    numbers = Hyperparameters(architecture, meta)
    key_problems = [*numbers.problems()]
    problems += [*key_problems, *vocabulary_problems(meta)]
    if not any(each.severity == "error" for each in key_problems):
        problems += [*_tensor_problems(file, numbers), *graph_problems(numbers)]
    return Verdict(tuple(problems), _unknown(meta, numbers))


def _unknown(meta: Mapping[str, object], numbers: Hyperparameters) -> str:
    """Return what these tables do not describe although they have the architecture."""
    if model_of(meta) in OTHER_MODELS:
        return f"tokenizer.ggml.model is {model_of(meta)}, whose loader is not in squish-models' tables"
    if numbers.number("decision.block_count"):
        return f"{numbers.architecture}.decision.block_count: models that decide are not in squish-models' tables"
    return ""


def _file_problems(file: File, meta: Mapping[str, object]) -> Iterator[Problem]:
    """Yield what stops llama.cpp before it reads the model's keys."""
    if any(_is_big_endian(spec) for spec in islice(file.index.tensors.values(), 1)):
        message = "is big-endian, and llama.cpp loads it only on a machine of that byte order"
        yield Problem(code="engine-format", severity="error", where=file.name, message=message)
        return
    yield from _path_problems(file)
    for name, kind in GENERAL.items():
        yield from key_problem(name, meta, kind)
    architecture = meta.get(ARCHITECTURE)
    value = architecture.value if isinstance(architecture, Typed) else None
    if architecture is None:
        message = "is missing, and llama.cpp does not load without it"
        yield Problem(code="names", severity="error", where=ARCHITECTURE, message=message)
    elif value == "clip":
        yield problem(ARCHITECTURE, "is clip: llama.cpp loads it beside a model (--mmproj), not as one")
    elif isinstance(value, str) and value not in ARCHITECTURES and value not in OTHER_ARCHITECTURES:
        yield problem(ARCHITECTURE, f"is {value[:40]!r}, which llama.cpp does not know")
    yield from _offset_problems(file)
    for name, spec in file.index.tensors.items():
        if len(name.encode(errors="surrogateescape")) > LONGEST_NAME:
            yield _tensor(name, f"has a name of more than {LONGEST_NAME} bytes, which llama.cpp does not read")
        elif len(spec.shape) > MOST_AXES:
            yield _tensor(name, f"has {len(spec.shape)} axes, and llama.cpp reads at most {MOST_AXES}")


def _path_problems(file: File) -> Iterator[Problem]:
    """Yield a file that Squish reads through another format, or a part that is not the first one."""
    message = ""
    if file.path is not None and file.path.is_file():
        with open(file.path, "rb") as data:
            if data.read(len(MAGIC)) != MAGIC:
                message = "is compressed or inside another file, and llama.cpp reads plain GGUFs"
        first = file.index.files[0].name if file.index.files else ""
        if len(file.index.files) > 1 and file.path.name != Path(first).name:
            message = f"is not the first part, and llama.cpp is given that one: {first}"
    if message:
        yield Problem(code="engine-format", severity="error", where=file.name, message=message)


def _offset_problems(file: File) -> Iterator[Problem]:
    """Yield the first tensor that does not follow the one before it, which llama.cpp refuses."""
    alignment = file.metadata.get("general.alignment", 32)
    ends: dict[int, int] = {}
    for name, spec in file.index.tensors.items():
        parts = [part for encoding in spec.encodings for part in encoding.parts.values() if part.segments]
        if len(parts) != 1 or len(parts[0].segments) != 1:
            return
        segment = parts[0].segments[0]
        expected = ends.get(segment.file, segment.offset)
        if segment.offset != expected:
            message = f"lies at byte {segment.offset} instead of {expected}, behind the tensor before it"
            yield Problem(code="engine-format", severity="error", where=name, message=f"{message}, as llama.cpp reads")
            return
        ends[segment.file] = segment.offset + -(-segment.length // alignment) * alignment


def _is_big_endian(spec: TensorSpec) -> bool:
    codec = spec.encodings[0].codec if spec.encodings else None
    while codec is not None:
        if codec.id == "ggml.big_endian":
            return True
        codec = codec.inner
    return any(part.byteorder == ">" for each in spec.encodings for part in each.parts.values())


def _tensor_problems(file: File, numbers: Hyperparameters) -> Iterator[Problem]:
    """Yield problems of names, sizes and types."""
    tensors = file.index.tensors
    yield from size_problems(file, numbers)
    read = [need.name for need in needs(numbers, _rows(file, numbers) or 0, tensors.keys())]
    yield from operation_problems({name: tensors[name] for name in read if name in tensors})


def _rows(file: File, numbers: Hyperparameters) -> int | None:
    """Return the number of embeddings, or else that of tokens."""
    embeddings = file.index.tensors.get(EMBEDDINGS)
    if embeddings is not None and len(embeddings.shape) == 2:
        return embeddings.shape[0]
    return number_of_tokens(file.index.meta, numbers.architecture)


def size_problems(file: File, numbers: Hyperparameters) -> Iterator[Problem]:
    """Yield tensors that are missing, have other sizes, or are none that llama.cpp reads."""
    tensors = file.index.tensors
    tokens = number_of_tokens(file.index.meta, numbers.architecture)
    rows = _rows(file, numbers)
    if tokens is not None and tokens != rows:
        message = f"are {tokens}, and {EMBEDDINGS} has {rows} rows"
        yield Problem(code="tokenizer", severity="error", where=f"{PREFIX}tokens", message=message)
    present: dict[str, Need] = {}
    missing: list[str] = []
    for need in needs(numbers, rows or 0, tensors.keys()):
        if need.name in tensors:
            present[need.name] = need
        elif need.required:
            missing.append(need.name)
    reason = f"is not a tensor that llama.cpp reads for {numbers.architecture}, and it does not load files with others"
    yield from _grouped(ErrorCode.UNMAPPED, [name for name in tensors if name not in present], reason)
    yield from _grouped(ErrorCode.UNMAPPED, missing, "is missing, and llama.cpp does not load without it")
    yield from _shape_problems(present, tensors)


def _shape_problems(found: Mapping[str, Need], tensors: Mapping[str, TensorSpec]) -> Iterator[Problem]:
    """Yield tensors of other sizes than the keys imply, grouped by the sizes."""
    groups: dict[str, list[str]] = {}
    for name, need in found.items():
        shape = tensors[name].shape
        if _padded(reversed(shape)) != _padded(need.sizes):
            numbers = f"(expected {list(reversed(need.sizes))}, found {list(shape)})"
            groups.setdefault(f"has a shape that llama.cpp does not read with these keys {numbers}", []).append(name)
    for message, names in groups.items():
        yield from _grouped(ErrorCode.CONTRADICTION, names, message)


def _padded(sizes: Iterable[int]) -> tuple[int, ...]:
    """Return sizes as llama.cpp stores them: four axes, padded with 1."""
    return (*sizes, 1, 1, 1, 1)[:MOST_AXES]


def _grouped(code: str, names: Sequence[str], message: str) -> Iterator[Problem]:
    """Yield one problem for all tensors with the same fault."""
    if names:
        yield Problem(code=code, severity="error", where=names[0], message=message + others(names))


def _tensor(name: str, message: str) -> Problem:
    return Problem(code="engine-format", severity="error", where=name, message=message)
