"""Tiny seeded models with vision towers, and llama.cpp's own GGUFs of the towers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from . import converter, families, peer, towers_qwen, towers_vl

TEXT = {**families.SIZE, "num_hidden_layers": 2, "head_dim": 32, "query_pre_attn_scalar": 32}
VISION = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 56,
    "patch_size": 14,
}  # fmt: skip
IMAGES = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.5, 0.6, 0.7], "size": {"height": 56, "width": 56}}
MODELS: dict[str, dict[str, Any]] = {
    "gemma3": {
        "config": {
            "text_config": TEXT,
            "vision_config": {**VISION, "vision_use_head": False},
            "mm_tokens_per_image": 4,
        },
        "images": {**IMAGES, "image_seq_length": 4},
        "published": {"vision_tower.": "vision_tower.vision_model."},
    },
    "idefics3": {
        "config": {
            "text_config": {**families.SIZE, "model_type": "llama"},
            "vision_config": VISION,
            "scale_factor": 2,
        },
        "images": {**IMAGES, "size": {"longest_edge": 112}},
    },
    "smolvlm": {
        "config": {
            "text_config": {**families.SIZE, "model_type": "llama"},
            "vision_config": VISION,
            "scale_factor": 2,
        },
        "images": {**IMAGES, "size": {"longest_edge": 112}},
    },
    **towers_vl.MODELS,
    **towers_qwen.MODELS,
}
"""Name -> config.json, the settings of its image processor, and prefixes of names: Transformers' -> the Hub's."""


def make(name: str, folder: Path) -> Path:
    """Save a model with a tower, without a tokenizer."""
    model = MODELS[name]
    folder.mkdir(parents=True)
    settings = model["config"]
    peer("torch").run(families.save_model, folder=str(folder), family=model.get("model_type", name), settings=settings)
    rename(folder / "model.safetensors", model.get("published", {}))
    for file, content in {"preprocessor_config.json": model["images"], **model.get("files", {})}.items():
        (folder / file).write_text(json.dumps(content))
    if "finish" in model:
        model["finish"](folder)
    return folder


def rename(file: Path, prefixes: dict[str, str]) -> None:
    """Give tensors the names of published files."""
    data = file.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    names = {}
    for name, entry in header.items():
        prefix = next((each for each in prefixes if name.startswith(each)), "")
        names[prefixes.get(prefix, "") + name.removeprefix(prefix)] = entry
    text = json.dumps(names).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])


def convert(folder: Path, target: Path, dtype: str = "f32") -> Path:
    """Write llama.cpp's GGUF of the tower of a folder."""
    paths = {"root": str(converter.fetch()), "source": str(folder), "target": str(target)}
    peer("torch").run(run, **paths, kind={"f32": "ALL_F32", "bf16": "MOSTLY_BF16"}[dtype], timeout=600)
    return target


def run(root: str, source: str, target: str, kind: str) -> None:
    """Runs in the peer."""
    import logging
    import sys
    from pathlib import Path

    import torch

    sys.path[:0] = [root, f"{root}/gguf-py"]
    from conversion import ModelBase, get_model_architecture, get_model_class  # type: ignore[import-not-found]
    from conversion.base import ModelType, gguf  # type: ignore[import-not-found]

    logging.disable(logging.WARNING)
    with torch.inference_mode():
        settings = ModelBase.load_hparams(Path(source), False)
        tower = get_model_class(get_model_architecture(settings, ModelType.MMPROJ), mmproj=True)
        tower(Path(source), gguf.LlamaFileType[kind], Path(target)).write()
