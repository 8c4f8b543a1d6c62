"""Tensors that each class of mistral.rs reads, with the shapes that follow from its settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from attrs import evolve, frozen

Settings = Mapping[str, Any]
Shapes = Mapping[str, tuple[int, ...]]
FLOATS = ("f32", "f16", "bf16")
CONVERTED = (*FLOATS, "f64", "i64", "i32", "i16", "u32", "u8", "f8_e4m3")
"""Types that mistral.rs converts if it converts at all: those of tables, and of embeddings that it looks up."""
EMBEDDINGS = "model.embed_tokens.weight"
BLOCK = 32
"""Values per MXFP4 block."""
EXPERT_NAMES = (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"))
"""Names of the three matrices of an expert that is stored separately."""


@frozen
class Need:
    """A tensor that is read.

    `may_miss`: mistral.rs computes without it. `is_coded`: the quantization_config determines how it is stored.
    `dtypes`: the types that it may have.
    """

    name: str
    shape: tuple[int, ...]
    may_miss: bool = False
    is_coded: bool = False
    dtypes: tuple[str, ...] = FLOATS


def head_size(settings: Settings) -> int:
    """Return the size of a head; HunYuan reads 0 as unstated."""
    own = settings.get("head_dim")
    if own == 0 and "use_cla" in settings:
        own = None
    return int(own if own is not None else settings["hidden_size"] // settings["num_attention_heads"])


def _linear(name: str, rows: int, columns: int, bias: bool = False) -> Iterator[Need]:
    """Yield a matrix and its bias; mistral.rs computes without a missing bias."""
    yield Need(f"{name}.weight", (rows, columns), is_coded=True)
    if bias:
        yield Need(f"{name}.bias", (rows,), may_miss=True)


def _whole(name: str, rows: int, columns: int, bias: bool) -> Iterator[Need]:
    """Yield a matrix and a required bias."""
    yield Need(f"{name}.weight", (rows, columns), is_coded=True)
    if bias:
        yield Need(f"{name}.bias", (rows,))


def _floats(needs: Iterator[Need]) -> Iterator[Need]:
    """Yield tensors as floats, whatever the quantization_config says."""
    for need in needs:
        yield evolve(need, is_coded=False)


def _norms(prefix: str, size: int, *names: str, bias: bool = False) -> Iterator[Need]:
    for name in names:
        yield Need(f"{prefix}{name}.weight", (size,))
        if bias:
            yield Need(f"{prefix}{name}.bias", (size,))


def _attention(prefix: str, settings: Settings, head: int, bias: bool = False, out: bool = False) -> Iterator[Need]:
    hidden, heads, groups = (
        settings[f"{name}"] for name in ("hidden_size", "num_attention_heads", "num_key_value_heads")
    )
    for name, rows in (("q_proj", heads), ("k_proj", groups), ("v_proj", groups)):
        yield from _linear(f"{prefix}self_attn.{name}", rows * head, hidden, bias)
    yield from _linear(f"{prefix}self_attn.o_proj", hidden, heads * head, out)


def _gated(prefix: str, hidden: int, inner: int) -> Iterator[Need]:
    for name in ("gate_proj", "up_proj"):
        yield from _linear(f"{prefix}{name}", inner, hidden)
    yield from _linear(f"{prefix}down_proj", hidden, inner)


def _experts(prefix: str, count: int, hidden: int, inner: int, stored: Shapes) -> Iterator[Need]:
    """Yield experts one by one under either set of names, or two tensors with all of them in either orientation."""
    names = next((each for each in EXPERT_NAMES if f"{prefix}0.{each[0]}.weight" in stored), EXPERT_NAMES[0])
    if f"{prefix}gate_up_proj" in stored and f"{prefix}0.{names[0]}.weight" not in stored:
        is_transposed = stored[f"{prefix}gate_up_proj"] == (count, hidden, 2 * inner)
        gate_up, down = (
            ((hidden, 2 * inner), (inner, hidden)) if is_transposed else ((2 * inner, hidden), (hidden, inner))
        )
        yield Need(f"{prefix}gate_up_proj", (count, *gate_up), is_coded=True)
        yield Need(f"{prefix}down_proj", (count, *down), is_coded=True)
        return
    for number in range(count):
        for name, shape in zip(names, ((inner, hidden), (inner, hidden), (hidden, inner))):
            yield Need(f"{prefix}{number}.{name}.weight", shape, is_coded=True)


def _plain(settings: Settings, prefix: str, layer: int, stored: Shapes) -> Iterator[Need]:
    """Yield a layer of Llama, Mistral or Qwen 2."""
    yield from _attention(prefix, settings, head_size(settings))
    yield from _gated(f"{prefix}mlp.", settings["hidden_size"], settings["intermediate_size"])
    yield from _norms(prefix, settings["hidden_size"], "input_layernorm", "post_attention_layernorm")


def _qwen2(settings: Settings, prefix: str, layer: int, stored: Shapes) -> Iterator[Need]:
    yield from _attention(prefix, settings, head_size(settings), bias=True)
    yield from _gated(f"{prefix}mlp.", settings["hidden_size"], settings["intermediate_size"])
    yield from _norms(prefix, settings["hidden_size"], "input_layernorm", "post_attention_layernorm")


def _mixtral(settings: Settings, prefix: str, layer: int, stored: Shapes) -> Iterator[Need]:
    hidden, count = settings["hidden_size"], settings["num_local_experts"]
    yield from _attention(prefix, settings, head_size(settings))
    yield from _linear(f"{prefix}block_sparse_moe.gate", count, hidden)
    yield from _experts(f"{prefix}block_sparse_moe.experts.", count, hidden, settings["intermediate_size"], stored)
    yield from _norms(prefix, hidden, "input_layernorm", "post_attention_layernorm")


def _qwen3(settings: Settings, prefix: str, layer: int, stored: Shapes) -> Iterator[Need]:
    yield from _plain(settings, prefix, layer, stored)
    yield from _norms(f"{prefix}self_attn.", head_size(settings), "q_norm", "k_norm")


def _qwen3_moe(settings: Settings, prefix: str, layer: int, stored: Shapes) -> Iterator[Need]:
    count, hidden = settings["num_experts"], settings["hidden_size"]
    if layer in settings["mlp_only_layers"] or not count or not _divides(settings["decoder_sparse_step"], layer + 1):
        yield from _qwen3(settings, prefix, layer, stored)
        return
    yield from _attention(prefix, settings, head_size(settings))
    yield from _norms(f"{prefix}self_attn.", head_size(settings), "q_norm", "k_norm")
    yield from _floats(_linear(f"{prefix}mlp.gate", count, hidden))
    yield from _experts(f"{prefix}mlp.experts.", count, hidden, settings["moe_intermediate_size"], stored)
    yield from _norms(prefix, hidden, "input_layernorm", "post_attention_layernorm")


def _divides(step: int, number: int) -> bool:
    return number % step == 0 if step else number == 0


def _gemma(settings: Settings, prefix: str, layer: int, stored: Shapes) -> Iterator[Need]:
    bias = settings["attention_bias"]
    yield from _attention(prefix, settings, head_size(settings), bias=bias, out=bias)
    yield from _gated(f"{prefix}mlp.", settings["hidden_size"], settings["intermediate_size"])
    yield from _norms(
        prefix,
        settings["hidden_size"],
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    )


def _gemma3(settings: Settings, prefix: str, layer: int, stored: Shapes) -> Iterator[Need]:
    yield from _gemma(settings, prefix, layer, stored)
    yield from _norms(f"{prefix}self_attn.", head_size(settings), "q_norm", "k_norm")


def _merged(prefix: str, settings: Settings) -> Iterator[Need]:
    hidden, inner = settings["hidden_size"], settings["intermediate_size"]
    yield from _linear(f"{prefix}mlp.gate_up_proj", 2 * inner, hidden)
    yield from _linear(f"{prefix}mlp.down_proj", hidden, inner)


def _phi3(settings: Settings, prefix: str, layer: int, stored: Shapes) -> Iterator[Need]:
    hidden, heads, head = settings["hidden_size"], settings["num_attention_heads"], head_size(settings)
    yield from _linear(f"{prefix}self_attn.qkv_proj", (heads + 2 * settings["num_key_value_heads"]) * head, hidden)
    yield from _linear(f"{prefix}self_attn.o_proj", hidden, heads * head)
    yield from _merged(prefix, settings)
    yield from _norms(prefix, hidden, "input_layernorm", "post_attention_layernorm")


def _glm4(settings: Settings, prefix: str, layer: int, stored: Shapes) -> Iterator[Need]:
    yield from _attention(prefix, settings, head_size(settings), bias=bool(settings["attention_bias"]))
    yield from _merged(prefix, settings)
    yield from _norms(
        prefix,
        settings["hidden_size"],
        "input_layernorm",
        "post_attention_layernorm",
        "post_self_attn_layernorm",
        "post_mlp_layernorm",
    )


def _gpt_oss(settings: Settings, prefix: str, layer: int, stored: Shapes) -> Iterator[Need]:
    """Yield a layer of gpt-oss: experts are MXFP4 codes, or three tensors that no Hugging Face checkpoint has."""
    hidden, inner, count = (settings[name] for name in ("hidden_size", "intermediate_size", "num_local_experts"))
    bias, experts = settings["attention_bias"], f"{prefix}mlp.experts."
    yield from _floats(_attention(prefix, settings, head_size(settings), bias=bias, out=bias))
    yield Need(f"{prefix}self_attn.sinks", (settings["num_attention_heads"],))
    yield from _floats(_whole(f"{prefix}mlp.router", count, hidden, True))
    if f"{experts}gate_up_proj_blocks" in stored:
        for name, rows, columns in (("gate_up_proj", 2 * inner, hidden), ("down_proj", hidden, inner)):
            yield Need(f"{experts}{name}_blocks", (count, rows, columns // BLOCK, BLOCK // 2), dtypes=("u8",))
            yield Need(f"{experts}{name}_scales", (count, rows, columns // BLOCK), dtypes=("u8",))
            yield Need(f"{experts}{name}_bias", (count, rows), dtypes=CONVERTED)
    else:
        for name, rows, columns in (
            ("gate_proj", inner, hidden),
            ("up_proj", inner, hidden),
            ("down_proj", hidden, inner),
        ):
            yield Need(f"{experts}{name}.weight", (count, rows, columns))
    yield from _norms(prefix, hidden, "input_layernorm", "post_attention_layernorm")


def _deepseek(settings: Settings, prefix: str, layer: int, stored: Shapes) -> Iterator[Need]:
    hidden, heads = settings["hidden_size"], settings["num_attention_heads"]
    unrotated, rotated, rank = (settings[name] for name in ("qk_nope_head_dim", "qk_rope_head_dim", "kv_lora_rank"))
    attention, bias, inner = f"{prefix}self_attn.", settings["attention_bias"], settings["q_lora_rank"]
    if inner is None:
        yield from _linear(f"{attention}q_proj", heads * (unrotated + rotated), hidden)
    else:
        yield from _whole(f"{attention}q_a_proj", inner, hidden, bias)
        yield from _norms(attention, inner, "q_a_layernorm")
        yield from _linear(f"{attention}q_b_proj", heads * (unrotated + rotated), inner)
    yield from _whole(f"{attention}kv_a_proj_with_mqa", rank + rotated, hidden, bias)
    yield from _norms(attention, rank, "kv_a_layernorm")
    if all(f"{attention}{name}_b_proj.weight" in stored for name in "kv"):
        yield from _linear(f"{attention}k_b_proj", heads * rank, unrotated)
        yield from _linear(f"{attention}v_b_proj", heads * settings["v_head_dim"], rank)
    else:
        yield from _linear(f"{attention}kv_b_proj", heads * (unrotated + settings["v_head_dim"]), rank)
    yield from _linear(f"{attention}o_proj", hidden, heads * settings["v_head_dim"], bias)
    yield from _norms(prefix, hidden, "input_layernorm", "post_attention_layernorm")
    if has_experts(settings, layer):
        yield from _deepseek_experts(settings, f"{prefix}mlp.", stored)
    else:
        yield from _gated(f"{prefix}mlp.", hidden, settings["intermediate_size"])


def has_experts(settings: Settings, layer: int) -> bool:
    """Return whether a layer of DeepSeek or GLM has experts."""
    is_late = layer >= settings["first_k_dense_replace"] and _divides(settings.get("moe_layer_freq", 1), layer)
    return settings["n_routed_experts"] is not None and is_late


def _deepseek_experts(settings: Settings, prefix: str, stored: Shapes) -> Iterator[Need]:
    hidden, count, inner = (settings[name] for name in ("hidden_size", "n_routed_experts", "moe_intermediate_size"))
    yield from _experts(f"{prefix}experts.", count, hidden, inner, stored)
    if settings["n_shared_experts"] is not None:
        yield from _gated(f"{prefix}shared_experts.", hidden, inner * settings["n_shared_experts"])
    yield from _floats(_linear(f"{prefix}gate", count, hidden))
    if settings["topk_method"] == "noaux_tc":
        yield Need(f"{prefix}gate.e_score_correction_bias", (count,))


def _glm4_moe(settings: Settings, prefix: str, layer: int, stored: Shapes) -> Iterator[Need]:
    head, hidden = head_size(settings), settings["hidden_size"]
    yield from _attention(prefix, settings, head, bias=settings["attention_bias"])
    if settings["use_qk_norm"]:
        yield from _norms(f"{prefix}self_attn.", head, "q_norm", "k_norm")
    yield from _norms(prefix, hidden, "input_layernorm", "post_attention_layernorm")
    if has_experts(settings, layer):
        yield from _deepseek_experts(routed_as_deepseek(settings), f"{prefix}mlp.", stored)
    else:
        yield from _gated(f"{prefix}mlp.", hidden, settings["intermediate_size"])


def _glm4_moe_lite(settings: Settings, prefix: str, layer: int, stored: Shapes) -> Iterator[Need]:
    yield from _deepseek({**routed_as_deepseek(settings), "attention_bias": False}, prefix, layer, stored)


def routed_as_deepseek(settings: Settings) -> Settings:
    """Return GLM's settings, with the routing of DeepSeek 3 that its code has without a setting."""
    return {**settings, "topk_method": "noaux_tc", "n_shared_experts": settings["n_shared_experts"] or None}


def _hunyuan(settings: Settings, prefix: str, layer: int, stored: Shapes) -> Iterator[Need]:
    yield from _plain(settings, prefix, layer, stored)
    yield from _norms(f"{prefix}self_attn.", head_size(settings), "query_layernorm", "key_layernorm")


def _gemma1(settings: Settings, prefix: str, layer: int, stored: Shapes) -> Iterator[Need]:
    bias = settings["attention_bias"]
    yield from _attention(prefix, settings, head_size(settings), bias=bias, out=bias)
    yield from _gated(f"{prefix}mlp.", settings["hidden_size"], settings["intermediate_size"])
    yield from _norms(prefix, settings["hidden_size"], "input_layernorm", "post_attention_layernorm")


def _lfm2(settings: Settings, prefix: str, layer: int, stored: Shapes) -> Iterator[Need]:
    hidden, kinds, attention_layers = (settings[name] for name in ("hidden_size", "layer_types", "full_attn_idxs"))
    if kinds[layer] == "conv" if kinds else attention_layers is not None and layer not in attention_layers:
        bias, width = settings["conv_bias"], settings["conv_L_cache"]
        yield from _whole(f"{prefix}conv.in_proj", 3 * hidden, hidden, bias)
        yield from _whole(f"{prefix}conv.out_proj", hidden, hidden, bias)
        yield Need(f"{prefix}conv.conv.weight", (hidden, 1, width), dtypes=CONVERTED)
        if bias:
            yield Need(f"{prefix}conv.conv.bias", (hidden,))
    else:
        head, heads, groups = head_size(settings), settings["num_attention_heads"], settings["num_key_value_heads"]
        for name, rows in (("q_proj", heads), ("k_proj", groups), ("v_proj", groups)):
            yield from _linear(f"{prefix}self_attn.{name}", rows * head, hidden)
        yield from _linear(f"{prefix}self_attn.out_proj", hidden, heads * head)
        yield from _norms(f"{prefix}self_attn.", head, "q_layernorm", "k_layernorm")
    yield from _norms(prefix, hidden, "operator_norm", "ffn_norm")
    if is_lfm_mixture(settings) and layer >= settings["num_dense_layers"]:
        count = settings["num_experts"]
        yield from _floats(_linear(f"{prefix}feed_forward.gate", count, hidden))
        if settings["use_expert_bias"]:
            yield Need(f"{prefix}feed_forward.expert_bias", (count,))
        yield from _experts(f"{prefix}feed_forward.experts.", count, hidden, settings["moe_intermediate_size"], stored)
        return
    inner = lfm_inner(settings)
    for name, rows, columns in (("w1", inner, hidden), ("w3", inner, hidden), ("w2", hidden, inner)):
        yield from _linear(f"{prefix}feed_forward.{name}", rows, columns)


def is_lfm_mixture(settings: Settings) -> bool:
    """Whether an LFM 2 has experts."""
    return settings["model_type"] == "lfm2_moe" or "Lfm2MoeForCausalLM" in settings["architectures"]


def lfm_inner(settings: Settings) -> int:
    """Return the inner size of LFM 2's feed-forward layers."""
    if is_lfm_mixture(settings):
        return int(settings["intermediate_size"])
    inner = settings["block_ff_dim"]
    size = int(settings["intermediate_size"] if inner is None else inner)
    if settings["block_auto_adjust_ff_dim"]:
        size = max(0, int(settings["block_ffn_dim_multiplier"] * (2 * size // 3)))
        size = settings["block_multiple_of"] * -(-size // settings["block_multiple_of"])
    return size


def _starcoder2(settings: Settings, prefix: str, layer: int, stored: Shapes) -> Iterator[Need]:
    hidden, inner, bias = settings["hidden_size"], settings["intermediate_size"], settings["use_bias"]
    yield from _attention(prefix, settings, head_size(settings), bias=bias, out=bias)
    yield from _linear(f"{prefix}mlp.c_fc", inner, hidden, bias)
    yield from _linear(f"{prefix}mlp.c_proj", hidden, inner, bias)
    yield from _norms(prefix, hidden, "input_layernorm", "post_attention_layernorm", bias=True)


Layer = Callable[[Settings, str, int, Shapes], Iterator[Need]]
LAYERS: dict[str, Layer] = {
    "LlamaForCausalLM": _plain, "MistralForCausalLM": _plain, "MixtralForCausalLM": _mixtral,
    "Qwen2ForCausalLM": _qwen2, "Qwen3ForCausalLM": _qwen3, "Qwen3MoeForCausalLM": _qwen3_moe,
    "Gemma2ForCausalLM": _gemma, "Gemma3ForCausalLM": _gemma3, "Phi3ForCausalLM": _phi3, "Glm4ForCausalLM": _glm4,
    "GptOssForCausalLM": _gpt_oss, "DeepseekV2ForCausalLM": _deepseek, "DeepseekV3ForCausalLM": _deepseek,
    "Lfm2ForCausalLM": _lfm2, "Lfm2MoeForCausalLM": _lfm2, "Starcoder2ForCausalLM": _starcoder2,
    "GemmaForCausalLM": _gemma1, "SmolLM3ForCausalLM": _plain, "HunYuanDenseV1ForCausalLM": _hunyuan,
    "Glm4MoeForCausalLM": _glm4_moe, "Glm4MoeLiteForCausalLM": _glm4_moe_lite,
}  # fmt: skip
"""Class -> the tensors of a layer."""
FACTORS = "model.rope_freqs.weight"
NORMS = dict.fromkeys(("Lfm2ForCausalLM", "Lfm2MoeForCausalLM"), "embedding_norm")
"""Class -> the norm after the last layer, if its name is not "norm"."""


LLAMAS = ("LlamaForCausalLM", "SmolLM3ForCausalLM")
"""Classes with Llama's kinds of RoPE scaling, and factors that a tensor may state."""
FLOAT_HEAD = ("Phi3ForCausalLM", "GptOssForCausalLM")
"""Classes whose head consists of floats, whatever the quantization_config says."""


def is_tied(settings: Settings) -> bool:
    """Return whether the embeddings serve as the head, too."""
    tied = settings.get("tie_embedding")
    return bool(settings["tie_word_embeddings"] if tied is None else tied)


def needs(name: str, settings: Settings, stored: Shapes) -> Iterator[Need]:
    """Yield every tensor that a class reads."""
    hidden, rows = settings["hidden_size"], settings["vocab_size"]
    if name in LLAMAS:
        yield Need(FACTORS, (head_size(settings) // 2,), may_miss=True, dtypes=CONVERTED)
    yield Need(EMBEDDINGS, (rows, hidden), is_coded=True, dtypes=FLOATS if is_tied(settings) else CONVERTED)
    if not is_tied(settings):
        yield Need("lm_head.weight", (rows, hidden), is_coded=name not in FLOAT_HEAD)
    yield from _norms("model.", hidden, NORMS.get(name, "norm"), bias=name == "Starcoder2ForCausalLM")
    for layer in range(settings["num_hidden_layers"]):
        yield from LAYERS[name](settings, f"model.layers.{layer}.", layer, stored)
