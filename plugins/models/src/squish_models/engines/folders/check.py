"""Check whether Transformers or mlx-lm loads a folder: its files, settings, tensors and tokenizer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from squish_convert.api import Inventory

from squish_core.api import ErrorCode, File, Problem, SquishError, TensorSpec

from ...config.spelling import all_layers, text_config
from .effective import CONFIG_FILE, HEAD, folder_config
from .mlx_settings import MLX_PARTS
from .settings import type_problems
from .tables import ALWAYS, FolderEngine
from .tokenizer_classes import FILE, tokenizer_class
from .tokenizer_files import gap_of, tokenizer_config_problems, tokenizer_json_problems
from .towers import tower_problems

INDEX = "model.safetensors.index.json"
OWN_BIASES = (
    "gpt2", "lfm2", "gpt_bigcode", "codeshell", "granitemoehybrid", "nemotron_h", "falcon_h1", "mamba", "mamba2",
    "falcon_mamba", "jamba", "bert", "roberta", "xlm-roberta",
)  # fmt: skip
"""Model types whose biases have other names."""
PIECE = 1 << 20
"""Number of values compared at a time."""
OUTSIDE = "has a number outside the range in the settings"
TOKENIZER, TOKENIZER_CONFIG, GENERATION = "tokenizer.json", "tokenizer_config.json", "generation_config.json"
SENTENCEPIECE = "tokenizer.model"


def file_problems(file: File, engine: FolderEngine) -> Iterator[Problem]:
    """Find weights under names that the engine does not look for."""
    if file.path is None or not file.path.is_dir():
        return
    names = [Path(ref.name).name for ref in file.index.files if ref.name.endswith(".safetensors")]
    if engine.index and (file.path / INDEX).is_file():
        return
    if names and not any(fnmatchcase(name, pattern) for name in names for pattern in engine.weights):
        yield Problem(
            code="engine-format",
            severity="error",
            where=names[0],
            message=f"does not have the name that {engine.title} looks for: {' or '.join(engine.weights)}"
            + (f", or an index {INDEX}" if engine.index else ""),
        )


def setting_type_problems(file: File, model_type: str, engine: FolderEngine) -> list[Problem]:
    """Find settings of a type that the engine refuses."""
    return list(type_problems(folder_config(file), model_type, engine))


def read_settings(file: File, model_type: str, engine: str) -> tuple[str, dict[str, Any]]:
    """Return the settings that an engine reads, and the model type that applies; mlx-lm reads only `text_config`."""
    config = folder_config(file)
    inner = config.get("text_config")
    if engine == "mlx" and isinstance(inner, dict):
        return MLX_PARTS.get(model_type, model_type), inner
    return model_type, text_config(config)


def is_ignored(error: SquishError, engine: FolderEngine, model_type: str) -> bool:
    """Return whether an error about a tensor does not concern an engine, which ignores the tensor."""
    if engine.strict:
        leftovers = engine.leftovers.get(model_type, ())
        return is_spare(error) and any(part in (error.tensor or "") for part in leftovers)
    return is_spare(error)


def is_spare(error: SquishError) -> bool:
    """Return whether an error is about a tensor that the model does not have."""
    if error.tensor is None or error.message.startswith("is missing"):
        return False
    return error.code == ErrorCode.UNMAPPED or error.message == OUTSIDE


SHARED_EXPERTS = {
    "afmoe": "", "ernie4_5_moe": "moe_num_shared_experts", "exaone_moe": "num_shared_experts",
    **dict.fromkeys(("bailing_moe", "kimi_linear"), "num_shared_experts"),
}  # fmt: skip
"""Model type -> the setting without which mlx-lm has no experts that all tokens pass; none where it has a default."""


def tensor_problems(file: File, inventory: Inventory, engine: FolderEngine) -> Iterator[Problem]:
    """Find names that the engine does not read, missing or unknown biases, and a head that it drops."""
    yield from _prefix_problems(file, inventory, engine)
    yield from _bias_problems(inventory, engine)
    yield from _head_problems(file, inventory, engine)
    yield from _fp8_problems(file, inventory, engine)
    shared = next((name for name in file.index.tensors if ".shared_experts." in name), None)
    setting = SHARED_EXPERTS.get(inventory.naming.model_type or "", "n_shared_experts")
    if engine.id == "mlx" and shared is not None and setting and text_config(folder_config(file)).get(setting) is None:
        yield _tensor(shared, f"is not a parameter of the model in mlx-lm without {setting} in config.json")
    if engine.id == "transformers":
        shapes = {name: spec.shape for name, spec in file.index.tensors.items()}
        for name, message in tower_problems(folder_config(file), inventory.naming.model_type or "", shapes):
            yield _tensor(name, message)
    quantization = folder_config(file).get("quantization_config")
    method = quantization.get("quant_method") if isinstance(quantization, dict) else None
    if method in ("gptq", "awq") and not any(map(_is_coded, file.index.tensors.values())):
        yield Problem(
            code="engine-type",
            severity="error",
            where=f"{CONFIG_FILE} quantization_config",
            message=f"declares {method}, and no tensor has its codes",
        )
    if engine.strict and inventory.coverage is not None and inventory.family is not None:
        leftovers = engine.leftovers.get(inventory.naming.model_type or "", ())
        constants = inventory.family.constants  # in a folder, tensors that are settings in GGUF
        for name in inventory.coverage.unused:
            if any(fnmatchcase(name, each) for each in constants):
                continue
            if not name.endswith(HEAD) and not any(part in name for part in leftovers):
                yield _tensor(name, f"is not a parameter of the model in {engine.title}, which refuses it")
        is_nested = any(name.startswith("model.language_model.") for name in file.index.tensors)
        for name in inventory.coverage.other_modalities:
            if name.startswith("model.") and not is_nested:
                yield _tensor(name, f"is not a parameter of the model in {engine.title}, which refuses it")
                break


def _prefix_problems(file: File, inventory: Inventory, engine: FolderEngine) -> Iterator[Problem]:
    model_type, family = inventory.naming.model_type or "", inventory.family
    prefixes = tuple(family.prefixes) if family is not None else ()
    if engine.id == "transformers":  # it also loads the names of a model without a head
        prefixes = tuple(prefix for prefix in prefixes if "language_model" in prefix)
    legal = engine.prefixes.get(model_type, ())
    required = engine.required.get(model_type)
    for name in file.index.tensors:
        prefix = next((each for each in prefixes if name.startswith(each)), None)
        if prefix is not None and not prefix.startswith(legal):
            yield _tensor(name, f"begins with {prefix}, which {engine.title} does not read for {model_type}")
            return
        if required and not name.startswith(required) and not _is_other(name, inventory):
            yield _tensor(name, f"does not begin with {required[0]}, as {engine.title} expects for {model_type}")
            return


def _is_other(name: str, inventory: Inventory) -> bool:
    patterns = inventory.family.other_modalities if inventory.family is not None else ()
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _bias_problems(inventory: Inventory, engine: FolderEngine) -> Iterator[Problem]:
    model_type, settings, coverage = inventory.naming.model_type or "", inventory.settings, inventory.coverage
    if settings is None or coverage is None or inventory.model is None:
        return
    config = text_config(inventory.model.config())
    table = engine.biases.get(model_type, {})
    present = set(coverage.origins)
    needed = set()
    count = all_layers(settings)  # engines ignore what is behind the last layer
    for setting, templates in table.items():
        if setting == ALWAYS or config.get(setting):
            needed |= {each.replace("{n}", str(n)) for each in templates for n in range(count)}
    if model_type not in engine.biases and model_type in OWN_BIASES:
        return
    for name in sorted(needed - present)[:1]:
        yield _tensor(name, f"is missing, and the model in {engine.title} has it")
    extra = {name for name in present if name.endswith("_proj.bias") and ".experts." not in name} - needed
    for name in sorted(extra)[:1]:
        severity = "error" if engine.strict else "warning"
        yield _tensor(name, f"is not a parameter of the model in {engine.title}", severity)


def _head_problems(file: File, inventory: Inventory, engine: FolderEngine) -> Iterator[Problem]:
    """Yield a head that is stored although config.json ties it to the embeddings."""
    model_type, settings, coverage = inventory.naming.model_type or "", inventory.settings, inventory.coverage
    if (
        settings is None
        or coverage is None
        or not settings.get("tie_word_embeddings")
        or model_type in engine.takes_head
    ):
        return
    head = next((name for name in coverage.unused if name.endswith(HEAD)), None)
    if head is None:
        return
    if engine.strict and model_type not in engine.drops_head:
        yield _tensor(head, f"is stored although config.json ties it, which {engine.title} refuses for {model_type}")
    elif not _is_tied(file, inventory, head):
        yield _tensor(
            head,
            f"is dropped by {engine.title}, because config.json ties it, and differs from the embeddings",
            "warning",
        )


def _is_coded(spec: TensorSpec) -> bool:
    return bool(spec.encodings) and spec.encodings[0].codec.id != "dense"


def _is_tied(file: File, inventory: Inventory, head: str) -> bool:
    """Return whether a head has the values of the embeddings; only dense ones are compared, in pieces."""
    import numpy as np

    assert inventory.coverage is not None
    assert inventory.family is not None
    partner = next(tensor.tied_to for tensor in inventory.family.tensors if tensor.name == HEAD)
    origin = inventory.coverage.origins.get(partner or "")
    if origin is None:
        return True
    first, second = file[head], file[origin.name]
    if first.shape != second.shape or any(each.encodings[0].codec.id != "dense" for each in (first.spec, second.spec)):
        return False
    step = max(1, PIECE // max(1, first.shape[-1]))
    rows = range(0, first.shape[0], step)
    return all(np.array_equal(first[start : start + step], second[start : start + step]) for start in rows)


def _fp8_problems(file: File, inventory: Inventory, engine: FolderEngine) -> Iterator[Problem]:
    model_type = inventory.naming.model_type or ""
    if engine.fp8 is None or model_type in engine.fp8 or not (file.version or "").startswith("fp8"):
        return
    coded = [name for name, spec in file.index.tensors.items() if _is_coded(spec)]
    if file.format == "hf" and coded:
        message = f"has FP8 codes with scales, which {engine.title} does not read for {model_type}"
        yield Problem(code="engine-type", severity="error", where=coded[0], message=message)


def tokenizer_problems(file: File, engine: FolderEngine) -> Iterator[Problem]:
    """Find what keeps the tokenizer from being read."""
    documents: dict[str, dict[str, Any]] = {}
    for name in (TOKENIZER, TOKENIZER_CONFIG, GENERATION):
        if name not in file.assets:
            continue
        try:
            document = json.loads(bytes(file.assets[name].raw))  # the last of duplicate keys counts, as in the engine
        except (ValueError, RecursionError) as error:
            if name != GENERATION:
                yield _tokenizer(name, f"is not JSON: {error}")
            continue
        if isinstance(document, dict):
            documents[name] = document
        else:
            yield _tokenizer(name, "is not an object")
    config = documents.get(TOKENIZER_CONFIG, {})
    kind = _tokenizer_class(file, config, documents.get(TOKENIZER, {}))
    if TOKENIZER not in file.assets and kind == FILE and SENTENCEPIECE not in file.assets:
        yield _tokenizer(TOKENIZER, f"is missing: {engine.title} has no tokenizer without it")
    for field, message in tokenizer_config_problems(config):
        yield _tokenizer(f"{TOKENIZER_CONFIG} {field}", message)
    for field, message in tokenizer_json_problems(documents[TOKENIZER], kind != FILE) if TOKENIZER in documents else ():
        yield _tokenizer(f"{TOKENIZER} {field}", message)
    if engine.strict and TOKENIZER in documents and (gap := gap_of(documents[TOKENIZER])) is not None:
        yield _tokenizer(f"{TOKENIZER} model.vocab", f"has no token for the id {gap}, with which {engine.title} ends")


def _tokenizer_class(file: File, config: dict[str, Any], document: dict[str, Any]) -> str:
    settings = folder_config(file)
    class_name = config.get("tokenizer_class") or settings.get("tokenizer_class")
    steps = json.dumps([document.get(name) for name in ("pre_tokenizer", "decoder")])
    return tokenizer_class(str(settings.get("model_type")), class_name, '"ByteLevel"' in steps)


def _tokenizer(where: str, message: str) -> Problem:
    return Problem(code="tokenizer", severity="error", where=where, message=message)


def _tensor(name: str, message: str, severity: str = "error") -> Problem:
    return Problem(code="engine-tensor", severity=severity, where=name, message=message)
