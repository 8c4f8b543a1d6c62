"""Small models under the names that documentation pages use: same layers and types, other sizes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from squish_models.tokenizer import Normalizer, Tokenizer, Vocabulary, huggingface_files
from squish_testing import model_arrays, write_model

import squish_core as squish

FOLDER = "safetensors:max_shard_size=1GB"
TEXT = "A codec turns stored bytes into values. The quick brown fox jumps over the lazy dog.\n"
SMOLLM2 = json.loads("""{
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 192, "intermediate_size": 256,
    "num_hidden_layers": 30, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 64, "vocab_size": 320,
    "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 100000.0, "tie_word_embeddings": true,
    "hidden_act": "silu", "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16",
    "_name_or_path": "HuggingFaceTB/SmolLM2-135M-Instruct"
}""")
QWEN2 = SMOLLM2 | json.loads("""{
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 2, "tie_word_embeddings": false
}""")
GLM4 = SMOLLM2 | json.loads("""{
    "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 2, "tie_word_embeddings": false, "first_k_dense_replace": 1, "moe_intermediate_size": 32,
    "n_group": 1, "n_routed_experts": 4, "n_shared_experts": 1, "norm_topk_prob": true, "num_experts_per_tok": 2,
    "num_nextn_predict_layers": 1, "partial_rotary_factor": 0.5, "routed_scaling_factor": 1.0, "topk_group": 1,
    "use_qk_norm": true, "attention_bias": true
}""")
GEMMA3 = json.loads("""{
    "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "mm_tokens_per_image": 4,
    "torch_dtype": "bfloat16",
    "text_config": {
        "model_type": "gemma3_text", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "query_pre_attn_scalar": 16,
        "vocab_size": 320, "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "sliding_window": 32,
        "tie_word_embeddings": true, "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0,
        "sliding_window_pattern": 6
    },
    "vision_config": {
        "model_type": "siglip_vision_model", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 27,
        "num_attention_heads": 2, "image_size": 56, "patch_size": 14, "hidden_act": "gelu_pytorch_tanh"
    }
}""")
IMAGES = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "image_seq_length": 4}
MINILM = json.loads("""{
    "architectures": ["BertModel"], "model_type": "bert", "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 6, "num_attention_heads": 4, "hidden_act": "gelu", "layer_norm_eps": 1e-12, "vocab_size": 64,
    "max_position_embeddings": 40, "pad_token_id": 0, "position_embedding_type": "absolute", "type_vocab_size": 2,
    "torch_dtype": "float32"
}""")
SENTENCES = {
    "modules.json": [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
    ],
    "1_Pooling/config.json": {"word_embedding_dimension": 64, "pooling_mode_mean_tokens": True},
}
LORA = json.loads("""{
    "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "HuggingFaceTB/SmolLM2-135M-Instruct",
    "r": 8, "lora_alpha": 16, "lora_dropout": 0.05, "bias": "none", "target_modules": ["q_proj", "v_proj"]
}""")


def byte_tokenizer() -> dict[str, bytes]:
    """The files of a tokenizer of 320 tokens that spells any text, with SmolLM2's special tokens and template."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = [chr(byte) for byte in printable] + [chr(256 + place) for place in range(len(others))]
    tokens = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *letters, *(f"<spare{number}>" for number in range(61)))
    vocabulary = Vocabulary(tokens=tokens, kinds=np.array([3] * 3 + [1] * 317, np.int32), merges=())
    template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    special = {"bos": 1, "eos": 2, "unk": 0, "pad": 2}
    tokenizer = Tokenizer(
        model="bpe", vocabulary=vocabulary, pre="smollm", special=special, chat_templates={"": template}
    )
    return dict(huggingface_files(tokenizer))


def word_tokenizer() -> dict[str, bytes]:
    """The files of a WordPiece tokenizer of 64 tokens."""
    tokens = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##b", *(f"t{number}" for number in range(57)))
    vocabulary = Vocabulary(tokens=tokens, kinds=np.array([3] * 5 + [1] * 59, np.int32))
    special = {"pad": 0, "unk": 1, "bos": 2, "eos": 3, "sep": 3, "mask": 4}
    add = {"bos": True, "eos": True}
    normalizer = Normalizer(lowercase=True)
    tokenizer = Tokenizer(model="wordpiece", vocabulary=vocabulary, special=special, add=add, normalizer=normalizer)
    files = huggingface_files(tokenizer)
    return {name: data for name, data in files.items() if name != "generation_config.json"}


def encoded(contents: dict[str, Any]) -> dict[str, bytes]:
    return {name: json.dumps(content, indent=1).encode() for name, content in contents.items()}


def smollm2(path: Path) -> None:
    write_model(path, "llama", SMOLLM2, files=byte_tokenizer())


def smollm2_gguf(path: Path) -> None:
    """As the file of the demo: Q4_1, and a Q8_0 embedding."""
    squish.convert(stand_in("SmolLM2-135M-Instruct"), path, "gguf:keep=no", encode=["*proj*=q4_1", "*embed*=q8_0"])


def smollm2_q4_0(path: Path) -> None:
    squish.convert(stand_in("SmolLM2-135M-Instruct"), path, encode="q4_0")


def qwen2_gptq(path: Path) -> None:
    """Symmetric codes in groups of 128: those of compressed-tensors, since GPTQ's own encoder fits zero points."""
    source, symmetric = path.with_name("qwen2"), path.with_name("symmetric")
    write_model(source, "qwen2", QWEN2, files=byte_tokenizer())
    squish.convert(source, symmetric, "hf:method=compressed-tensors", encode="*proj*=int4:group_size=128")
    squish.convert(symmetric, path, "hf:method=gptq")


def gemma3(path: Path) -> None:
    arrays = {f"language_model.{name}": array for name, array in model_arrays("gemma3", GEMMA3["text_config"]).items()}
    arrays |= model_arrays("gemma3.vision", GEMMA3)
    assets = {**encoded({"config.json": GEMMA3, "preprocessor_config.json": IMAGES}), **byte_tokenizer()}
    squish.save(path, arrays, format=FOLDER, metadata={"format": "pt"}, assets=assets)


def glm4(path: Path, behind: bool = True) -> None:
    """With a layer behind the last one: a copy of that, and what joins it to the model."""
    arrays = model_arrays("glm4_moe", GLM4)
    last = {name.replace("layers.1.", "layers.2."): array for name, array in arrays.items() if "layers.1." in name}
    shapes = {"eh_proj": (64, 128), "enorm": (64,), "hnorm": (64,), "shared_head.norm": (64,)}
    dtype = arrays["model.norm.weight"].dtype
    last |= {f"model.layers.2.{name}.weight": np.ones(shape, dtype) for name, shape in shapes.items()}
    assets = {**encoded({"config.json": GLM4}), **byte_tokenizer()}
    squish.save(path, arrays | (last if behind else {}), format=FOLDER, assets=assets)


def glm4_text(path: Path) -> None:
    glm4(path.with_name("text"), behind=False)
    squish.convert(path.with_name("text"), path)


def minilm(path: Path) -> None:
    write_model(path, "bert", MINILM, dtype="f32", files={**word_tokenizer(), **encoded(SENTENCES)})


def lora(path: Path) -> None:
    path.mkdir()
    generator, arrays = np.random.default_rng(0), {}
    for layer in range(30):
        for module, rows in {"q_proj": 192, "v_proj": 64}.items():
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            arrays[f"{name}.lora_A.weight"] = generator.standard_normal((8, 192), np.float32)
            arrays[f"{name}.lora_B.weight"] = generator.standard_normal((rows, 8), np.float32)
    squish.save(path / "adapter_model.safetensors", arrays, metadata={"format": "pt"})
    (path / "adapter_config.json").write_text(json.dumps(LORA))


def imatrix(path: Path) -> None:
    """Sums of squared inputs of every matrix, as llama-imatrix writes them."""
    arrays = {}
    with squish.open(stand_in("smollm2.gguf")) as file:
        for name in (name for name in file if name.startswith("blk.") and len(file[name].shape) == 2):
            arrays[f"{name}.in_sum2"] = np.random.default_rng(1).random((1, file[name].shape[1]), np.float32)
            arrays[f"{name}.counts"] = np.full((1, 1), 512, np.float32)
    squish.save(path, arrays)


STAND_INS: dict[str, Callable[[Path], Any]] = {
    "SmolLM2-135M-Instruct": smollm2,
    "smollm2.gguf": smollm2_gguf,
    "smollm2-q4_0.gguf": smollm2_q4_0,
    "Qwen2.5-0.5B-Instruct-GPTQ-Int4": qwen2_gptq,
    "gemma-3-4b-it": gemma3,
    "GLM-4.5-Air": glm4,
    "GLM-4.5-Air-text.gguf": glm4_text,
    "all-MiniLM-L6-v2": minilm,
    "my-lora": lora,
    "smollm2.imatrix.gguf": imatrix,
    "calibration.txt": lambda path: path.write_text(TEXT * 40),
}
"""Name of a file or folder in the pages -> what writes it."""

PLACE: list[Path] = []
"""The folder where they are kept while tests run."""


def stand_in(name: str) -> Path:
    """The file or folder of that name, written on first use."""
    path = PLACE[0] / name
    if not path.exists():
        STAND_INS[name](path)
    return path
