"""GGUF's keys for a model as a whole: its name, its size, and the pooling of an embedding model."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from squish_convert.api import Model

from squish_core.api import ErrorCode, FormatError, Typed, parse_object

from .settings import CONFIG, TextSettings

NAME, SIZE = "general.name", "general.size_label"
POOLING = "pooling_type"
MODULES, POOLING_FOLDER = "modules.json", "1_Pooling"
MEAN, CLS, LAST = 1, 2, 3
MODES = {MEAN: ("pooling_mode_mean_tokens", "mean"), CLS: ("pooling_mode_cls_token", "cls"),
         LAST: ("pooling_mode_lasttoken", "lasttoken")}  # fmt: skip
"""llama.cpp's numbers for poolings -> sentence-transformers' old and new names."""
SCORE, SCORE_FOLDER = "LogitScore", "1_LogitScore"
"""The module of a causal model whose score of two texts is the logit of a token, against that of another one."""
RANK = 4
"""llama.cpp's number for it."""
OTHER_MODES = ("pooling_mode_max_tokens", "pooling_mode_mean_sqrt_len_tokens", "pooling_mode_weightedmean_tokens")
UNITS = (("T", 10**12), ("B", 10**9), ("M", 10**6))
OF_EXPERTS = (
    ".moe.gate_proj.",
    ".moe.up_proj.",
    ".moe.down_proj.",
    "_exps.",
    ".experts.",
    ".switch_mlp.",
    ".block_sparse_moe.input_",
    ".block_sparse_moe.output_",
)
PHI3 = ("phi-3", "phi3")
PHI3_TOKENS = frozenset(("</s>", "<unk>", "<s>", "<|endoftext|>"))
"""Tokens that llama.cpp requires of a model with the name Phi 3."""
_AS_IT_IS = re.compile(r"v\d+(\.\d+)*|\d.*|.*[^a-z\d._].*")
"""Parts of a name that keep their case: versions, sizes, and words with capital letters."""


def model_name(config: Mapping[str, Any], tokens: Callable[[], Collection[str]]) -> str | None:
    """Return the name in `_name_or_path` of a config.json; None if it is a path or absent.

    The name of the folder is ignored, so that the same files produce the same GGUF.
    """
    stated = config.get("_name_or_path")
    if not isinstance(stated, str) or stated.count("/") > 1 or stated.startswith((".", "/")) or "\\" in stated:
        return None
    parts = [part for part in re.split(r"[-\s]+", stated.rpartition("/")[2]) if part]
    title = " ".join(part if _AS_IT_IS.fullmatch(part) else part.title() for part in parts)
    if any(part in title.lower().replace(" ", "-") for part in PHI3) and not PHI3_TOKENS.issubset(tokens()):
        return None
    return title or None


def size_label(family: TextSettings, model: Model, settings: Mapping[str, Any], constants: Iterable[Any]) -> str:
    """Return the number of weights, such as "1.5B", or "8x7B" with experts.

    The second number of the latter counts one expert and the weights that all tokens share.
    """
    ignored = (*family.constants, *family.leftovers, *family.other_modalities, *family.left_out(settings))
    experts = family.expert_count(settings)
    padded = {row.module(row.suffix): settings[row.pad] for row in family.rows if row.pad}
    shared, of_experts = sum(math.prod(values.shape) for values in constants), 0
    behind = tuple(family.moved(settings))
    for name, spec in model.tensors.items():
        if any(fnmatchcase(name, pattern) for pattern in ignored) and not family.own_name(name).startswith(behind):
            continue
        if settings["tie_word_embeddings"] and (name.endswith(family.head) or name == "output.weight"):
            continue
        rows = padded.get(family.own_name(name), 0)  # as many as GGUF has
        size = math.prod((max(rows, spec.shape[0]), *spec.shape[1:]) if rows and spec.shape else spec.shape)
        if experts and any(part in name for part in OF_EXPERTS) and not name.endswith("bias"):
            of_experts += size
        else:
            shared += size
    return f"{experts}x{_rounded(shared + of_experts // experts)}" if experts else _rounded(shared)


def _rounded(count: int) -> str:
    """Return a number with at least two digits and its unit."""
    unit, size = next(((unit, size) for unit, size in UNITS if count > size), ("K", 10**3))
    scaled = count / size
    digits = 0 if round(scaled) >= 10 else 1 if round(scaled) >= 1 else 2
    return f"{scaled:.{digits}f}{unit}"


def pooling_type(files: Mapping[str, bytes]) -> int | None:
    """Return llama.cpp's number for the pooling in the files of sentence-transformers; None if it lacks the pooling."""
    if module_settings(files, SCORE):
        return RANK
    modes = _modes(module_settings(files, "Pooling"))
    return next((number for number, (_, mode) in MODES.items() if mode in modes), None)


def _modes(pooling: Mapping[str, Any]) -> set[str]:
    """Return the poolings that the settings of the module name, under sentence-transformers' new names."""
    old = {name for name, stated in pooling.items() if name.startswith("pooling_mode_") and stated is True}
    own = pooling.get("pooling_mode")
    new = {own} if isinstance(own, str) else {*map(str, own)} if isinstance(own, list) else {*()}
    names = dict(MODES.values())
    return {names.get(name, name) for name in old | new}


COMPUTED = ("Transformer", "Pooling", "Normalize", SCORE)
"""Kinds of modules that llama.cpp computes, or that only change the length of a vector."""
OTHERWISE = "Its vectors would be others. Write only the tensors, under their own names: {option:rename=keep}."


def check_modules(files: Mapping[str, bytes]) -> None:
    """Raise FormatError for modules of sentence-transformers that llama.cpp does not compute for an encoder."""
    for module in _listed(files):
        kind = str(module.get("type"))
        if not kind.endswith(COMPUTED):
            raise FormatError(
                "lists a module that llama.cpp does not compute for this model",
                part=MODULES,
                code=ErrorCode.CONFIG,
                expected=" or ".join(COMPUTED),
                found=kind[:60],
                hint=OTHERWISE,
            )
    pooling = module_settings(files, "Pooling")
    modes = _modes(pooling)
    if len(modes) > 1 or (pooling and pooling_type(files) is None):
        raise FormatError(
            "has a pooling that llama.cpp lacks",
            part=f"{POOLING_FOLDER}/config.json",
            code=ErrorCode.CONFIG,
            expected=" or ".join(mode for _, mode in MODES.values()),
            found=", ".join(sorted(modes)) or "none",
            hint=OTHERWISE,
        )


def check_pooling(files: Mapping[str, bytes], number: int) -> None:
    """Raise FormatError if the files of sentence-transformers have another pooling than the model's own code."""
    other = pooling_type(files)
    if other is not None and other != number:
        raise FormatError(
            "is not the pooling of the model's own code",
            part=f"{POOLING_FOLDER}/config.json",
            code=ErrorCode.CONFIG,
            expected=MODES[number][1],
            found=MODES[other][1] if other in MODES else SCORE,
            hint=OTHERWISE,
        )


def listed_modules(files: Mapping[str, bytes], kind: str) -> list[str]:
    """Return the folders of the modules of a kind, such as "Dense", that a model of sentence-transformers has."""
    return [str(each.get("path")) for each in _listed(files) if str(each.get("type")).endswith(kind)]


def module_settings(files: Mapping[str, bytes], kind: str) -> dict[str, Any]:
    """Return the settings of a module of sentence-transformers, such as "Pooling"; none if the model lacks it."""
    paths = listed_modules(files, kind)
    place = f"{paths[0]}/config.json" if paths else ""
    return parse_object(files[place], place) if place in files else {}


def _listed(files: Mapping[str, bytes]) -> list[Mapping[str, Any]]:
    """Return the modules in modules.json; none without it."""
    if MODULES not in files:
        return []
    modules = parse_object(b'{"modules": %s}' % files[MODULES], MODULES)["modules"]  # the file is a list
    return [each for each in modules if isinstance(each, dict)] if isinstance(modules, list) else []


def score_files(settings: Mapping[str, int]) -> dict[str, bytes]:
    """Return the files of sentence-transformers for a causal model that scores two texts."""
    kinds = (("", "base.modules.transformer.Transformer"), (SCORE_FOLDER, f"cross_encoder.modules.logit_score.{SCORE}"))
    values = {MODULES: _modules(kinds), f"{SCORE_FOLDER}/config.json": settings}
    return {name: json.dumps(value, indent=2).encode() for name, value in values.items()}


def _modules(kinds: Iterable[tuple[str, str]]) -> list[dict[str, Any]]:
    """Return the list in modules.json for folders and their classes."""
    return [
        {"idx": place, "name": str(place), "path": path, "type": f"sentence_transformers.{kind}"}
        for place, (path, kind) in enumerate(kinds)
    ]


def pooling_files(number: Any, width: int, dense: Mapping[str, Mapping[str, Any]]) -> dict[str, bytes]:
    """Return the files of sentence-transformers for a GGUF's pooling; none if it lacks the pooling.

    `dense`: folder -> the settings of the dense module in it.
    """
    if number not in MODES:
        return {}
    kinds = [("", "models.Transformer"), (POOLING_FOLDER, "models.Pooling")]
    kinds += [(path, "models.Dense") for path in dense]
    modes = {name: each == number for each, (name, _) in MODES.items()} | dict.fromkeys(OTHER_MODES, False)
    values: dict[str, Any] = {MODULES: _modules(kinds)}
    values[f"{POOLING_FOLDER}/config.json"] = {"word_embedding_dimension": width, **modes}
    values |= {f"{path}/config.json": settings for path, settings in dense.items()}
    return {name: json.dumps(value, indent=2).encode() for name, value in values.items()}


def general_keys(
    family: TextSettings,
    model: Model,
    settings: Mapping[str, Any],
    constants: Iterable[Any],
    files: Mapping[str, bytes],
    tokens: Callable[[], Collection[str]],
) -> dict[str, Typed]:
    """Return the keys of a model as a whole; `constants` are GGUF's tensors for its settings."""
    config = parse_object(files[CONFIG], CONFIG)
    name, pooling = model_name(config, tokens), family.pooling_of(config)
    pooling = pooling_type(files) if pooling is None else pooling
    keys = {NAME: Typed("str", name)} if name is not None else {}
    keys[SIZE] = Typed("str", size_label(family, model, settings, constants))
    return keys | ({f"{family.architecture}.{POOLING}": Typed("u32", pooling)} if pooling is not None else {})
