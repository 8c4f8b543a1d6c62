"""Tiny models with the towers of Pixtral, InternVL, LFM2-VL, Gemma 4 and Kimi-VL."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

import squish_core as squish

from . import families_g4

SIZE = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "vocab_size": 640,
}  # fmt: skip
COLORS = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.5, 0.6, 0.7]}
PIXTRAL = {
    "model_type": "pixtral", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
    "num_attention_heads": 2, "image_size": 56, "patch_size": 14, "head_dim": 16, "rope_theta": 10000.0,
}  # fmt: skip
BREAK = {"tokenizer_config.json": {"added_tokens_decoder": {"12": {"content": "[IMG_BREAK]", "special": True}}}}
SAVED = {"vision_tower.": "model.vision_tower.", "multi_modal_projector.": "model.multi_modal_projector."}
"""Published prefixes -> those of the classes in Transformers."""
INTERNVL = {
    "architectures": ["InternVisionModel"], "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4,
    "num_attention_heads": 2, "image_size": [56, 56], "patch_size": [14, 14], "attention_bias": True,
    "layer_norm_eps": 1e-5,
}  # fmt: skip
"""The class is not Transformers' own but the authors', the only one that llama.cpp's converter knows."""
CHAT = {
    "language_model.": "language_model.", "multi_modal_projector.layer_norm.": "mlp1.0.",
    "multi_modal_projector.linear_1.": "mlp1.1.", "multi_modal_projector.linear_2.": "mlp1.3.",
    "vision_tower.": "vision_model.",
}  # fmt: skip
CHAT_PARTS = {
    "embeddings.cls_token": "embeddings.class_embedding",
    "embeddings.position_embeddings": "embeddings.position_embedding",
    "embeddings.patch_embeddings.projection": "embeddings.patch_embedding", "encoder.layer.": "encoder.layers.",
    "layernorm_before": "norm1", "layernorm_after": "norm2", "attention.projection_layer": "attn.proj",
    "lambda_1": "ls1", "lambda_2": "ls2",
}  # fmt: skip
GEMMA4 = {
    "hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4, "head_dim": 16, "patch_size": 16, "position_embedding_size": 40,
}  # fmt: skip
MOONVIT = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 2, "patch_size": 14,
    "pos_emb_height": 8, "pos_emb_width": 8,
}  # fmt: skip
DEEPSEEK = {
    "num_key_value_heads": 4, "kv_lora_rank": 32, "qk_rope_head_dim": 16, "qk_nope_head_dim": 32, "v_head_dim": 32,
    "first_k_dense_replace": 1, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1,
    "moe_intermediate_size": 32, "n_group": 1, "topk_group": 1,
}  # fmt: skip
GEMMA4_TEXT = {**SIZE, **families_g4.GEMMA4}


def fill_buffers(folder: Path) -> None:
    """Give the buffers of a Gemma 4 values that count: bounds of matrices, and the bias and scale of the tower."""
    with squish.open(folder / "model.safetensors") as file:
        arrays = {name: file[name].numpy() for name in file}
    bounds = {"input_max": 1.5, "input_min": -1.25, "output_max": 0.75, "output_min": -0.5}
    generator = np.random.default_rng(3)
    for name, array in arrays.items():
        kind = name.rpartition(".")[2]
        if kind in bounds:
            arrays[name] = np.full_like(array, bounds[kind])
        elif kind in ("std_bias", "std_scale"):
            arrays[name] = (1 + 0.2 * generator.standard_normal(array.shape)).astype(array.dtype)
    (folder / "model.safetensors").unlink()
    squish.save(folder / "model.safetensors", arrays)


def spell_as_the_authors(folder: Path) -> None:
    """Give an InternVL the names of `internvl_chat`, with fused queries, keys and values, and its config.json."""
    with squish.open(folder / "model.safetensors") as file:
        arrays = {name: file[name].numpy() for name in file}
    renamed: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        prefix = next(each for each in CHAT if name.startswith(each))
        own = CHAT[prefix] + name.removeprefix(prefix)
        for part, replacement in CHAT_PARTS.items() if "vision" in own else ():
            own = own.replace(part, replacement)
        if "k_proj" in own or "v_proj" in own:
            continue
        if "q_proj" in own and "vision" in own:
            array = np.concatenate([arrays[name.replace("q_proj", f"{each}_proj")] for each in "qkv"])
            own = own.replace("attention.q_proj", "attn.qkv")
        renamed[own] = array
    (folder / "model.safetensors").unlink()
    squish.save(folder / "model.safetensors", renamed)
    config = json.loads((folder / "config.json").read_text())
    vision = config["vision_config"]
    for name, own in {"attention_bias": "qkv_bias", "use_qk_norm": "qk_normalization"}.items():
        vision[own] = vision.pop(name)
    vision |= {"image_size": 56, "patch_size": 14, "model_type": "intern_vit_6b"}
    config |= {"llm_config": config.pop("text_config"), "model_type": "internvl_chat", "ps_version": "v2"}
    config |= {
        "architectures": ["InternVLChatModel"],
        "min_dynamic_patch": 1,
        "max_dynamic_patch": 12,
        "select_layer": -1,
    }
    (folder / "config.json").write_text(json.dumps(config))


KIMI = {
    "text_config": {**SIZE, **DEEPSEEK, "model_type": "deepseek_v3"}, "vision_config": MOONVIT,
    "projection_hidden_size": 32,
}  # fmt: skip
KIMI_NAMES = {
    "vision_tower.encoder.patch_embed.": "vision_tower.patch_embed.", "model.mm_projector.": "mm_projector.",
    "language_model.model.blocks.": "language_model.model.layers.",
}  # fmt: skip
"""Names that Transformers saves for a Kimi K2.5 -> the published ones."""
KIMI_VL_NAMES = {
    **KIMI_NAMES, "model.mm_projector.": "multi_modal_projector.",
    "mm_projector.proj.0.": "multi_modal_projector.linear_1.",
    "mm_projector.proj.2.": "multi_modal_projector.linear_2.",
}  # fmt: skip


def reference(folder: Path) -> Path:
    """The folder of a model that Transformers loads: its own, unless it has the spelling of its authors alone."""
    other = folder.with_name(f"{folder.name}-transformers")
    return other if other.exists() else folder


def respell(folder: Path, names: dict[str, str], vision: dict[str, Any], **config: Any) -> None:
    """Give a Kimi K2.5 other names and another config.json; a copy stays beside it for Transformers."""
    shutil.copytree(folder, folder.with_name(f"{folder.name}-transformers"))
    with squish.open(folder / "model.safetensors") as file:
        arrays = {name: file[name].numpy() for name in file}
    found = {name: next((each for each in names if name.startswith(each)), "") for name in arrays}
    renamed = {names.get(start, "") + name.removeprefix(start): arrays[name] for name, start in found.items()}
    (folder / "model.safetensors").unlink()
    squish.save(folder / "model.safetensors", renamed)
    stated = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**stated, **config, "vision_config": vision}))


def kimi_k25(folder: Path) -> None:
    """Spell a Kimi K2.5 as it is published, and its sizes also as Transformers, which the converter asks."""
    sizes = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    vision: dict[str, Any] = MOONVIT | {f"vt_{name}": MOONVIT[name] for name in sizes}
    vision |= {f"init_pos_emb_{name}": size for name, size in (("height", 8), ("width", 8), ("time", 4))}
    vision |= {"patch_size": 14, "merge_kernel_size": [2, 2], "projector_hidden_act": "gelu", "projector_ln_eps": 1e-5}
    vision |= {"merge_type": "sd2_tpool", "text_hidden_size": 64}
    respell(folder, KIMI_NAMES, vision, architectures=["KimiK25ForConditionalGeneration"])


def kimi_vl(folder: Path) -> None:
    """Spell a Kimi K2.5 as a Kimi-VL, which computes the same of an image."""
    vision: dict[str, Any] = {name: size for name, size in MOONVIT.items() if not name.startswith("pos_emb")}
    vision |= {"init_pos_emb_height": 8, "init_pos_emb_width": 8, "merge_kernel_size": [2, 2], "model_type": "moonvit"}
    kimi = "KimiVLForConditionalGeneration"
    respell(folder, KIMI_VL_NAMES, vision, model_type="kimi_vl", architectures=[kimi])


MODELS: dict[str, dict[str, Any]] = {
    "mistral3": {
        "config": {
            "text_config": {**SIZE, "head_dim": 32, "model_type": "mistral"},
            "vision_config": {**PIXTRAL, "hidden_act": "silu"},
            "spatial_merge_size": 2,
        },
        "images": {**COLORS, "size": {"longest_edge": 56}, "patch_size": 14},
        "files": BREAK,
    },
    "llava": {
        "config": {
            "text_config": {**SIZE, "model_type": "mistral"},
            "vision_config": {**PIXTRAL, "hidden_act": "gelu"},
            "vision_feature_layer": -1,
            "vision_feature_select_strategy": "full",
        },
        "images": {**COLORS, "size": {"longest_edge": 56}, "patch_size": 14},
        "files": BREAK,
    },
    "internvl": {
        "config": {
            "text_config": {**SIZE, "model_type": "qwen2"},
            "vision_config": INTERNVL,
            "downsample_ratio": 0.5,
        },
        "images": {**COLORS, "size": {"height": 56, "width": 56}},
        "published": SAVED,
    },
    "internvl_chat": {
        "model_type": "internvl",
        "config": {
            "text_config": {**SIZE, "model_type": "qwen2"},
            "vision_config": INTERNVL,
            "downsample_ratio": 0.5,
        },
        "images": {**COLORS, "size": 56, "crop_size": 56},
        "finish": spell_as_the_authors,
    },
    "gemma4": {
        "config": {"text_config": GEMMA4_TEXT, "vision_config": {**GEMMA4, "standardize": True}, "audio_config": None},
        "images": {"image_mean": [0.0, 0.0, 0.0], "image_std": [1.0, 1.0, 1.0]},
        "finish": fill_buffers,
    },
    "gemma4-clipped": {
        "model_type": "gemma4",
        "config": {
            "text_config": GEMMA4_TEXT,
            "vision_config": {**GEMMA4, "use_clipped_linears": True},
            "audio_config": None,
        },
        "images": {"image_mean": [0.0, 0.0, 0.0], "image_std": [1.0, 1.0, 1.0]},
        "finish": fill_buffers,
    },
    "kimi_k25": {"config": KIMI, "images": {"media_proc_cfg": {**COLORS, "in_patch_limit": 4096}}, "finish": kimi_k25},
    "kimi_vl": {"model_type": "kimi_k25", "config": KIMI, "images": COLORS, "finish": kimi_vl},
    "lfm2_vl": {
        "config": {
            "text_config": {**SIZE, "model_type": "lfm2", "layer_types": ["conv", "full_attention"]},
            "vision_config": {
                "model_type": "siglip2_vision_model",
                "hidden_size": 32,
                "intermediate_size": 48,
                "num_hidden_layers": 3,
                "num_attention_heads": 2,
                "patch_size": 16,
                "num_patches": 256,
                "vision_use_head": False,
            },
            "projector_hidden_size": 40,
            "downsample_factor": 2,
        },
        "images": {**COLORS, "size": {"height": 512, "width": 512}, "resample": 2, "tile_size": 512},
        "published": {"model.vision_tower.": "model.vision_tower.vision_model."},
    },
}
"""As in `towers`; `files`: other files of the folder; `finish`: a function of the folder."""
