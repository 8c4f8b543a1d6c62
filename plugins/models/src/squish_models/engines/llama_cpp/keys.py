"""Keys that llama.cpp reads from a GGUF, their types, and the numbers that it refuses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from squish_core.api import Problem, Typed

from ...config.gguf_defaults import LoadedKeys

ONE_A_LAYER, FOUR, PATTERN, TEXTS = "u32 or one a layer", "four of i32", "u32 or an array", "array of str"
"""Kinds of keys besides scalar types: ONE_A_LAYER keys may have one number for all layers; scalar TEXTS are skipped."""
ONE_A_TRUNK = "one a layer of the model itself"
"""As many switches as there are layers without those that predict more tokens."""
NUMBERS, RATIOS = "f32 or one a layer", "one or more a layer"
"""Kinds of keys of DeepSeek 4: as many numbers as layers or one for all, and at least as many sizes as layers."""
ARRAY = "an array"
"""A kind of keys of which llama.cpp reads only arrays."""
SWITCHES = ("bool", "u32", "i32")
"""Element types that are read as integers."""
MOST_LAYERS, MOST_EXPERTS = 512, 1024
SCALINGS = ("none", "linear", "yarn", "longrope")
GENERAL: Mapping[str, str] = {
    "general.architecture": "str", "general.name": "str", "general.file_type": "u32", "general.alignment": "u32",
    "split.count": "u16", "general.tensor_extra.name": TEXTS,
}  # fmt: skip
COMMON: Mapping[str, str] = {
    "context_length": "u32", "embedding_length": "u32", "embedding_length_out": "u32", "attention.causal": "bool",
    "pooling_type": "u32", "classifier.pooling_type": "u32", "classifier.activation": "str", "block_count": "u32",
    "nextn_predict_layers": "u32", "expert_count": "u32", "expert_used_count": ONE_A_LAYER,
    "expert_group_count": "u32", "expert_group_used_count": "u32", "feed_forward_length": ONE_A_LAYER,
    "attention.head_count": ONE_A_LAYER, "attention.head_count_kv": ONE_A_LAYER, "rope.scaling.finetuned": "bool",
    "rope.scaling.original_context_length": "u32", "rope.freq_base": "f32", "rope.scaling.type": "str",
    "rope.scaling.factor": "f32", "rope.scaling.attn_factor": "f32", "rope.scaling.alpha": "f32",
    "attention.key_length": "u32", "attention.value_length": "u32", "rope.dimension_count": "u32",
    "attention.key_length_swa": "u32", "attention.value_length_swa": "u32", "rope.dimension_count_swa": "u32",
    "classifier.output_labels": TEXTS,
}  # fmt: skip
"""Keys of every architecture."""
RMS = {"attention.layer_norm_rms_epsilon": "f32"}
NORM = {"attention.layer_norm_epsilon": "f32"}
WINDOW = {"attention.sliding_window": "u32", "attention.sliding_window_pattern": PATTERN, "rope.freq_base_swa": "f32"}
DENSE = dict.fromkeys(("dense_2_feat_in", "dense_2_feat_out", "dense_3_feat_in", "dense_3_feat_out"), "u32")
EXPERTS = {"expert_feed_forward_length": ONE_A_LAYER}
GATING = {"expert_gating_func": "u32"}
SHARED = {"expert_shared_feed_forward_length": "u32"}
ROUTED = {
    "leading_dense_block_count": "u32", "expert_shared_count": "u32", "expert_weights_scale": "f32",
    "expert_weights_norm": "bool",
}  # fmt: skip
DELTA = {
    "ssm.conv_kernel": "u32", "ssm.inner_size": "u32", "ssm.state_size": "u32", "ssm.time_step_rank": "u32",
    "ssm.group_count": "u32", "full_attention_interval": "u32", "attention.recurrent_layers": ONE_A_LAYER,
}  # fmt: skip
SSM = dict.fromkeys(("ssm.conv_kernel", "ssm.inner_size", "ssm.state_size", "ssm.time_step_rank"), "u32")
SSM2 = {**SSM, "ssm.group_count": "u32"}
SCALES = {"logit_scale": "f32", "residual_scale": "f32", "embedding_scale": "f32", "attention.scale": "f32"}
NEMOTRON_H = {
    **SSM2, **RMS, **NORM, **EXPERTS, "expert_shared_feed_forward_length": "u32", "expert_shared_count": "u32",
    "expert_weights_norm": "bool", "expert_weights_scale": "f32", "moe_latent_size": "u32",
}  # fmt: skip
LATENT = {
    **RMS, **EXPERTS, "vocab_size": "u32", "leading_dense_block_count": "u32", "attention.q_lora_rank": "u32",
    "attention.kv_lora_rank": "u32", "attention.key_length_mla": "u32", "attention.value_length_mla": "u32",
    "expert_shared_count": "u32", "expert_weights_scale": "f32", "expert_weights_norm": "bool",
    "expert_gating_func": "u32", "rope.scaling.yarn_log_multiplier": "f32", "attention.temperature_scale": "f32",
    "attention.temperature_length": "u32",
}  # fmt: skip
UNREAD = ("vocab_size", "expert_weights_norm", "rope.scaling.yarn_log_multiplier")
"""Keys of DeepSeek that Kimi Linear has no use for."""
INDEXED = {
    **{name: kind for name, kind in LATENT.items() if not name.startswith("attention.temperature")},
    "rope.dimension_sections": FOUR, "attention.indexer.head_count": "u32", "attention.indexer.key_length": "u32",
    "attention.indexer.top_k": "u32",
}  # fmt: skip
ARCHITECTURES: Mapping[str, Mapping[str, str]] = {
    "llama": {"vocab_size": "u32", **RMS},
    "granite": {
        **RMS, "logit_scale": "f32", "residual_scale": "f32", "embedding_scale": "f32", "attention.scale": "f32",
        "expert_shared_feed_forward_length": "u32",
    },
    "qwen2": RMS,
    "qwen2vl": {"rope.dimension_sections": FOUR},
    "qwen3": RMS,
    "qwen3moe": {**RMS, **EXPERTS},
    "gemma2": {**RMS, **WINDOW, "attn_logit_softcapping": "f32", "final_logit_softcapping": "f32"},
    "gemma3": {**RMS, **WINDOW, "final_logit_softcapping": "f32"},
    "modern-bert": {**NORM, **WINDOW, "hidden_activation": "str", "decision.block_count": "u32"},
    "eurobert": RMS,
    "t5encoder": {**RMS, "attention.relative_buckets_count": "u32"},
    "gemma-embedding": {**RMS, **WINDOW, **DENSE},
    "phi3": {**RMS, "attention.sliding_window": "u32"},
    "olmo2": {**RMS, **WINDOW},
    "glm4": {**RMS, "rope.dimension_sections": FOUR},
    "starcoder2": NORM,
    "deepseek2": LATENT,
    "mistral4": LATENT,
    "deepseek32": INDEXED,
    "deepseek4": {
        **RMS, **EXPERTS, **GATING, "attention.q_lora_rank": "u32", "attention.sliding_window": "u32",
        "expert_shared_count": "u32", "expert_weights_scale": "f32", "expert_weights_norm": "bool",
        "swiglu_clamp_exp": NUMBERS, "swiglu_clamp_shexp": NUMBERS, "attention.indexer.head_count": "u32",
        "attention.indexer.key_length": "u32", "attention.indexer.top_k": "u32",
        "attention.output_group_count": "u32", "attention.output_lora_rank": "u32",
        "attention.compress_rope_freq_base": "f32", "hyper_connection.count": "u32",
        "hyper_connection.sinkhorn_iterations": "u32", "hyper_connection.epsilon": "f32", "hash_layer_count": "u32",
        "attention.compress_ratios": RATIOS,
    },
    "kimi-linear": {
        **{name: kind for name, kind in LATENT.items() if "temperature" not in name and name not in UNREAD},
        "ssm.conv_kernel": "u32", "kda.head_dim": "u32",
    },
    "glm-dsa": {**INDEXED, "attention.indexer.types": ONE_A_TRUNK},
    "gpt2": NORM,
    "gpt-oss": {**RMS, **EXPERTS, **WINDOW},
    "lfm2": {**RMS, "shortconv.l_cache": "u32", "decision.block_count": "u32", "attention.sliding_window": "u32"},
    "qwen3vl": {**RMS, "rope.dimension_sections": FOUR, "n_deepstack_layers": "u32"},
    "qwen2moe": {**RMS, **EXPERTS, "expert_shared_feed_forward_length": "u32"},
    "glm4moe": {
        **RMS, **EXPERTS, **GATING, "leading_dense_block_count": "u32", "expert_shared_count": "u32",
        "expert_weights_scale": "f32", "expert_weights_norm": "bool", "rope.dimension_sections": FOUR,
    },
    "minimax-m2": {**RMS, **EXPERTS, **GATING},
    "mistral3": {
        **RMS, "vocab_size": "u32", "attention.temperature_scale": "f32", "rope.scaling.yarn_beta_fast": "f32",
        "rope.scaling.yarn_beta_slow": "f32", "rope.scaling.yarn_log_multiplier": "f32",
    },
    "lfm2moe": {**RMS, **EXPERTS, **GATING, "shortconv.l_cache": "u32", "leading_dense_block_count": "u32"},
    "smollm3": {"vocab_size": "u32", **RMS},
    "seed_oss": RMS,
    "ernie4_5": {**RMS, "rope.dimension_sections": FOUR},
    "hunyuan-dense": {**RMS, "rope.dimension_sections": FOUR},
    "exaone4": {**RMS, **WINDOW},
    "cohere2": {**NORM, **WINDOW, "logit_scale": "f32", "vocab_size": "u32"},
    "command-r": {**NORM, "logit_scale": "f32"},
    "granitemoe": {
        **RMS, "logit_scale": "f32", "residual_scale": "f32", "embedding_scale": "f32", "attention.scale": "f32",
        "expert_shared_feed_forward_length": "u32",
    },
    "olmoe": RMS,
    "qwen35": {**RMS, **DELTA, "rope.dimension_sections": FOUR},
    "qwen35moe": {
        **RMS, **DELTA, **EXPERTS, "expert_shared_feed_forward_length": "u32", "rope.dimension_sections": FOUR,
    },
    "qwen3next": {**RMS, **DELTA, **EXPERTS, "expert_shared_feed_forward_length": "u32"},
    "gemma": RMS,
    "granitehybrid": {**RMS, **SSM2, **SCALES, "expert_shared_feed_forward_length": "u32"},
    "nemotron_h": NEMOTRON_H,
    "nemotron_h_moe": NEMOTRON_H,
    "falcon-h1": {**RMS, **SSM2},
    "mamba2": {**RMS, **SSM2},
    "mamba": {**RMS, **SSM, "ssm.dt_b_c_rms": "bool"},
    "jamba": {**RMS, **SSM},
    "llama4": {**RMS, **EXPERTS, **WINDOW, "vocab_size": "u32", "interleave_moe_layer_step": "u32"},
    "qwen3vlmoe": {**RMS, **EXPERTS, "rope.dimension_sections": FOUR, "n_deepstack_layers": "u32"},
    "arcee": {"vocab_size": "u32", **RMS},
    "dots1": {**RMS, **EXPERTS, **GATING, **ROUTED},
    "ernie4_5-moe": {
        **RMS, **EXPERTS, **SHARED, "leading_dense_block_count": "u32", "interleave_moe_layer_step": "u32",
        "rope.dimension_sections": FOUR,
    },
    "hunyuan-moe": {**RMS, **EXPERTS, **SHARED},
    "exaone-moe": {**RMS, **EXPERTS, **GATING, **ROUTED, **SHARED, **WINDOW, "vocab_size": "u32"},
    "afmoe": {**RMS, **EXPERTS, **GATING, **ROUTED, **WINDOW, "vocab_size": "u32"},
    "mellum": {**RMS, **EXPERTS, **WINDOW},
    "mimo2": {
        **RMS, **EXPERTS, **WINDOW, "attention.sliding_window_pattern": ARRAY, "attention.value_scale": "f32",
    },
    "step35": {
        **RMS, **EXPERTS, **GATING, **SHARED, **WINDOW, "attention.sliding_window_pattern": ARRAY,
        "expert_weights_scale": "f32", "expert_weights_norm": "bool", "swiglu_clamp_exp": NUMBERS,
        "swiglu_clamp_shexp": NUMBERS,
    },
    **dict.fromkeys(
        ("falcon", "phi2", "stablelm", "bloom", "nemotron", "starcoder", "codeshell", "orion"), NORM
    ),
    **dict.fromkeys(("internlm2", "exaone", "xverse"), RMS),
    "gptneox": {**NORM, "use_parallel_residual": "bool"},
    "mpt": {**NORM, "attention.clamp_kqv": "f32", "attention.max_alibi_bias": "f32"},
    "olmo": {**NORM, "attention.clamp_kqv": "f32"},
    "minicpm": {**RMS, "logit_scale": "f32", "residual_scale": "f32", "embedding_scale": "f32"},
    "gemma3n": {**RMS, **WINDOW},
    "gemma4": {
        **RMS, **EXPERTS, **WINDOW, "attention.sliding_window_pattern": ARRAY, "attention.shared_kv_layers": "u32",
        "embedding_length_per_layer_input": "u32", "final_logit_softcapping": "f32",
    },
    "bailingmoe2": {**RMS, **EXPERTS, **GATING, **ROUTED, **SHARED, "vocab_size": "u32"},
    "laguna": {**RMS, **EXPERTS, **GATING, **ROUTED, **SHARED, **WINDOW},
    "apertus": {"vocab_size": "u32", **RMS},
    **dict.fromkeys(("bert", "nomic-bert", "jina-bert-v2", "jina-bert-v3"), NORM),
    "nomic-bert-moe": {**NORM, "moe_every_n_layers": "u32"},
}  # fmt: skip
"""Keys of an architecture besides the common ones. llama.cpp knows more architectures than this table."""
PATTERNS = {
    "gemma2": 2, "gemma3": 6, "olmo2": 4, "gpt-oss": 2, "cohere2": 4, "llama4": 4, "exaone-moe": 4, "afmoe": 4,
    "mellum": 4, "gemma3n": 5, "gemma4": 0, "mimo2": 0, "step35": 0,
}  # fmt: skip
"""Architecture with windows -> n: every n-th layer has none; 0 if the file says which."""
PLAIN = {"apertus": ("xielu.alpha_n", "xielu.alpha_p", "xielu.beta", "xielu.eps")}
"""Architecture -> required keys without its name before them."""
TYPES, TYPED = "tokenizer.ggml.token_type_count", (
    "bert", "nomic-bert", "nomic-bert-moe", "jina-bert-v2", "jina-bert-v3",
)  # fmt: skip
"""Key with the number of types of tokens, and the architectures that llama.cpp does not load without it."""
EPSILONS = (*RMS, *NORM)
MIXED_LAYERS = (
    "lfm2", "lfm2moe", "granitehybrid", "nemotron_h", "nemotron_h_moe", "jamba", "mamba", "mamba2", "gemma4",
    "kimi-linear", "mimo2", "step35",
)  # fmt: skip
"""Architectures whose layers may have different numbers of heads."""
EQUAL_HEADS = ("gemma4",)
"""Architectures whose keys and values have heads of one size."""
OWN_HEADS = ("granite",)
"""Architectures that compute with the heads of each layer, but size the tensors by those of the first one."""
FULL_HEADS = ("falcon", "llama")
"""Architectures that rotate whole heads."""


def wrong_type(value: Typed, kind: str, layers: int | None) -> str | None:
    """Return what is wrong with the type of a key's value, or with the number of its elements.

    >>> wrong_type(Typed("u64", 4), "u32", None)
    'is u64, and llama.cpp reads u32'
    """
    stored = value.type
    is_array, items = stored.startswith("array:"), stored.removeprefix("array:")
    if kind == TEXTS:
        return f"has elements of {items} instead of str" if is_array and items != "str" else None
    if kind == RATIOS:
        if not is_array or items not in SWITCHES[1:]:
            return f"is {'an array of ' + items if is_array else stored}, and llama.cpp reads an array of i32"
        few = layers is not None and len(value.value) < layers
        return f"has {len(value.value)} elements, and llama.cpp reads at least {layers}" if few else None
    if is_array and kind == NUMBERS:
        few = layers is not None and len(value.value) != layers
        if items != "f32" or few:
            return f"has {len(value.value)} elements of {items}, and llama.cpp reads {layers} of f32"
        return None
    if is_array and kind in (ONE_A_LAYER, FOUR, PATTERN, ARRAY):
        count = {ONE_A_LAYER: layers, FOUR: 4}.get(kind)
        if count is not None and len(value.value) != count:
            return f"has {len(value.value)} elements, and llama.cpp reads {count}"
        if items not in SWITCHES:
            return f"has elements of {items}, and llama.cpp reads u32 or i32"
        return f"has more than {MOST_LAYERS} elements" if len(value.value) > MOST_LAYERS else None
    if kind == ARRAY:
        return f"is {stored}, and llama.cpp reads an array"
    scalar = {ONE_A_LAYER: "u32", PATTERN: "u32", FOUR: "i32", NUMBERS: "f32"}.get(kind, kind)
    if stored == scalar:
        return None
    return f"is {'an array of ' + items if is_array else stored}, and llama.cpp reads {scalar}"


class Hyperparameters:
    """The hyperparameters of a model as llama.cpp has them after reading the keys; `problems` are those it refuses.

    Parameters
    ----------
    architecture
        One of ARCHITECTURES.
    meta
        The keys of the file with their types.
    """

    def __init__(self, architecture: str, meta: Mapping[str, Any]) -> None:
        self.architecture, self.meta = architecture, meta
        self.keys = LoadedKeys(architecture, meta)

    def number(self, name: str) -> int:
        """Return a hyperparameter, that of the first layer if layers differ; 0 if llama.cpp finds or reads none."""
        return self.of_layer(name, 0)

    def of_layer(self, name: str, layer: int) -> int:
        """Return a hyperparameter of a layer."""
        if name not in COMMON and name not in ARCHITECTURES[self.architecture]:
            return 0
        value = self.keys[name]
        if isinstance(value, Sequence) and not isinstance(value, str):
            value = value[layer] if layer < len(value) else 0
        return int(value) & 0xFFFFFFFF if isinstance(value, int) else 0

    @cached_property
    def token_types(self) -> int:
        """The number of types of tokens."""
        stored = self.meta.get(TYPES)
        return int(stored.value) if isinstance(stored, Typed) and stored.type == "u32" else 0

    @cached_property
    def layers(self) -> int:
        """All layers, including those that predict further tokens."""
        return self.number("block_count")

    @cached_property
    def trunk(self) -> int:
        """Layers of the model itself."""
        return self.layers - self.number("nextn_predict_layers")

    def has_window(self, layer: int) -> bool:
        """Return whether a layer attends to a window."""
        pattern = PATTERNS.get(self.architecture)
        if pattern is None or not self.number("attention.sliding_window") or layer >= self.trunk:
            return False
        windows = self.keys["attention.sliding_window_pattern"]
        if isinstance(windows, Sequence):
            return layer < len(windows) and bool(windows[layer])
        pattern = self.number("attention.sliding_window_pattern")
        return pattern == 0 or layer % pattern < pattern - 1

    def head_size(self, name: str, layer: int = 0) -> int:
        """Return the size of "key" or "value" heads, or of the "rope" dimensions, in a layer."""
        key = {"key": "attention.key_length", "value": "attention.value_length", "rope": "rope.dimension_count"}[name]
        if not self.number("attention.head_count"):
            return 0
        window_key = f"{key}_swa"
        return self.number(window_key if self.has_window(layer) and self.keys.states(window_key) else key)

    def problems(self) -> Iterator[Problem]:
        """Yield keys that are missing or have another type; without any, the numbers that the loader refuses."""
        errors = [*self._type_problems(), *self._missing()]
        yield from errors if errors else self._number_problems()

    def _type_problems(self) -> Iterator[Problem]:
        layers = (
            self.layers if getattr(self.meta.get(f"{self.architecture}.block_count"), "type", "") == "u32" else None
        )
        kinds = {**COMMON, **ARCHITECTURES[self.architecture]}
        if not self.keys.states("rope.scaling.factor"):
            kinds["rope.scale_linear"] = "f32"
        if not self.number("attention.head_count"):
            for name in ("attention.key_length", "attention.value_length", "rope.dimension_count"):
                kinds.pop(name)
        for name, kind in kinds.items():
            count = self.trunk if kind == ONE_A_TRUNK and layers is not None else layers
            own = ONE_A_LAYER if kind == ONE_A_TRUNK else kind
            yield from key_problem(f"{self.architecture}.{name}", self.meta, own, count)

    def _missing(self) -> Iterator[Problem]:
        keys = {f"{self.architecture}.{name}" for name in (*COMMON, *ARCHITECTURES[self.architecture])}
        for name in self.keys.missing:
            if name in keys:
                yield problem(name, "is missing, and llama.cpp does not load without it")
        for name in PLAIN.get(self.architecture, ()):
            if name not in self.meta:
                yield problem(name, "is missing, and llama.cpp does not load without it")

    def _number_problems(self) -> Iterator[Problem]:
        def of(name: str, message: str) -> Problem:
            return problem(f"{self.architecture}.{name}", message)

        if not 1 <= self.layers <= MOST_LAYERS:
            yield of("block_count", f"is {self.layers}, and llama.cpp loads 1 to {MOST_LAYERS} layers")
            return
        if self.trunk < 0:
            yield of("nextn_predict_layers", f"is more than the {self.layers} layers")
        scaling = self.keys["rope.scaling.type"]
        if scaling not in SCALINGS:
            yield of("rope.scaling.type", f"is {str(scaling)[:40]!r}, which llama.cpp does not know")
        for name in EPSILONS:
            epsilon = self.keys[name] if name in ARCHITECTURES[self.architecture] else 0.0
            if not epsilon >= 0.0:
                yield of(name, f"is {epsilon}, and llama.cpp ends with less than 0")
        if self.architecture in TYPED and not self.token_types:
            yield problem(TYPES, "is missing or 0, and llama.cpp does not load without types of tokens")
        heads = {self.of_layer("attention.head_count", layer) for layer in range(self.layers)}
        if self.architecture in OWN_HEADS and len(heads) > 1:
            yield of("attention.head_count", "differs between layers, and llama.cpp ends")
        groups = {self.of_layer("attention.head_count_kv", layer) for layer in range(self.layers)}
        if self.architecture not in MIXED_LAYERS and len(groups) > 1:
            yield of("attention.head_count_kv", "differs between layers, and llama.cpp ends")
        for suffix in ("", "_swa") if self.architecture in EQUAL_HEADS else ():
            key, value = (self.number(f"attention.{name}_length{suffix}") for name in ("key", "value"))
            if key != value:
                yield of(f"attention.value_length{suffix}", f"is {value}, and llama.cpp wants that of keys, {key}")
        yield from self._expert_problems()
        if self.architecture in FULL_HEADS and self.number("attention.head_count"):
            rotated, head = self.number("rope.dimension_count"), self.number("attention.key_length")
            if rotated != head:
                yield of("rope.dimension_count", f"is {rotated}, and llama.cpp wants the size of a head, {head}")

    def _expert_problems(self) -> Iterator[Problem]:
        def of(name: str, message: str) -> Problem:
            return problem(f"{self.architecture}.{name}", message)

        experts, groups = self.number("expert_count"), self.number("expert_group_count")
        used = max((self.of_layer("expert_used_count", layer) for layer in range(self.layers)), default=0)
        if experts > MOST_EXPERTS:
            yield of("expert_count", f"is {experts}, and llama.cpp loads at most {MOST_EXPERTS} experts")
        if used > experts or (experts and not used):
            yield of("expert_used_count", f"is {used} of {experts} experts, and llama.cpp ends")
        if groups and groups >= experts:
            yield of("expert_group_count", f"is {groups} with {experts} experts, and llama.cpp ends")
        elif groups > 1:
            if experts % groups:
                yield of(
                    "expert_group_count", f"is {groups}, which does not divide {experts} experts, and llama.cpp ends"
                )
            if not 0 < self.number("expert_group_used_count") < groups:
                yield of("expert_group_used_count", f"is not less than the {groups} groups and more than 0")


def key_problem(name: str, meta: Mapping[str, Any], kind: str, layers: int | None = None) -> Iterator[Problem]:
    """Yield the problem of a key's type if the file has the key."""
    value = meta.get(name)
    message = wrong_type(value, kind, layers) if isinstance(value, Typed) else None
    if message is not None:
        yield problem(name, message)


def problem(where: str, message: str, severity: str = "error") -> Problem:
    """Return a problem of a key."""
    return Problem(code="engine-key", severity=severity, where=where, message=message)
