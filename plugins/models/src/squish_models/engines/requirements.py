"""Tables: which formats, types, settings and tokenizers each engine reads. Sources: docs/models.md, and the engines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import field, frozen

from ..config.mlx_models import REQUIRED
from . import differences
from .differences import Difference

ANY = "*"
"""Stands for every family, codec or method."""
Fields = Mapping[str, tuple[str, ...]]
"""`model_type` -> settings; ANY applies to types without an entry."""


@frozen(kw_only=True)
class Reading:
    """How an engine reads one format: the names it expects, and what it supports.

    `codecs` are patterns of codec ids, `dtypes` types of dense tensors, `methods` the `quant_method` of checkpoints
    that declare one. `vectors`: tensors must have the type in the family's table. `experts`: family -> pattern of
    codec ids -> "error" if it refuses such experts, "cpu" if it does so on a CPU, "warning" if its results differ.
    """

    layout: str
    codecs: tuple[str, ...] = ("dense",)
    dtypes: tuple[str, ...] = ("f32", "f16", "bf16")
    methods: tuple[str, ...] = (ANY,)
    vectors: bool = False
    experts: Mapping[str, Mapping[str, str]] = field(factory=dict)


@frozen(kw_only=True)
class Engine:
    """What an engine needs.

    Attributes
    ----------
    id, title, formats
        Its id and name, and how it reads each format.
    keys, fields
        Keys of GGUF by architecture, and settings of config.json by `model_type`, beyond those of the family's table.
    defaults
        Values that it assumes for settings missing in config.json: `model_type` -> setting -> value.
    tokenizer_keys, pretokenizers
        `tokenizer.ggml.model` -> the keys that it requires; the supported values of `tokenizer.ggml.pre` (none: any).
    scalings, key_scalings
        Kinds of RoPE scaling that it knows, by `model_type` of a folder and by architecture of a GGUF (no entry: any).
    scaling_keys
        Kind of RoPE scaling -> settings that a folder must state for it.
    unscaled
        Kinds of RoPE scaling that it applies, by `model_type` of a folder; it ignores the others (no entry: any).
    unsupported
        Model types of known families that it refuses.
    differences
        Other settings with which it refuses a model or computes different results.
    ignores
        The layout whose ignored settings the families list, if it is this engine's.
    unigram
        Whether it reads SentencePiece scores in a GGUF as those of a unigram model.
    tokenizers
        Tokenizer files, one of which a folder must have. (Transformers and mlx-lm read tokenizer.model if a package for
        it is installed.)
    """

    id: str
    title: str
    formats: Mapping[str, Reading]
    keys: Fields = field(factory=dict)
    tokenizer_keys: Fields = field(factory=dict)
    pretokenizers: frozenset[str] = frozenset()
    fields: Fields = field(factory=dict)
    defaults: Mapping[str, Mapping[str, Any]] = field(factory=dict)
    scalings: Fields = field(factory=dict)
    key_scalings: Fields = field(factory=dict)
    scaling_keys: Fields = field(factory=dict)
    unscaled: Fields = field(factory=dict)
    differences: tuple[Difference, ...] = ()
    ignores: str = ""
    unigram: bool = False
    unsupported: tuple[str, ...] = ()
    tokenizers: tuple[str, ...] = ()


PRETOKENIZERS = frozenset((
    "a.x-4.0", "afmoe", "bailingmoe", "bailingmoe2", "bloom", "chameleon", "chatglm-bpe", "codeshell", "cohere2moe",
    "command-r", "dbrx", "deepseek-coder", "deepseek-llm", "deepseek-r1-qwen", "deepseek-v3", "default", "exaone",
    "exaone-moe", "exaone4", "f2llmv2", "falcon", "falcon-h1", "falcon3", "gemma4", "gigachat", "glm4", "glm5",
    "gpt-2", "gpt-4o", "gpt3-finnish", "granite-docling", "granite-embed-multi-311m", "granite-embed-multi-97m",
    "grok-2", "hunyuan", "hunyuan-dense", "hy_v4", "jais", "jais-2", "jina-de", "jina-es", "jina-v1-en",
    "jina-v2-code", "jina-v2-de", "jina-v2-es", "jina-v5-nano", "joyai-llm", "k2-horizon", "kanana2", "kimi-k2",
    "kormo", "laguna", "lfm2", "llada-moe", "llama-bpe", "llama-v3", "llama3", "llama4", "megrez", "mellum",
    "mellum2", "midm-2.0", "minerva-7b", "minicpm5", "minimax-m2", "mmbert", "modern-bert", "mpt", "olmo", "phi-2",
    "pixtral", "poro-chat", "qwen2", "qwen35", "refact", "roberta-bpe", "sarvam-moe", "seed-coder", "smaug-bpe",
    "smollm", "solar-open", "spark2_5", "stablelm2", "starcoder", "superbpe", "talkie", "tekken", "tiny_aya",
    "trillion", "ufakzeka", "viking", "whitespace", "youtu",
))  # fmt: skip
"""Values of `tokenizer.ggml.pre` that llama.cpp loads (src/llama-vocab.cpp of xllamacpp 2026.10.11549)."""
GGML = ("dense", "ggml.*")
MISTRAL_GGML = ("dense", *(f"ggml.q{kind}" for kind in ("4_0", "4_1", "5_0", "5_1", "8_0", "8_1", "?_k")))
MISTRAL_EXPERTS = {"affine": "cpu", **dict.fromkeys(("mx", "hqq", "float8", "uqff.f8q8"), "error")}
"""Codecs of experts: mistral.rs refuses to write UQFFs with them, or to read those that it wrote."""
HEAD_SIZES = ("attention.key_length", "attention.value_length")
HEADS = ("num_key_value_heads",)
SIZES = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "rms_norm_eps", "vocab_size",
)  # fmt: skip
MLX_ALL = ("model_type", *SIZES)
MLX_SIZES = (*HEADS, "max_position_embeddings", "head_dim", "tie_word_embeddings")
MISTRAL_REST = (*SIZES, "architectures", "max_position_embeddings", "rope_theta", *HEADS)
MISTRAL_ALL = (*MISTRAL_REST, "hidden_act")
LFM = ("hidden_size", "layer_types", "num_attention_heads", "num_hidden_layers", "vocab_size", *HEADS)
WINDOW = ("max_window_layers", "use_sliding_window")
ROUTED = (
    "moe_intermediate_size", "norm_topk_prob", "n_shared_experts", "n_routed_experts", "routed_scaling_factor",
    "num_experts_per_tok", "first_k_dense_replace",
)  # fmt: skip
EXPERTS = (
    "decoder_sparse_step", "mlp_only_layers", "norm_topk_prob", "moe_intermediate_size", "num_experts",
    "num_experts_per_tok",
)  # fmt: skip

MAMBA = (
    "model_type", "vocab_size", "hidden_size", "intermediate_size", "state_size", "num_hidden_layers", "conv_kernel",
    "use_bias", "use_conv_bias", "time_step_rank",
)  # fmt: skip
STATES: Fields = {
    "granitemoehybrid": (
        *MLX_ALL, *HEADS, "max_position_embeddings", "attention_bias", "embedding_multiplier", "attention_multiplier",
        "logits_scaling", "residual_multiplier", "layer_types",
    ),
    "nemotron_h": (
        *(name for name in MLX_ALL if name not in ("rms_norm_eps", "num_hidden_layers")), *HEADS,
        "max_position_embeddings", "attention_bias", "mamba_num_heads", "mamba_head_dim", "mamba_proj_bias",
        "ssm_state_size", "conv_kernel", "n_groups", "mlp_bias", "layer_norm_epsilon", "use_bias", "use_conv_bias",
    ),
    "falcon_h1": ("model_type",),
    **dict.fromkeys(("mamba", "falcon_mamba"), MAMBA),
    "mamba2": (
        *MAMBA, "num_heads", "head_dim", "layer_norm_epsilon", "n_groups", "tie_word_embeddings", "time_step_limit",
    ),
    "jamba": (
        *MLX_ALL, *HEADS, "attn_layer_offset", "attn_layer_period", "expert_layer_offset", "expert_layer_period",
        "mamba_d_conv", "mamba_d_state", "mamba_expand", "num_experts", "num_experts_per_tok",
        "max_position_embeddings",
    ),
}  # fmt: skip
"""Settings that mlx-lm requires of families with layers of Mamba."""
MLX_MIXTURE = ("num_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob")
TRANSFORMERS_SCALINGS = ("linear", "dynamic", "yarn", "longrope", "llama3", "proportional")
MLX_SCALINGS = (*TRANSFORMERS_SCALINGS, "deepseek_yarn", "mrope")
SCALING_KEYS: Fields = {
    **dict.fromkeys(("linear", "dynamic", "yarn"), ("factor",)),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"), "longrope": ("short_factor", "long_factor"),
}  # fmt: skip
"""What Transformers requires; mlx-lm does, too: it loads tokenizers with Transformers, which reads config.json."""

DEEPSEEK = {"q_lora_rank": 1536, "first_k_dense_replace": 0, "routed_scaling_factor": 1.0}


def _rope(theta: float) -> dict[str, Any]:
    """Return defaults of a class that does not read `rope_parameters`."""
    return {"rope_theta": theta, "rope_scaling": None}


LLAMA_CPP = Engine(
    id="llama.cpp",
    title="llama.cpp",
    formats={"gguf": Reading(layout="gguf", codecs=GGML, vectors=True)},
    tokenizer_keys={"gpt2": ("tokenizer.ggml.merges",), "llama": (), "gemma4": ("tokenizer.ggml.merges",)},
    pretokenizers=PRETOKENIZERS,
    differences=differences.LLAMA_CPP,
    ignores="gguf",
)
MLX = Engine(
    id="mlx",
    title="mlx-lm",
    formats={
        "mlx": Reading(layout="mlx", codecs=(ANY,)),
        "safetensors": Reading(layout="mlx"),
        "hf": Reading(
            layout="mlx",
            codecs=(ANY,),
            methods=("gptq", "awq", "compressed-tensors", "mxfp4", "mxfp8", "fp8", "modelopt", "modelopt_fp4"),
        ),
    },
    fields={
        ANY: MLX_ALL,
        **dict.fromkeys(("mixtral", "gemma3_text", "gemma4_text", "gemma3n"), ("model_type",)),
        "qwen2": (*MLX_ALL, *HEADS),
        "qwen3": (*MLX_ALL, *MLX_SIZES),
        "qwen3_moe": (*MLX_ALL, *MLX_SIZES, *EXPERTS, "rope_theta"),
        "gemma2": (*MLX_ALL, *HEADS, "head_dim"),
        **dict.fromkeys(("deepseek_v2", "deepseek_v3", "gpt_oss"), ("model_type",)),
        "lfm2": (
            "model_type",
            *LFM,
            "block_multiple_of",
            "block_ffn_dim_multiplier",
            "block_auto_adjust_ff_dim",
            "block_dim",
            "conv_L_cache",
            "conv_bias",
            "max_position_embeddings",
            "norm_eps",
        ),
        "starcoder2": tuple(name for name in (*MLX_ALL, *HEADS) if name != "rms_norm_eps"),
        "gpt2": (
            "model_type",
            "n_ctx",
            "n_embd",
            "n_head",
            "n_layer",
            "n_positions",
            "layer_norm_epsilon",
            "vocab_size",
        ),
        "glm4": (
            *MLX_ALL,
            *HEADS,
            "head_dim",
            "attention_bias",
            "partial_rotary_factor",
            "rope_theta",
        ),
        "granite": (
            *MLX_ALL,
            *HEADS,
            "max_position_embeddings",
            "attention_bias",
            "mlp_bias",
            "rope_theta",
            "logits_scaling",
            "attention_multiplier",
            "embedding_multiplier",
            "residual_multiplier",
        ),
        **dict.fromkeys(("cohere", "cohere2", "glm4_moe_lite"), ("model_type",)),
        **dict.fromkeys(("gemma", "seed_oss"), (*MLX_ALL, *HEADS, "head_dim")),
        "hunyuan_v1_dense": (*MLX_ALL, *HEADS),
        "ernie4_5": (*MLX_ALL, *MLX_SIZES, "rope_theta", "use_bias"),
        "exaone4": (
            *MLX_ALL,
            *MLX_SIZES,
            "rope_theta",
            "rope_scaling",
            "sliding_window",
            "sliding_window_pattern",
        ),
        "glm4_moe": (
            *MLX_ALL,
            *MLX_SIZES,
            *ROUTED,
            "n_group",
            "topk_group",
            "rope_theta",
            "rope_scaling",
            "use_qk_norm",
            "attention_bias",
            "partial_rotary_factor",
        ),
        "granitemoe": (
            *MLX_ALL,
            *HEADS,
            "max_position_embeddings",
            "attention_bias",
            "rope_theta",
            "logits_scaling",
            "attention_multiplier",
            "embedding_multiplier",
            "residual_multiplier",
            "num_local_experts",
            "num_experts_per_tok",
        ),
        "lfm2_moe": (
            "model_type",
            *LFM[:1],
            "intermediate_size",
            *LFM[2:],
            "max_position_embeddings",
            "norm_eps",
            "conv_bias",
            "conv_L_cache",
            "num_experts",
            "num_experts_per_tok",
            "norm_topk_prob",
            "moe_intermediate_size",
            "use_expert_bias",
            "num_dense_layers",
        ),
        "minimax_m2": (
            *MLX_ALL,
            *HEADS,
            "max_position_embeddings",
            "num_experts_per_tok",
            "num_local_experts",
            "shared_intermediate_size",
            "rope_theta",
            "rotary_dim",
        ),
        "olmo3": (*MLX_ALL, "max_position_embeddings", "sliding_window", "rope_theta"),
        "olmoe": (*MLX_ALL, "num_experts", "num_experts_per_tok"),
        "qwen2_moe": (
            *MLX_ALL,
            "num_experts",
            "num_experts_per_tok",
            "moe_intermediate_size",
            "shared_expert_intermediate_size",
        ),
        **STATES,
        "llama4": ("model_type",),
        "kimi_linear": (
            *MLX_ALL,
            *HEADS,
            *("head_dim", "rope_theta", "linear_attn_config", "model_max_length", "kv_lora_rank"),
            *("num_experts", "moe_intermediate_size"),
        ),
        "afmoe": ("model_type", "layer_types"),
        "apertus": (
            *MLX_ALL,
            *HEADS,
            *("max_position_embeddings", "rope_theta", "tie_word_embeddings"),
            *("mlp_bias", "attention_bias", "post_norm", "qk_norm"),
        ),
        "bailing_moe": (
            *MLX_ALL,
            *HEADS,
            *MLX_MIXTURE,
            "max_position_embeddings",
            "rope_theta",
            "num_shared_experts",
            "first_k_dense_replace",
            "use_qk_norm",
            "moe_router_enable_expert_bias",
        ),
        "dots1": (*MLX_ALL, *HEADS, *ROUTED, "max_position_embeddings", "rope_theta"),
        "ernie4_5_moe": (
            *MLX_ALL,
            *HEADS,
            *("max_position_embeddings", "rope_theta", "tie_word_embeddings"),
            *("use_bias", "moe_num_experts"),
        ),
        "exaone_moe": (
            *MLX_ALL,
            *HEADS,
            "moe_intermediate_size",
            "head_dim",
            "num_experts",
            "num_experts_per_tok",
            "num_shared_experts",
            "max_position_embeddings",
            "sliding_window",
            "layer_types",
            "is_moe_layer",
        ),
        "mimo_v2_flash": (
            "model_type",
            *(name for name in SIZES if name != "rms_norm_eps"),
            *HEADS,
            *(name for name in ROUTED if name != "first_k_dense_replace"),
            *("max_position_embeddings", "head_dim", "rope_theta"),
            *REQUIRED["mimo_v2_flash"],
        ),
        "step3p5": (
            "model_type",
            *(each for each in SIZES if each != "rms_norm_eps"),
            "num_attention_groups",
            "head_dim",
        ),
        "mellum": (*MLX_ALL, *MLX_SIZES, *MLX_MIXTURE, "sliding_window", "layer_types", "rope_parameters"),
        "solar_open": (*MLX_ALL, *MLX_SIZES, *ROUTED, "rope_theta", "partial_rotary_factor"),
    },
    defaults={
        "llama": {**_rope(10000.0), "tie_word_embeddings": True},
        "mistral": {**_rope(10000.0), "tie_word_embeddings": True},
        "mixtral": {**_rope(1000000.0), "tie_word_embeddings": False},
        "qwen2": {**_rope(1000000.0), "tie_word_embeddings": True},
        "phi3": {**_rope(10000.0), "tie_word_embeddings": False},
        "gemma2": {"rope_theta": 10000.0},
        "gemma3_text": {**_rope(1000000.0), "rope_local_base_freq": 10000.0, "sliding_window_pattern": 6},
        "olmo2": {**_rope(10000.0), "tie_word_embeddings": True},
        "deepseek_v2": {**_rope(10000.0), **DEEPSEEK, "n_group": 1},
        "deepseek_v3": {**_rope(10000.0), **DEEPSEEK, "n_group": 1},
        "gpt_oss": _rope(150000.0),
        "granite": {"rope_scaling": None, "tie_word_embeddings": True},
        "starcoder2": {"rope_theta": 100000.0, "tie_word_embeddings": True},
        **{kind: {**_rope(10000.0), "tie_word_embeddings": True} for kind in ("seed_oss", "smollm3", "olmoe")},
        "granitemoe": {"rope_scaling": None, "tie_word_embeddings": True},
        "ministral3": {"tie_word_embeddings": True},
        "hunyuan_v1_dense": {**_rope(10000.0), "tie_word_embeddings": False},
        "qwen2_moe": {**_rope(1000000.0), "tie_word_embeddings": False},
        "olmo3": {"rope_scaling": None, "tie_word_embeddings": False},
        "glm4_moe_lite": {**_rope(1000000.0), "tie_word_embeddings": False},
        "gemma": {"rope_theta": 10000.0},
        "cohere": {"rope_theta": 8000000.0},
        "cohere2": {"rope_theta": 50000.0},
        **{kind: {"tie_word_embeddings": True} for kind in ("granitemoehybrid", "mamba", "falcon_mamba", "jamba")},
        "nemotron_h": {"tie_word_embeddings": False},
        "bailing_moe": {"rope_scaling": None, "tie_word_embeddings": False},
        "dots1": {"rope_scaling": None, "tie_word_embeddings": False},
        "exaone_moe": {**_rope(1000000.0), "tie_word_embeddings": False},
        "afmoe": {**_rope(10000.0), "tie_word_embeddings": False},
    },
    scalings={
        **dict.fromkeys(
            (
                "llama",
                "mistral",
                "qwen2",
                "qwen2_vl",
                "qwen2_5_vl",
                "qwen3",
                "gemma3_text",
                "olmo2",
                "granite",
                "deepseek_v3",
            ),
            MLX_SCALINGS,
        ),
        "gpt_oss": tuple(kind for kind in MLX_SCALINGS if kind != "dynamic"),
    },
    scaling_keys=SCALING_KEYS,
    unscaled={
        **dict.fromkeys(("mixtral", "qwen3_moe", "glm4", "starcoder2", "lfm2", "gemma2"), ()),
        **dict.fromkeys(("deepseek_v2", "deepseek_v3"), ("yarn",)),
        "phi3": ("linear", "longrope", "su"),
    },
    unsupported=(
        "phi4mm",
        "phi4_multimodal",
        "deepseek_v4",
        "arcee",
        "hunyuan_v1_moe",
        "gemma3n_text",
        "gemma4_unified_text",
    ),
    differences=differences.MLX,
    ignores="mlx",
)
TRANSFORMERS = Engine(
    id="transformers",
    title="Transformers",
    formats={
        "safetensors": Reading(layout="hf", dtypes=("f32", "f16", "bf16", "f64")),
        "hf": Reading(layout="hf", codecs=(ANY,)),
    },
    fields={ANY: ("model_type",)},
    defaults={
        ANY: {"tie_word_embeddings": False},
        "gemma2": {"tie_word_embeddings": True},
        "gemma3_text": {"tie_word_embeddings": True},
        "gpt2": {"tie_word_embeddings": True},
        "starcoder2": {"tie_word_embeddings": True},
        **{
            kind: {"tie_word_embeddings": True}
            for kind in (
                "gemma",
                "cohere",
                "cohere2",
                "smollm3",
                "ernie4_5",
                "lfm2_moe",
                "gemma4_text",
                "gemma3n_text",
                "mamba",
                "falcon_mamba",
                "modernbert",
                "bert",
                "roberta",
                "xlm-roberta",
            )
        },
        "eurobert": {},
    },
    scalings={
        ANY: TRANSFORMERS_SCALINGS,
        "phi3": (*TRANSFORMERS_SCALINGS, "su"),
        **dict.fromkeys(("qwen2_vl", "qwen2_5_vl"), (*TRANSFORMERS_SCALINGS, "mrope")),
    },
    scaling_keys=SCALING_KEYS,
    unsupported=("phi4mm", "kimi_k2", "jina_embeddings_v5", "step3p5"),
)
GEMMA4 = ("gemma4_text", "gemma4_unified_text", "gemma4", "gemma4_unified")
"""Types of Gemma 4, which mistral.rs loads as multimodal models."""
GEMMA4_DEFAULTS = {
    "head_dim": 256,
    "global_head_dim": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "num_kv_shared_layers": 0,
    "vocab_size": 262144,
}
MISTRAL_RS = Engine(
    id="mistralrs",
    title="mistral.rs",
    formats={
        "uqff": Reading(
            layout="uqff",
            codecs=(ANY,),
            experts={
                "gpt-oss": {"mx": "warning", "affine": "cpu"},
                **dict.fromkeys(("mixtral", "qwen3moe", "deepseek2", "kimi"), MISTRAL_EXPERTS),
            },
        ),
        "gguf": Reading(
            layout="gguf", codecs=MISTRAL_GGML, vectors=True, experts={"gpt-oss": {"ggml.mxfp4": "warning"}}
        ),
        "safetensors": Reading(layout="hf"),
    },
    keys={
        ANY: ("tokenizer.ggml.eos_token_id",),
        "phi3": ("tokenizer.ggml.eos_token_id", "phi3.rope.dimension_count"),
    },
    tokenizer_keys={"gpt2": ("tokenizer.ggml.pre", "tokenizer.ggml.merges"), "llama": ("tokenizer.ggml.scores",)},
    fields={
        ANY: MISTRAL_ALL,
        "qwen3": (*MISTRAL_ALL, *WINDOW),
        "qwen3_moe": (*MISTRAL_ALL, *WINDOW, *EXPERTS),
        "gemma2": (
            *MISTRAL_REST,
            "attention_bias",
            "head_dim",
            "hidden_activation",
            "query_pre_attn_scalar",
            "sliding_window",
            "tie_word_embeddings",
        ),
        "gemma3_text": ("architectures", "sliding_window"),
        **dict.fromkeys(
            GEMMA4,
            (
                "architectures",
                "hidden_size",
                "intermediate_size",
                "layer_types",
                "num_hidden_layers",
                "sliding_window",
            ),
        ),
        "phi3": (*MISTRAL_ALL, "original_max_position_embeddings"),
        "qwen2": (*MISTRAL_ALL, "tie_word_embeddings"),
        "glm4": (*MISTRAL_ALL, "head_dim"),
        "gpt_oss": (*MISTRAL_REST, "head_dim", "layer_types", "num_local_experts", "num_experts_per_tok"),
        **dict.fromkeys(
            ("deepseek_v2", "deepseek_v3"),
            (
                *(name for name in MISTRAL_REST if name not in HEADS),
                "attention_bias",
                "first_k_dense_replace",
                "n_group",
                "topk_group",
                "num_experts_per_tok",
                "moe_intermediate_size",
            ),
        ),
        "lfm2": ("architectures", *LFM, "block_multiple_of"),
        "lfm2_moe": ("architectures", *LFM),
        "starcoder2": (
            *(name for name in MISTRAL_ALL if name != "rms_norm_eps"),
            "norm_epsilon",
            "tie_word_embeddings",
            "use_bias",
        ),
    },
    defaults={
        "qwen3": {"tie_word_embeddings": False},
        **dict.fromkeys(GEMMA4, GEMMA4_DEFAULTS),
    },
    scalings={
        "llama": ("llama3", "linear"),
        "gpt_oss": ("yarn", "llama3"),
        **dict.fromkeys(("deepseek_v2", "deepseek_v3"), ("yarn",)),
    },
    key_scalings={
        ANY: (),
        "llama": ("llama3", "linear"),
        "phi3": ("longrope",),
        "gpt-oss": ("yarn",),
        "gemma3": ("linear",),
        "deepseek2": ("yarn",),
    },
    unscaled={
        **dict.fromkeys(
            ("mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "glm4", "starcoder2", "lfm2", "gemma2"), ()
        ),
        "gpt_oss": ("yarn",),
    },
    unsupported=("gpt2", "granite", "olmo2", "qwen3_5_moe_text", "gemma3n_text"),
    differences=differences.MISTRAL_RS,
    unigram=True,
    tokenizers=("tokenizer.json",),
)
ENGINES = {"llama.cpp": LLAMA_CPP, "mlx": MLX, "transformers": TRANSFORMERS, "mistralrs": MISTRAL_RS}
