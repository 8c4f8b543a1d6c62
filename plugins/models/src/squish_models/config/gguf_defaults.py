"""llama.cpp's default for each GGUF key, and the keys that it requires; `check-model` and conversion use them.

Source: `load_hparams` in src/llama-model.cpp, `load_arch_hparams` in src/models/*.cpp, src/llama-hparams.h and
`llama_vocab::impl::load` in src/llama-vocab.cpp, as in the source package of xllamacpp 2026.10.11549.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum
from typing import Any, Final


class Absent(Enum):
    """Marks a key without a default: llama.cpp does not load a model without it."""

    REQUIRED = "required"


REQUIRED: Final = Absent.REQUIRED
Keys = Callable[[str], Any]
"""Looks up another key of the same file: its value or default; None without either."""
TYPE, LINEAR, FACTOR, OLD_FACTOR = "rope.scaling.type", "linear", "rope.scaling.factor", "rope.scale_linear"
SOFTMAX, SIGMOID = 1, 2
"""llama.cpp's numbers for gating functions."""


def _same(name: str) -> Callable[[Keys], Any]:
    return lambda keys: keys(name)


def _quotient(whole: Any, part: Any) -> int | None:
    return whole // part if type(whole) is int and type(part) is int and part > 0 else None


def _head_size(keys: Keys) -> int | None:
    heads = keys("attention.head_count")  # one number, or one for each layer
    return _quotient(keys("embedding_length"), heads[0] if isinstance(heads, Sequence) and len(heads) else heads)


def _attention_scale(keys: Keys) -> float | None:
    size = keys("attention.key_length")
    return float(size**-0.5) if type(size) is int and size > 0 else None


def _expert_size(keys: Keys) -> int | None:
    return _quotient(keys("feed_forward_length"), keys("expert_used_count"))


def _dense_size(keys: Keys) -> Any:
    """Return the size of the dense layers before the first layer with experts; without dense layers, any size."""
    return REQUIRED if keys("leading_dense_block_count") else keys("expert_feed_forward_length")


def _trunk(keys: Keys) -> int | None:
    """Return the number of layers without those that predict more tokens."""
    count, behind = keys("block_count"), keys("nextn_predict_layers")
    return count - behind if type(count) is int and type(behind) is int else None


def _query_rank(keys: Keys) -> Any:
    """Return the rank of queries; llama.cpp recognizes models without one by their number of layers."""
    layers, tokens = _trunk(keys), keys("vocab_size")
    return 0 if layers in (26, 27) or (layers == 48 and tokens == 128256) else REQUIRED


def _window_of_exaone(keys: Keys) -> int:
    """The window of the model with 64 layers; the others have none."""
    return 4096 if keys("block_count") == 64 else 0


def _all_but_every_fourth(keys: Keys) -> list[bool]:
    layers = keys("block_count")
    return [layer % 4 != 0 for layer in range(layers if type(layers) is int and layers < 1 << 12 else 0)]


def _gating(keys: Keys) -> int:
    return SIGMOID if _trunk(keys) in (47, 48) and keys("vocab_size") == 154880 else SOFTMAX


def _indexer_types(keys: Keys) -> list[bool] | None:
    """Return which layers of a GLM 5 have an indexer: all of them, but for those of GLM 5.2."""
    length, count = keys("context_length"), _trunk(keys)
    if type(length) is not int or count is None:
        return None
    return [length < 1 << 20 or layer < 2 or layer % 4 == 2 for layer in range(max(count, 0))]


RMS = {"attention.layer_norm_rms_epsilon": REQUIRED}
NORM = {"attention.layer_norm_epsilon": REQUIRED}
DENSE = dict.fromkeys(("dense_2_feat_in", "dense_2_feat_out", "dense_3_feat_in", "dense_3_feat_out"), 0)
"""Keys of the matrices behind the pooling."""
EXPERTS = {"expert_count": REQUIRED, "expert_used_count": REQUIRED}
COMMON: Mapping[str, Any] = {
    "context_length": REQUIRED,
    "embedding_length": REQUIRED,
    "block_count": REQUIRED,
    # llama.cpp defaults these two to 0, and then refuses the tensors of every model that has them
    "feed_forward_length": REQUIRED,
    "attention.head_count": REQUIRED,
    "attention.head_count_kv": _same("attention.head_count"),
    "attention.key_length": _head_size,
    "attention.value_length": _head_size,
    "attention.causal": True,
    "rope.dimension_count": _same("attention.key_length"),
    "rope.freq_base": 10000.0,
    TYPE: LINEAR,
    FACTOR: _same(OLD_FACTOR),
    OLD_FACTOR: 0.0,
    "rope.scaling.original_context_length": _same("context_length"),
    "rope.scaling.attn_factor": 1.0,
    "rope.scaling.finetuned": False,
    "expert_count": 0,
    "expert_used_count": 0,
    "expert_group_count": 0,
    "expert_group_used_count": 0,
    "pooling_type": None,
    "classifier.output_labels": None,
    "nextn_predict_layers": 0,
    "vocab_size": None,
}
"""Keys of every architecture, without its name. None: no default. A scaling factor of 0 means no scaling, like 1."""
DELTA = {
    **dict.fromkeys(
        ("ssm.conv_kernel", "ssm.inner_size", "ssm.state_size", "ssm.time_step_rank", "ssm.group_count"), REQUIRED
    ),
    "full_attention_interval": 4,
    "attention.recurrent_layers": None,
}
"""Keys of families with a gated delta rule."""
DELTA_EXPERTS = {
    **EXPERTS, "feed_forward_length": 0, "expert_feed_forward_length": _expert_size,
    "expert_shared_feed_forward_length": _same("feed_forward_length"),
}  # fmt: skip
SSM = dict.fromkeys(("ssm.conv_kernel", "ssm.inner_size", "ssm.state_size", "ssm.time_step_rank"), REQUIRED)
"""Keys of families with layers of Mamba."""
SSM2 = {**SSM, "ssm.group_count": REQUIRED}
HEADLESS = {"feed_forward_length": 0, "attention.head_count": 0}
"""Keys of families without attention."""
NEMOTRON_H = {
    **SSM2, **NORM, "attention.layer_norm_rms_epsilon": _same("attention.layer_norm_epsilon"),
    "expert_feed_forward_length": 0, "expert_shared_feed_forward_length": 0, "expert_shared_count": 0,
    "expert_weights_norm": False, "expert_weights_scale": 1.0, "moe_latent_size": 0,
}  # fmt: skip
LATENT = {
    **RMS, **EXPERTS, "feed_forward_length": _dense_size, "leading_dense_block_count": 0,
    "expert_feed_forward_length": REQUIRED, "expert_shared_count": REQUIRED, "expert_weights_scale": 1.0,
    "expert_weights_norm": False, "expert_gating_func": _gating, "attention.q_lora_rank": _query_rank,
    "attention.kv_lora_rank": REQUIRED, "attention.key_length_mla": 0, "attention.value_length_mla": 0,
    "rope.scaling.yarn_log_multiplier": 0.0, "attention.temperature_scale": 0.0, "attention.temperature_length": 0,
    "rope.dimension_count": REQUIRED,  # llama.cpp rotates the whole key, then finds no rows without rotation
}  # fmt: skip
"""Keys of families with latent attention."""
INDEXED = {
    **LATENT, "attention.q_lora_rank": REQUIRED, "expert_gating_func": REQUIRED, "rope.dimension_sections": None,
    "attention.indexer.head_count": REQUIRED, "attention.indexer.key_length": REQUIRED,
    "attention.indexer.top_k": REQUIRED,
}  # fmt: skip
ARCHITECTURES: Mapping[str, Mapping[str, Any]] = {
    "llama": RMS,
    "granite": {
        **RMS, "logit_scale": REQUIRED, "residual_scale": 1.0, "embedding_scale": 1.0,
        "attention.scale": _attention_scale, "rope.scaling.finetuned": True, **dict.fromkeys(SSM2),
        "expert_shared_feed_forward_length": None,
    },
    "qwen2": RMS,
    "qwen2vl": {**RMS, "rope.dimension_sections": REQUIRED},
    "qwen3": RMS,
    "qwen3moe": {**RMS, **EXPERTS, "feed_forward_length": 0, "expert_feed_forward_length": _expert_size},
    "gemma2": {
        **RMS, "attention.sliding_window": 4096, "attention.sliding_window_pattern": 2,
        "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "rope.freq_base_swa": _same("rope.freq_base"),
    },
    "gemma3": {
        **RMS, "attention.sliding_window": 0, "attention.sliding_window_pattern": 6, "rope.freq_base_swa": 10000.0,
        "final_logit_softcapping": 0.0,
    },
    "gemma-embedding": {
        **RMS, "attention.sliding_window": REQUIRED, "attention.sliding_window_pattern": 6,
        "rope.freq_base_swa": 10000.0, **DENSE,
    },
    "phi3": {**RMS, "attention.sliding_window": 0},
    "olmo2": {
        **RMS, "attention.sliding_window": 0, "attention.sliding_window_pattern": 4,
        "rope.freq_base_swa": _same("rope.freq_base"),
    },
    "glm4": {**RMS, "rope.dimension_sections": None},
    "starcoder2": NORM,
    "deepseek2": LATENT,
    "mistral4": LATENT,
    "deepseek32": INDEXED,
    "kimi-linear": {
        **{name: default for name, default in LATENT.items() if not name.startswith("attention.temp")},
        **dict.fromkeys(
            (
                "attention.key_length_mla", "attention.value_length_mla", "ssm.conv_kernel", "kda.head_dim",
                "expert_gating_func",
            ),
            REQUIRED,
        ),
        "attention.q_lora_rank": 0, "expert_weights_scale": 0.0, "expert_weights_norm": None,
        "rope.scaling.yarn_log_multiplier": None,
    },
    "deepseek4": {
        **RMS, **EXPERTS, "feed_forward_length": 0, "swiglu_clamp_shexp": _same("swiglu_clamp_exp"),
        "embedding_length_out": None,
        **dict.fromkeys((
            "attention.q_lora_rank", "attention.sliding_window", "expert_feed_forward_length", "expert_shared_count",
            "expert_weights_scale", "expert_weights_norm", "swiglu_clamp_exp", "attention.indexer.head_count",
            "attention.indexer.key_length", "attention.indexer.top_k", "attention.output_group_count",
            "attention.output_lora_rank", "attention.compress_rope_freq_base", "hyper_connection.count",
            "hyper_connection.sinkhorn_iterations", "hyper_connection.epsilon", "hash_layer_count",
            "attention.compress_ratios", "expert_gating_func",
        ), REQUIRED),
    },
    "glm-dsa": {**INDEXED, "expert_gating_func": SIGMOID, "attention.indexer.types": _indexer_types},
    "gpt2": NORM,
    "gpt-oss": {
        **RMS, **EXPERTS, "feed_forward_length": _same("expert_feed_forward_length"),
        "expert_feed_forward_length": REQUIRED, "attention.sliding_window": REQUIRED,
        "attention.sliding_window_pattern": 2, "rope.freq_base_swa": _same("rope.freq_base"),
    },
    "lfm2": {**RMS, "shortconv.l_cache": REQUIRED, "attention.sliding_window": 0, "decision.block_count": 0},
    "qwen3vl": {**RMS, "rope.dimension_sections": REQUIRED, "n_deepstack_layers": 0},
    "qwen2moe": {
        **RMS, **EXPERTS, "feed_forward_length": 0, "expert_feed_forward_length": _expert_size,
        "expert_shared_feed_forward_length": _same("feed_forward_length"),
    },
    "glm4moe": {
        **RMS, **EXPERTS, "leading_dense_block_count": 0, "expert_feed_forward_length": REQUIRED,
        "expert_shared_count": REQUIRED, "expert_weights_scale": 1.0, "expert_weights_norm": False,
        "expert_gating_func": SIGMOID, "rope.dimension_sections": None,
    },
    "minimax-m2": {**RMS, **EXPERTS, "expert_feed_forward_length": REQUIRED, "expert_gating_func": None},
    "mistral3": {
        **RMS, "attention.temperature_scale": 0.0, "rope.scaling.yarn_log_multiplier": 0.0, "vocab_size": None,
    },
    "lfm2moe": {
        **RMS, **EXPERTS, "shortconv.l_cache": REQUIRED, "leading_dense_block_count": REQUIRED,
        "expert_feed_forward_length": REQUIRED, "expert_gating_func": REQUIRED,
    },
    "smollm3": RMS,
    "seed_oss": RMS,
    "ernie4_5": {**RMS, "rope.dimension_sections": None},
    "hunyuan-dense": {**RMS, "rope.dimension_sections": None, "rope.scaling.alpha": 0.0},
    "exaone4": {
        **RMS, "attention.sliding_window": _window_of_exaone, "attention.sliding_window_pattern": 4,
        "rope.freq_base_swa": _same("rope.freq_base"),
    },
    "cohere2": {
        **NORM, "attention.sliding_window": REQUIRED, "attention.sliding_window_pattern": 4, "logit_scale": REQUIRED,
        "rope.freq_base_swa": _same("rope.freq_base"),
    },
    "command-r": {**NORM, "logit_scale": 0.0},
    "granitemoe": {
        **RMS, "logit_scale": REQUIRED, "residual_scale": 1.0, "embedding_scale": 1.0,
        "attention.scale": _attention_scale,
    },
    "olmoe": {**RMS, **EXPERTS},
    "qwen35": {**RMS, **DELTA, "rope.dimension_sections": REQUIRED},
    "qwen35moe": {**RMS, **DELTA, **DELTA_EXPERTS, "rope.dimension_sections": REQUIRED},
    "qwen3next": {**RMS, **DELTA, **DELTA_EXPERTS},
    "gemma": RMS,
    "granitehybrid": {
        **RMS, **SSM2, "logit_scale": 0.0, "residual_scale": 1.0, "embedding_scale": 1.0,
        "attention.scale": _attention_scale, "rope.scaling.finetuned": True, "expert_shared_feed_forward_length": 0,
    },
    "nemotron_h": NEMOTRON_H,
    "nemotron_h_moe": NEMOTRON_H,
    "falcon-h1": {**RMS, **SSM2},
    "mamba2": {**RMS, **SSM2, **HEADLESS},
    "mamba": {**RMS, **SSM, **HEADLESS, "ssm.dt_b_c_rms": False},
    "jamba": {**RMS, **SSM},
    "llama4": {
        **RMS, **EXPERTS, "expert_feed_forward_length": REQUIRED, "interleave_moe_layer_step": REQUIRED,
        "attention.sliding_window": 8192, "attention.sliding_window_pattern": 4,
        "rope.freq_base_swa": _same("rope.freq_base"),
    },
    "qwen3vlmoe": {
        **RMS, **EXPERTS, "feed_forward_length": 0, "expert_feed_forward_length": _expert_size,
        "rope.dimension_sections": REQUIRED, "n_deepstack_layers": 0,
    },
    "arcee": RMS,
    "dots1": {
        **RMS, **EXPERTS, "leading_dense_block_count": 0, "expert_feed_forward_length": REQUIRED,
        "expert_shared_count": REQUIRED, "expert_weights_scale": 0.0, "expert_weights_norm": False,
        "expert_gating_func": REQUIRED,
    },
    "ernie4_5-moe": {
        **RMS, **EXPERTS, "leading_dense_block_count": 0, "expert_feed_forward_length": REQUIRED,
        "expert_shared_feed_forward_length": 0, "expert_shared_count": 0, "interleave_moe_layer_step": REQUIRED,
        "rope.dimension_sections": None,
    },
    "hunyuan-moe": {
        **RMS, **EXPERTS, "expert_feed_forward_length": REQUIRED,
        "expert_shared_feed_forward_length": _same("feed_forward_length"), "rope.scaling.alpha": 0.0,
    },
    "exaone-moe": {
        **RMS, **EXPERTS, "leading_dense_block_count": 0, "expert_feed_forward_length": REQUIRED,
        "expert_shared_count": 0, "expert_shared_feed_forward_length": _same("expert_feed_forward_length"),
        "expert_weights_scale": 0.0, "expert_weights_norm": False, "expert_gating_func": REQUIRED,
        "attention.sliding_window": REQUIRED, "attention.sliding_window_pattern": 4,
        "rope.freq_base_swa": _same("rope.freq_base"),
    },
    "afmoe": {
        **RMS, **EXPERTS, "leading_dense_block_count": 0, "expert_feed_forward_length": REQUIRED,
        "expert_shared_count": REQUIRED, "expert_weights_scale": 0.0, "expert_weights_norm": False,
        "expert_gating_func": SIGMOID, "attention.sliding_window": REQUIRED, "attention.sliding_window_pattern": 4,
        "rope.freq_base_swa": _same("rope.freq_base"),
    },
    "apertus": RMS,
    "modern-bert": {
        **NORM, "attention.sliding_window": 0, "attention.sliding_window_pattern": 3, "rope.freq_base_swa": 10000.0,
        "hidden_activation": "gelu", "classifier.pooling_type": 1, "classifier.activation": "gelu",
        "classifier.output_labels": None, "attention.layer_norm_rms_epsilon": None,  # which it does not read
        "decision.block_count": 0,
    },
    "eurobert": RMS,
    "t5encoder": {**RMS, "attention.relative_buckets_count": REQUIRED, "attention.layer_norm_epsilon": None},
    **dict.fromkeys(("bert", "nomic-bert", "jina-bert-v2", "jina-bert-v3"), NORM),
    "nomic-bert-moe": {**NORM, **EXPERTS, "moe_every_n_layers": 0},
    "laguna": {
        **RMS, **EXPERTS, "leading_dense_block_count": REQUIRED, "expert_feed_forward_length": REQUIRED,
        "expert_shared_feed_forward_length": _same("expert_feed_forward_length"), "expert_shared_count": 1,
        "expert_weights_scale": 0.0, "expert_weights_norm": False, "expert_gating_func": SIGMOID,
        "attention.sliding_window": 0, "attention.sliding_window_pattern": _all_but_every_fourth,
        "rope.freq_base_swa": _same("rope.freq_base"), "rope.dimension_count_swa": _same("rope.dimension_count"),
    },
    "bailingmoe2": {
        **RMS, **EXPERTS, "leading_dense_block_count": 0, "expert_feed_forward_length": REQUIRED,
        "expert_shared_feed_forward_length": _same("expert_feed_forward_length"), "expert_shared_count": REQUIRED,
        "expert_weights_scale": 0.0, "expert_weights_norm": False, "expert_gating_func": REQUIRED,
    },
    "mimo2": {
        **RMS, **EXPERTS, "expert_feed_forward_length": REQUIRED, "attention.sliding_window": REQUIRED,
        "attention.sliding_window_pattern": REQUIRED, "rope.freq_base_swa": 10000.0, "attention.value_scale": None,
    },
    "step35": {
        **RMS, **EXPERTS, "expert_feed_forward_length": REQUIRED, "attention.sliding_window": REQUIRED,
        "attention.sliding_window_pattern": REQUIRED, "rope.freq_base_swa": 10000.0,
        "rope.dimension_count_swa": _same("rope.dimension_count"), "expert_gating_func": SIGMOID,
        "expert_shared_feed_forward_length": 0, "expert_weights_scale": 0.0, "expert_weights_norm": False,
        "leading_dense_block_count": 0, "moe_every_n_layers": 1, "swiglu_clamp_exp": None, "swiglu_clamp_shexp": None,
    },
    "mellum": {
        **RMS, **EXPERTS, "feed_forward_length": 0, "expert_feed_forward_length": _expert_size,
        "attention.sliding_window": 0, "attention.sliding_window_pattern": 4,
        "rope.freq_base_swa": _same("rope.freq_base"),
    },
    **dict.fromkeys(
        ("falcon", "phi2", "bloom", "nemotron", "starcoder", "codeshell", "orion"), NORM
    ),
    **dict.fromkeys(("internlm2", "exaone", "xverse"), RMS),
    "gptneox": {**NORM, "use_parallel_residual": REQUIRED},
    "stablelm": {**NORM, "use_parallel_residual": None},  # it follows the norms of the MLPs instead
    "mpt": {**NORM, "attention.clamp_kqv": 0.0, "attention.max_alibi_bias": 0.0},
    "olmo": {**NORM, "attention.clamp_kqv": 0.0},
    "minicpm": {
        **RMS, "embedding_scale": 12.0, "residual_scale": lambda keys: 1.4 / max(keys("block_count") or 1, 1) ** 0.5,
        "logit_scale": lambda keys: 256.0 / (keys("embedding_length") or 256), "rope.scaling.finetuned": True,
    },
    "gemma4": {
        **RMS, "attention.sliding_window": REQUIRED, "attention.sliding_window_pattern": REQUIRED,
        "attention.shared_kv_layers": 0, "embedding_length_per_layer_input": REQUIRED,
        "attention.key_length_swa": REQUIRED, "attention.value_length_swa": REQUIRED,
        "rope.dimension_count_swa": _same("rope.dimension_count"), "rope.freq_base_swa": 10000.0,
        "expert_feed_forward_length": 0, "final_logit_softcapping": 0.0,
    },
    "gemma3n": {
        **RMS, "attention.sliding_window": REQUIRED, "attention.sliding_window_pattern": 5,
        "rope.freq_base_swa": 10000.0,
        **dict.fromkeys(  # which llama.cpp has in its source
            (
                "attention.shared_kv_layers", "embedding_length_per_layer_input", "altup.active_idx",
                "altup.num_inputs", "activation_sparsity_scale", "final_logit_softcapping",
            )
        ),
    },
}  # fmt: skip
"""Keys of each architecture, which override those of `COMMON`."""
TOKENIZERS: Mapping[str, Mapping[str, Any]] = {
    "gpt2": {"tokens": REQUIRED, "merges": REQUIRED, "pre": "default", "bos_token_id": 11, "eos_token_id": 11},
    "llama": {
        "tokens": REQUIRED, "bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0, "add_bos_token": True,
        "add_eos_token": False, "add_space_prefix": True,
    },
    "gemma4": {"tokens": REQUIRED, "merges": REQUIRED},
    "bert": {
        "tokens": REQUIRED, "bos_token_id": 101, "unknown_token_id": 100, "seperator_token_id": 102,
        "padding_token_id": 0, "mask_token_id": 103, "add_bos_token": True, "add_sep_token": True,
        "normalizer.lowercase": True,
    },
    "t5": {
        "tokens": REQUIRED, "eos_token_id": 1, "unknown_token_id": 2, "padding_token_id": 0, "add_bos_token": False,
        "add_eos_token": True, "add_space_prefix": False, "remove_extra_whitespaces": False,
    },
}  # fmt: skip
"""`tokenizer.ggml.model` -> keys after `tokenizer.ggml.`. An id outside the vocabulary counts as absent."""


EFFECTIVE = (
    "attention.causal", "attention.sliding_window", "attention.sliding_window_pattern", "rope.scaling.finetuned",
    "rope.freq_base_swa", "attention.temperature_scale", "decision.block_count",
)  # fmt: skip
"""Keys that change the result, but are settings of few families."""


class LoadedKeys:
    """The keys of an architecture after llama.cpp has filled in its defaults.

    Parameters
    ----------
    architecture
        The value of `general.architecture`.
    meta
        The keys of the file, with bare or `Typed` values.

    Examples
    --------
    >>> keys = LoadedKeys("gemma2", {"gemma2.context_length": 8192, "gemma2.rope.scale_linear": 4.0})
    >>> keys["attention.sliding_window"], keys["rope.scaling.factor"], keys["context_length"]
    (4096, 4.0, 8192)
    >>> keys.missing[:2]
    ('gemma2.embedding_length', 'gemma2.block_count')
    """

    def __init__(self, architecture: str, meta: Mapping[str, Any]) -> None:
        self.architecture, self._meta = architecture, meta
        self._defaults = {**COMMON, **ARCHITECTURES.get(architecture, {})}

    def __getitem__(self, name: str) -> Any:
        """Return a key's value, its default or REQUIRED; None without any of them. Names omit the architecture."""
        if self.states(name):
            stored = self._meta[f"{self.architecture}.{name}"]
            return getattr(stored, "value", stored)
        default = self._defaults.get(name)
        return default(self._value_or_none) if callable(default) else default

    def _value_or_none(self, name: str) -> Any:
        value = self[name]
        return None if value is REQUIRED else value

    def states(self, name: str) -> bool:
        """Return whether the file has the key."""
        return f"{self.architecture}.{name}" in self._meta

    def is_disabled(self, name: str) -> bool:
        """Return whether a key is 0, and 0 means the same as its absence."""
        default = self._defaults.get(name)
        return type(default) in (int, float) and default == 0 and self[name] == 0

    def inexpressible(self, read: Collection[str]) -> tuple[str, ...]:
        """Return the keys not in `read` whose values no config.json can express."""
        names = [name for name in EFFECTIVE if name in self._defaults and name not in read and self.states(name)]
        return tuple(name for name in names if not self._is_default(name))

    def _is_default(self, name: str) -> bool:
        default = self._defaults[name]
        default, value = default(self._value_or_none) if callable(default) else default, self[name]
        if name.endswith("_pattern") and not isinstance(value, int):  # whether each layer has a window
            value, default = [*map(bool, value)], [layer % default < default - 1 for layer in range(len(value))]
        return bool(value == default)

    @property
    def missing(self) -> tuple[str, ...]:
        """The full names of the absent keys that llama.cpp requires."""
        return tuple(f"{self.architecture}.{name}" for name in self._defaults if self[name] is REQUIRED)
