"""GGUF's keys about a model as a whole: its name, its size, and how it makes an embedding of its tokens' states."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import PurePath
from typing import Any

from squish_core.api import Model, Typed, parse_object

from .settings import HEAD, TextSettings

NAME, SIZE = "general.name", "general.size_label"
POOLING = "pooling_type"
MODULES, POOLING_FOLDER = "modules.json", "1_Pooling"
MODES = {1: ("pooling_mode_mean_tokens", "mean"), 2: ("pooling_mode_cls_token", "cls"),
         3: ("pooling_mode_lasttoken", "lasttoken")}  # fmt: skip
"""llama.cpp's numbers of poolings -> sentence-transformers' names, the old and the new one."""
OTHER_MODES = ("pooling_mode_max_tokens", "pooling_mode_mean_sqrt_len_tokens", "pooling_mode_weightedmean_tokens")
UNITS = (("T", 10**12), ("B", 10**9), ("M", 10**6))
PHI3 = ("phi-3", "phi3")
PHI3_TOKENS = frozenset(("</s>", "<unk>", "<s>", "<|endoftext|>"))
"""Tokens of Phi 3, without which llama.cpp does not load a model with that name."""
_CACHED = re.compile(r"models--.+?--(.+)")
_AS_IT_IS = re.compile(r"v\d+(\.\d+)*|\d.*|.*[^a-z\d._].*")
"""Parts of a name that keep their case: versions, sizes, and what has capital letters."""


def model_name(model: Model, tokens: Collection[str]) -> str | None:
    """The model's name, out of `_name_or_path` in config.json, or of the folder's name; None if neither is one."""
    stated = model.config().get("_name_or_path")
    path = PurePath(model.name)
    if isinstance(stated, str) and stated.count("/") <= 1 and not stated.startswith((".", "/")) and stated.strip():
        name = stated.strip("/").rpartition("/")[2]
    else:
        folder = path.parent if path.suffix in (".safetensors", ".json", ".uqff") else path
        cached = next((match for part in folder.parts if (match := _CACHED.fullmatch(part))), None)
        name = cached[1] if cached else folder.name
    title = " ".join(part if _AS_IT_IS.fullmatch(part) else part.title() for part in re.split(r"[-\s]+", name) if part)
    if any(part in title.lower().replace(" ", "-") for part in PHI3) and not PHI3_TOKENS.issubset(tokens):
        return None
    return title or None


def size_label(family: TextSettings, model: Model, settings: Mapping[str, Any], constants: Iterable[Any]) -> str:
    """The number of weights, as in "1.5B"; with experts as in "8x7B", where the second number is that of one expert
    and of what all tokens share."""
    ignored = (*family.constants, *family.leftovers, *family.other_modalities, *family.left_out(settings))
    experts = settings[family.experts] if family.experts else 0
    shared, of_experts = sum(math.prod(values.shape) for values in constants), 0
    for name, spec in model.tensors.items():
        if any(fnmatchcase(name, pattern) for pattern in ignored):
            continue
        if settings["tie_word_embeddings"] and (name.endswith(HEAD) or name == "output.weight"):
            continue
        size = math.prod(spec.shape)
        if experts and ("_exps." in name or ".experts." in name) and not name.endswith("bias"):
            of_experts += size
        else:
            shared += size
    return f"{experts}x{_rounded(shared + of_experts // experts)}" if experts else _rounded(shared)


def _rounded(count: int) -> str:
    """A number with at least two digits and its unit."""
    unit, size = next(((unit, size) for unit, size in UNITS if count > size), ("K", 10**3))
    scaled = count / size
    digits = 0 if round(scaled) >= 10 else 1 if round(scaled) >= 1 else 2
    return f"{scaled:.{digits}f}{unit}"


def pooling_type(files: Mapping[str, bytes]) -> int | None:
    """llama.cpp's number of the pooling that the files of sentence-transformers state; None for one that it lacks."""
    if MODULES not in files:
        return None
    modules = parse_object(b'{"modules": %s}' % files[MODULES], MODULES)["modules"]  # which is a list
    listed = [each for each in modules if isinstance(each, dict)] if isinstance(modules, list) else []
    paths = [each.get("path") for each in listed if str(each.get("type")).endswith("Pooling")]
    place = f"{paths[0]}/config.json" if paths else ""
    if place not in files:
        return None
    stated = parse_object(files[place], place)
    chosen = [number for number, (name, mode) in MODES.items() if stated.get(name) is True]
    named = [number for number, (name, mode) in MODES.items() if stated.get("pooling_mode") == mode]
    return next(iter((*chosen, *named)), None)


def pooling_files(number: Any, width: int) -> dict[str, bytes]:
    """The files of sentence-transformers for a pooling of a GGUF; none for one that it lacks."""
    if number not in MODES:
        return {}
    kinds = (("", "Transformer"), (POOLING_FOLDER, "Pooling"))
    modules = [
        {"idx": place, "name": str(place), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for place, (path, kind) in enumerate(kinds)
    ]
    modes = {name: each == number for each, (name, _) in MODES.items()} | dict.fromkeys(OTHER_MODES, False)
    values = {MODULES: modules, f"{POOLING_FOLDER}/config.json": {"word_embedding_dimension": width, **modes}}
    return {name: json.dumps(value, indent=2).encode() for name, value in values.items()}


def general_keys(architecture: str, label: str, files: Mapping[str, bytes]) -> dict[str, Typed]:
    """The keys of size and pooling."""
    pooling = pooling_type(files)
    keys = {SIZE: Typed("str", label)}
    return keys | ({f"{architecture}.{POOLING}": Typed("u32", pooling)} if pooling is not None else {})


def with_name(meta: Mapping[str, Any], name: str | None) -> dict[str, Any]:
    """Keys with the model's name near the beginning, unless they have one."""
    if name is None or NAME in meta:
        return dict(meta)
    first = {key: meta[key] for key in ("general.architecture", "general.type") if key in meta}
    return {**first, NAME: Typed("str", name), **meta}
