"""Small encoders with a tokenizer of their kind and the files of sentence-transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from published_encoders import PUBLISHED
from squish_convert.arrays import in_memory
from squish_models.tokenizer import Normalizer, Tokenizer, Vocabulary, huggingface_files
from squish_testing import write_model

import squish_core as squish
from squish_core.model import Typed

SPECIAL = {
    "words": ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    "pieces": ("<s>", "<pad>", "</s>", "<unk>", "<mask>"),
}
IDS = {
    "words": {"pad": 0, "unk": 1, "bos": 2, "eos": 3, "sep": 3, "mask": 4},
    "pieces": {"bos": 0, "pad": 1, "eos": 2, "sep": 2, "unk": 3, "mask": 4},
}
MODULES = ("models.Transformer", "models.Pooling", "models.Normalize")


def tokenizer(kind: str) -> dict[str, bytes]:
    """The files of a tokenizer of 64 tokens: "words" (WordPiece), "pieces" (unigram) or "bytes" (BPE)."""
    own = "words" if kind == "words" else "pieces"
    inner = [f"##{letter}" for letter in "abc"] if kind == "words" else ["\u2581a", "b", "c"]
    tokens = (*SPECIAL[own], "a", *inner, *(f"t{number}" for number in range(55)))
    kinds = np.array([3] * 5 + [1] * 59, np.int32)
    kinds[IDS[own]["unk"]] = 3 if kind == "words" else 2
    forms: dict[str, dict[str, Any]] = {
        "words": {"model": "wordpiece", "normalizer": Normalizer(lowercase=True)},
        "pieces": {"model": "unigram", "normalizer": Normalizer(), "space_prefix": True},
        "bytes": {"model": "bpe", "pre": "gpt-2"},
    }
    scores = np.linspace(0, -5, 64, dtype=np.float32) if kind == "pieces" else None
    merges = (("b", "c"),) if kind == "bytes" else ()
    if kind == "bytes":
        tokens = (*tokens[:9], "bc", *tokens[10:])
    vocabulary = Vocabulary(tokens=tokens, kinds=kinds, scores=scores, merges=merges)
    add = {"bos": True, "eos": True}
    files = huggingface_files(Tokenizer(vocabulary=vocabulary, special=IDS[own], add=add, **forms[kind]))
    return {name: data for name, data in files.items() if name != "generation_config.json"}


def sentence_files(pooling: Mapping[str, Any] | None = None, modules: tuple[str, ...] = MODULES) -> dict[str, bytes]:
    """The files of sentence-transformers."""
    paths = ("", *(f"{place}_{kind.rpartition('.')[2]}" for place, kind in enumerate(modules) if place))
    listed = [
        {"idx": place, "name": str(place), "path": path, "type": f"sentence_transformers.{kind}"}
        for place, (path, kind) in enumerate(zip(paths, modules))
    ]
    stated = {"word_embedding_dimension": 32, **(pooling or {"pooling_mode_mean_tokens": True})}
    values = {"modules.json": listed, "1_Pooling/config.json": stated}
    return {name: json.dumps(value, indent=1).encode() for name, value in values.items()}


def encoder(folder: Path, model: str, kind: str, files: Mapping[str, bytes] | None = None, **changes: Any) -> Path:
    """Write the folder of a published model with small sizes."""
    family, config = PUBLISHED[model]
    config = {**config, "torch_dtype": "float32", **changes}
    return write_model(folder, family, config, dtype="f32", files={**tokenizer(kind), **(files or {})})


def of_others(path: Path, **keys: Typed | None) -> Path:
    """Write the GGUF again as another program would: without Squish's keys, and with other `keys`."""
    with squish.open(path) as file:
        own = {key: value for key, value in file.index.meta.items() if not key.startswith("squish.")}
        own = {key: value for key, value in {**own, **keys}.items() if value is not None}
        squish.save(path.with_name("others.gguf"), {name: file[name].numpy() for name in file}, metadata=own)
    return path.with_name("others.gguf")


def add_adapters(source: Path, target: Path) -> Path:
    """Write the folder of Jina Embeddings 3 again with the adapters of its tasks, and its pooler."""
    random = np.random.default_rng(0)
    with squish.open(source) as file:
        arrays = {name: file[name].numpy() for name in file}
        files = {name: bytes(buffer.raw) for name, buffer in file.assets.items()}
    config = json.loads(files["config.json"])
    tasks, rank, width = len(config["lora_adaptations"]), config["lora_rank"], config["hidden_size"]
    end = ".parametrizations.weight."
    arrays[f"roberta.pooler.dense{end}original"] = np.ones((width, width), np.float32)
    for name, values in [each for each in arrays.items() if each[0].endswith(f"{end}original")]:
        outputs, inputs = values.shape if "embeddings" not in name else values.shape[::-1]
        for part, shape in (("A", (tasks, rank, inputs)), ("B", (tasks, outputs, rank))):
            adapter = random.standard_normal(shape).astype(np.float32)
            arrays[f"{name.removesuffix('original')}0.lora_{part}"] = (
                adapter.swapaxes(1, 2) if "emb" in name else adapter
            )
    arrays["roberta.pooler.dense.bias"] = np.ones(width, np.float32)
    with in_memory(arrays, {"format": "pt"}, files) as file:
        squish.convert(file, target, "safetensors:max_shard_size=1GB", rename="keep")
    return target
