"""Tiny seeded models of every family, made by Transformers from a config, with a tokenizer of the family's kind."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from . import ROOT, families_ds, families_g4, families_moe, families_old, families_ssm, peer

TEXT = ROOT / "LICENSE"
SIZE = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "vocab_size": 640,
}  # fmt: skip
PADDING = 8
"""Rows of the embedding beyond the tokenizer, as many models have them."""
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "norm_topk_prob": True}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
ROPE = {"rope_theta": 10000.0, "factor": 4.0}
YARN = {**ROPE, "rope_type": "yarn", "original_max_position_embeddings": 128, "beta_fast": 32.0, "beta_slow": 1.0}
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 8,
    "long_factor": [1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0], "short_factor": [1.0] * 8,
}  # fmt: skip
"""Every prompt is longer than 8 tokens: transformers chooses the long factors by the text, llama.cpp by the context."""
BOS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
GEMMA = {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>"}
GEMMA2 = {
    "num_hidden_layers": 4, "head_dim": 32, "query_pre_attn_scalar": 32, "attn_logit_softcapping": 5.0,
    "final_logit_softcapping": 3.0,
}  # fmt: skip
END = {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}
PHI = {"original_max_position_embeddings": 512}
QWEN = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}

MLA = {
    "num_key_value_heads": 4, "kv_lora_rank": 32, "qk_rope_head_dim": 16, "qk_nope_head_dim": 32, "v_head_dim": 32,
    "first_k_dense_replace": 1, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 2,
    "moe_intermediate_size": 32, "routed_scaling_factor": 1.5, "tie_word_embeddings": False,
}  # fmt: skip
"""Latent attention, and experts beside shared ones."""
GLM = {
    "first_k_dense_replace": 1, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1,
    "moe_intermediate_size": 32, "routed_scaling_factor": 1.5, "n_group": 1, "topk_group": 1, "norm_topk_prob": True,
    "tie_word_embeddings": False,
}  # fmt: skip
DEEPSEEK_ROPE = {**YARN, "mscale": 0.707, "mscale_all_dim": 0.707}
GPT2 = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 512,
    "vocab_size": 640,
}  # fmt: skip
"""SIZE for GPT-2, which has no key-value heads."""

DELTA = {
    "num_hidden_layers": 4, "head_dim": 64, "max_position_embeddings": 1024, "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 32, "linear_value_head_dim": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "full_attention_interval": 4,
    "rope_parameters": {
        "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25, "mrope_section": [3, 3, 2],
        "mrope_interleaved": True,
    },
}  # fmt: skip
"""A gated delta rule with two heads of values for each of keys, and gated attention in the last layer."""
SHARED = {**MOE, "shared_expert_intermediate_size": 96, "tie_word_embeddings": False}

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {
        "config": {"rope_parameters": LLAMA3, "tie_word_embeddings": False},
        "tokenizer": "llama-bpe",
        "special": {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"},
    },
    "llama-linear": {
        "model_type": "llama", "config": {"rope_parameters": {**ROPE, "rope_type": "linear"}},
        "tokenizer": "sentencepiece", "special": BOS,
    },
    "llama-yarn": {
        "model_type": "llama", "config": {"rope_parameters": YARN}, "tokenizer": "sentencepiece", "special": BOS,
    },
    "llama-dynamic": {
        "model_type": "llama", "config": {"rope_parameters": {**ROPE, "rope_type": "dynamic"}},
        "tokenizer": "sentencepiece", "special": BOS,
    },
    "mistral": {"config": {"sliding_window": None, "head_dim": 32}, "tokenizer": "sentencepiece", "special": BOS},
    "mixtral": {
        "config": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
        "tokenizer": "sentencepiece",
        "special": BOS,
    },
    "qwen2": {"config": {"tie_word_embeddings": True}, "tokenizer": "qwen2", "special": QWEN},
    "qwen2_5_vl": {
        "config": {
            "vision_config": {
                "depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 64,
                "fullatt_block_indexes": [0],
            },
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]},
            "tie_word_embeddings": True, "bos_token_id": None,
        },
        "tokenizer": "qwen2",
        "special": QWEN,
    },
    "qwen3": {"config": {"head_dim": 32, "tie_word_embeddings": True}, "tokenizer": "qwen2", "special": QWEN},
    "qwen3_moe": {
        "config": {**MOE, "head_dim": 32, "tie_word_embeddings": False}, "tokenizer": "qwen2", "special": QWEN,
    },
    "gemma3_text": {
        "config": {
            "num_hidden_layers": 7, "head_dim": 32, "sliding_window": 32, "query_pre_attn_scalar": 32,
            "tie_word_embeddings": True,
        },
        "tokenizer": "gemma",
        "special": GEMMA,
    },
    "phi3": {
        "config": {"sliding_window": None, "original_max_position_embeddings": 512, "pad_token_id": 0},
        "tokenizer": "sentencepiece",
        "special": {**BOS, "pad_token": "<|endoftext|>"},
    },
    "phi3-longrope": {
        "model_type": "phi3",
        "config": {
            "sliding_window": None, "original_max_position_embeddings": 8, "pad_token_id": 0,
            "rope_parameters": LONGROPE,
        },
        "tokenizer": "sentencepiece",
        "special": {**BOS, "pad_token": "<|endoftext|>"},
    },
    "phi-4": {"model_type": "phi3", "config": {"sliding_window": None, **PHI}, "tokenizer": "dbrx", "special": END},
    "phi-4-mini": {
        "model_type": "phi3",
        "config": {
            **PHI, "sliding_window": 512, "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.75},
        },
        "tokenizer": "gpt-4o",
        "special": END,
    },
    "granite": {
        "config": {
            "embedding_multiplier": 12.0, "attention_multiplier": 0.125, "residual_multiplier": 0.22,
            "logits_scaling": 8.0, "tie_word_embeddings": True,
        },
        "tokenizer": "starcoder",
        "special": END,
    },
    "gemma2": {"config": {**GEMMA2, "sliding_window": 32}, "tokenizer": "gemma", "special": GEMMA},
    "gemma2-wide": {
        "model_type": "gemma2", "config": {**GEMMA2, "sliding_window": 512}, "tokenizer": "gemma", "special": GEMMA,
    },
    "olmo2": {"config": {"tie_word_embeddings": False}, "tokenizer": "dbrx", "special": END},
    "glm4": {
        "config": {"head_dim": 32, "attention_bias": True, "tie_word_embeddings": False}, "tokenizer": "glm4",
        "special": END,
    },
    "gpt_oss": {
        "config": {
            "head_dim": 32, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 32,
            "rope_parameters": {**YARN, "truncate": True}, "tie_word_embeddings": False,
        },
        "tokenizer": "gpt-4o",
        "special": END,
    },
    "deepseek_v2": {
        "config": {
            **MLA, "q_lora_rank": None, "v_head_dim": 48, "num_hidden_layers": 27, "rope_parameters": DEEPSEEK_ROPE,
        },
        "tokenizer": "deepseek",
        "special": END,
    },
    "deepseek_v3": {
        "config": {
            **MLA, "q_lora_rank": 48, "n_group": 2, "topk_group": 1, "norm_topk_prob": True,
            "num_nextn_predict_layers": 0,
        },
        "tokenizer": "deepseek",
        "special": END,
    },
    "lfm2": {
        "config": {
            "num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"], "conv_L_cache": 3,
            "block_multiple_of": 32, "max_position_embeddings": 1024,
        },
        "tokenizer": "llama-bpe",
        "special": {"bos_token": "<|startoftext|>", "eos_token": "<|im_end|>"},
    },
    "qwen3_vl": {
        "config": {
            "vision_config": {
                "depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 64,
                "deepstack_visual_indexes": [0], "num_position_embeddings": 16,
            },
        },
        "text": {
            **SIZE, "head_dim": 32,
            "rope_parameters": {
                "rope_type": "default", "rope_theta": 10000.0, "mrope_section": [6, 5, 5], "mrope_interleaved": True,
            },
        },
        "size": {"tie_word_embeddings": True},
        "tokenizer": "qwen2",
        "special": QWEN,
    },
    "hunyuan_v1_dense": {
        "config": {
            "head_dim": 32, "use_qk_norm": True, "tie_word_embeddings": True,
            "rope_parameters": {
                "rope_type": "dynamic", "rope_theta": 10000.0, "alpha": 1000.0, "beta_fast": 32, "beta_slow": 1,
                "factor": 1.0, "mscale": 1.0, "mscale_all_dim": 0.0,
            },
        },
        "tokenizer": "qwen2",
        "special": END,
    },
    "exaone4": {
        "config": {
            "sliding_window": None, "layer_types": ["full_attention"] * 2, "rope_parameters": LLAMA3,
            "tie_word_embeddings": True, "head_dim": 16,
        },
        "tokenizer": "dbrx",
        "special": END,
    },
    "exaone4-windows": {
        "model_type": "exaone4",
        "config": {"num_hidden_layers": 64, "sliding_window": 32, "head_dim": 16, "tie_word_embeddings": False},
        "tokenizer": "dbrx",
        "special": END,
    },
    "granitemoe": {
        "config": {
            "num_local_experts": 4, "num_experts_per_tok": 2, "embedding_multiplier": 12.0,
            "attention_multiplier": 0.125, "residual_multiplier": 0.22, "logits_scaling": 8.0,
            "tie_word_embeddings": True,
        },
        "tokenizer": "starcoder",
        "special": END,
    },
    "ministral3": {
        "config": {
            "head_dim": 32, "tie_word_embeddings": True, "sliding_window": None,
            "rope_parameters": {
                **YARN, "original_max_position_embeddings": 32, "mscale": 1.0, "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.1,
            },
        },
        "tokenizer": "sentencepiece",
        "special": BOS,
    },
    "qwen2_moe": {
        "config": {**MOE, "norm_topk_prob": False, "shared_expert_intermediate_size": 96, "tie_word_embeddings": False},
        "tokenizer": "qwen2",
        "special": QWEN,
    },
    "qwen3_5_text": {"config": {**DELTA, "tie_word_embeddings": True}, "tokenizer": "qwen2", "special": QWEN},
    "qwen3_5_text-wide": {
        "model_type": "qwen3_5_text", "config": {**DELTA, "linear_num_value_heads": 6, "tie_word_embeddings": False},
        "tokenizer": "qwen2", "special": QWEN,
    },
    "qwen3_5_moe_text": {"config": {**DELTA, **SHARED}, "tokenizer": "qwen2", "special": QWEN},
    "qwen3_next": {
        "config": {
            **DELTA, **SHARED,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
        },
        "tokenizer": "qwen2",
        "special": QWEN,
    },
    "glm4_moe": {
        "config": {
            **GLM, "num_hidden_layers": 3, "head_dim": 32, "attention_bias": True, "use_qk_norm": True,
            "partial_rotary_factor": 0.5,
        },
        "tokenizer": "glm4",
        "special": END,
    },
    "glm4_moe_lite": {
        "config": {
            **MLA, "q_lora_rank": 48, "v_head_dim": 48, "n_group": 1, "topk_group": 1, "norm_topk_prob": True,
            "n_shared_experts": 1, "num_nextn_predict_layers": 1,
        },
        "tokenizer": "glm4",
        "special": END,
    },
    "minimax_m2": {
        "config": {
            "num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 32, "rotary_dim": 16,
            "scoring_func": "sigmoid", "use_qk_norm": True, "shared_intermediate_size": 0, "tie_word_embeddings": False,
            "bos_token_id": None,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
        },
        "tokenizer": "gpt-4o",
        "special": END,
    },
    "lfm2_moe": {
        "config": {
            "num_hidden_layers": 4, "layer_types": ["conv", "conv", "full_attention", "conv"], "conv_L_cache": 3,
            "max_position_embeddings": 1024, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
            "num_dense_layers": 1, "use_expert_bias": True, "norm_topk_prob": True,
        },
        "tokenizer": "llama-bpe",
        "special": {"bos_token": "<|startoftext|>", "eos_token": "<|im_end|>"},
    },
    "olmo3": {
        "config": {
            "num_hidden_layers": 4, "sliding_window": 32, "tie_word_embeddings": False,
            "rope_parameters": {
                "full_attention": YARN, "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
        },
        "tokenizer": "dbrx",
        "special": END,
    },
    "smollm3": {
        "config": {"num_hidden_layers": 4, "tie_word_embeddings": True, "pad_token_id": 0}, "tokenizer": "llama-bpe",
        "special": {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"},
    },
    "cohere": {
        "config": {"logit_scale": 0.5, "bos_token_id": None, "pad_token_id": 0}, "tokenizer": "starcoder",
        "special": END,
    },
    "cohere2": {
        "config": {"num_hidden_layers": 4, "sliding_window": 32, "logit_scale": 0.5, "head_dim": 16},
        "tokenizer": "starcoder",
        "special": END,
    },
    "gemma": {"config": {"head_dim": 32}, "tokenizer": "gemma", "special": GEMMA},
    "seed_oss": {
        "config": {"head_dim": 32, "attention_bias": True, "tie_word_embeddings": False}, "tokenizer": "llama-bpe",
        "special": END,
    },
    "ernie4_5": {
        "config": {"head_dim": 32, "use_bias": False, "tie_word_embeddings": True}, "tokenizer": "sentencepiece",
        "special": BOS,
    },
    "olmoe": {
        "config": {**MOE, "num_key_value_heads": 4, "norm_topk_prob": False, "tie_word_embeddings": False},
        "tokenizer": "dbrx",
        "special": END,
    },
    "gpt2": {"size": GPT2, "config": {"bos_token_id": None}, "tokenizer": "gpt-2", "special": END},
    "starcoder2": {"config": {"sliding_window": None, "bos_token_id": None}, "tokenizer": "starcoder", "special": END},
}  # fmt: skip
"""Name -> settings of the config beyond SIZE, the kind of the tokenizer, the special tokens, Transformers' model type
if it is not the name, and sizes that replace SIZE."""
FAMILIES |= families_ssm.FAMILIES
FAMILIES |= families_moe.FAMILIES
FAMILIES |= families_old.FAMILIES
FAMILIES |= families_ds.FAMILIES
FAMILIES |= families_g4.FAMILIES


def make(family: str, folder: Path, **config: Any) -> Path:
    """Write a family's model to a folder; `config` overrides its settings. The same arguments give the same bytes."""
    entry = FAMILIES[family]
    folder.mkdir(parents=True, exist_ok=True)
    arguments = {"text": TEXT.read_text(), "kind": entry["tokenizer"], "size": SIZE["vocab_size"] - PADDING}
    special = peer("transformers").run(train_tokenizer, folder=str(folder), special=entry["special"], **arguments)
    if entry["tokenizer"] in ("sentencepiece", "gemma"):  # Gemma 4 has no tokenizer.model
        (folder / "tokenizer.model").write_bytes(sentencepiece_model(folder, entry["tokenizer"] == "sentencepiece"))
    settings = {**entry.get("size", SIZE), **entry["config"], **special, **config}
    if "text" in entry:
        settings["text_config"] = {**entry["text"], **special}
    model_type = entry.get("model_type", family)
    peer("transformers").run(save_model, folder=str(folder), family=model_type, settings=settings)
    if "respelling" in entry:
        entry["respelling"].apply(folder)
    return folder


def reference(folder: Path) -> Path:
    """The folder that Transformers runs: that of a model, or what it was respelled from."""
    other = families_old.reference(folder)
    return other if other.exists() else folder


def sentencepiece_model(folder: Path, dummy_prefix: bool) -> bytes:
    """The same tokenizer as SentencePiece's ModelProto: a merge's rank, negative, is its piece's score."""
    state = json.loads((folder / "tokenizer.json").read_text())
    vocab = sorted(state["model"]["vocab"], key=state["model"]["vocab"].__getitem__)
    ranks: dict[str, int] = {}
    for rank, (left, right) in enumerate(state["model"]["merges"]):
        ranks.setdefault(left + right, rank)
    control = {token["content"] for token in state["added_tokens"]}
    model = b""
    for index, piece in enumerate(vocab):
        kind = 2 if piece == "<unk>" else 3 if piece in control else 6 if piece.startswith("<0x") else 1
        score = 0.0 if kind != 1 else -float(ranks.get(piece, len(ranks) + index))
        body = field(1, piece.encode()) + b"\x15" + struct.pack("<f", score) + (b"\x18" + bytes([kind])) * (kind != 1)
        model += field(1, body)
    trainer = b"\x18\x02" + number(35, 1)  # BPE, with bytes for unknown letters
    for key, token in ((40, "<unk>"), (41, "<s>"), (42, "</s>"), (41, "<bos>"), (42, "<eos>"), (43, "<pad>")):
        trainer += number(key, vocab.index(token)) if token in vocab else b""
    normalizer = field(1, b"identity") + number(3, dummy_prefix) + number(4, 0) + number(5, 1)
    return model + field(2, trainer) + field(3, normalizer)


def field(key: int, data: bytes) -> bytes:
    """A field of bytes in protobuf."""
    return varint(key << 3 | 2) + varint(len(data)) + data


def number(key: int, value: int) -> bytes:
    """A field with a number in protobuf."""
    return varint(key << 3) + varint(int(value))


def varint(value: int) -> bytes:
    """A number in protobuf: seven bits a byte."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def save_model(folder: str, family: str, settings: dict[str, Any]) -> None:
    """Runs in the peer: saves a model of seeded weights, large enough for its tokens to differ in probability."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    states = ("e_score_correction_bias", "layer_scalar")
    scales = ("layer_scalar", "router.scale", "per_expert_scale")
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **settings)
    is_text = "vision_config" not in settings and type(config) in AutoModelForCausalLM._model_mapping
    kind = AutoModelForCausalLM if is_text else AutoModelForImageTextToText
    model = kind.from_config(config, dtype=torch.float32)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        biases = [(name, buffer) for name, buffer in model.named_buffers() if name.endswith(states)]
        for name, parameter in sorted([*model.named_parameters(), *biases]):
            around_one = ("norm" in name or ".ln_" in name) and family not in ("gemma", "gemma2", "gemma3_text")
            center = 1.0 if around_one or name.endswith(scales) else 0.0
            if family.startswith("gemma4") and "self_attn.q_norm" in name:
                center = parameter.shape[-1] ** -0.5  # which scales the scores: nothing else does
            scale = 0.2 if parameter.ndim == 1 else parameter.shape[-1] ** -0.5
            parameter.copy_(center + scale * torch.randn(parameter.shape, generator=generator))
    model.generation_config.do_sample = False
    model.save_pretrained(folder)


def train_tokenizer(folder: str, kind: str, text: str, size: int, special: dict[str, str]) -> dict[str, int]:
    """Runs in the peer: trains and saves a tokenizer; returns the ids of its special tokens, by their config keys."""
    import json
    from pathlib import Path

    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from tokenizers.trainers import BpeTrainer

    contractions = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    spaces = r"\s*[\r\n]+|\s+(?!\S)|\s+"
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    words = contractions + r"|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|" + spaces
    cased = "|".join(
        rf"[^\r\n\p{{L}}\p{{N}}]?{word}{contractions}?" for word in (f"{upper}*{lower}+", f"{upper}+{lower}*")
    )
    splits = {  # regexes of byte-level tokenizers; "" for ByteLevel's own
        "llama-bpe": words % r"\p{N}{1,3}", "glm4": words % r"\p{N}{1,3}", "dbrx": words % r"\p{N}{1,3}",
        "qwen2": words % r"\p{N}", "gpt-4o": cased + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + spaces,
        "starcoder": "", "gpt-2": "", "deepseek": r"\p{N}{1,3}",
    }  # fmt: skip
    byte_level = kind in splits
    tokens = list(dict.fromkeys(special.values()))
    if byte_level:
        tokens += ["<|im_start|>"] if kind == "qwen2" else []
        tokenizer = Tokenizer(models.BPE())
        steps = [pre_tokenizers.Split(Regex(splits[kind]), "isolated")] if splits[kind] else []
        steps += [pre_tokenizers.Digits(individual_digits=True)] if kind == "starcoder" else []
        if kind == "deepseek":
            cjk, latin = (
                "[一-龥\u3040-ゟ゠-ヿ]+",
                (
                    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
                    r"| ?[\p{P}\p{S}]+[\r\n]*|" + spaces
                ),
            )
            steps += [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in (cjk, latin)]
        last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not splits[kind])
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*steps, last]) if steps else last
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        tokenizer.train_from_iterator(
            [text], BpeTrainer(vocab_size=size - len(tokens), initial_alphabet=alphabet, show_progress=False)
        )
        tokenizer.decoder = decoders.ByteLevel()
        if kind == "qwen2":
            tokenizer.normalizer = normalizers.NFC()
        tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in tokens])
    else:
        tokens = ["<unk>", *(token for token in tokens if token != "<unk>")]
        if kind in ("gemma", "gemma4"):
            tokens = ["<pad>", "<eos>", "<bos>", "<unk>"]
        tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(
            prepend_scheme="first" if kind == "sentencepiece" else "never"
        )
        fallback = [f"<0x{byte:02X}>" for byte in range(256)]
        tokenizer.train_from_iterator(
            text.split("\n"), BpeTrainer(vocab_size=size, special_tokens=[*tokens, *fallback], show_progress=False)
        )
        space = normalizers.Replace(" ", "\u2581")
        back = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
        if kind in ("gemma", "gemma4"):
            tokenizer.normalizer, tokenizer.pre_tokenizer = space, pre_tokenizers.Split(" ", "merged_with_previous")
        else:
            tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), space])
            back.append(decoders.Strip(" ", 1, 0))
        tokenizer.decoder = decoders.Sequence(back)
    bos = special.get("bos_token")
    if bos is not None:
        number = tokenizer.token_to_id(bos)
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, number)]
        )
    elif byte_level:
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    state = json.loads(tokenizer.to_str())
    if kind == "sentencepiece":
        state["pre_tokenizer"] = None
    if kind in ("llama-bpe", "glm4"):
        state["model"]["ignore_merges"] = True
    state["added_tokens"] = [token for token in state["added_tokens"] if not token["content"].startswith("<0x")]
    Path(folder, "tokenizer.json").write_text(json.dumps(state, ensure_ascii=False, indent=1))
    classes = {
        "gemma": "GemmaTokenizer",
        "gemma4": "GemmaTokenizer",
        "sentencepiece": "LlamaTokenizer",
        "qwen2": "Qwen2Tokenizer",
    }
    template = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    config = {
        **special, "tokenizer_class": classes.get(kind, "PreTrainedTokenizerFast"), "add_bos_token": bos is not None,
        "add_eos_token": False, "clean_up_tokenization_spaces": False, "model_max_length": 512,
        "chat_template": template,
    }  # fmt: skip
    Path(folder, "tokenizer_config.json").write_text(json.dumps(config, ensure_ascii=False, indent=1))
    count = 1 + max(state["model"]["vocab"].values(), default=0)
    assert max(count, *(token["id"] + 1 for token in state["added_tokens"])) <= size, "more tokens than rows"
    return {f"{name}_id": tokenizer.token_to_id(token) for name, token in special.items() if name != "unk_token"}
