"""DeepSeek 4: attention to a window and to compressed tokens, streams that mix, experts chosen by tables of tokens.

The family needs more than a table: its kinds of layers are ratios in the published config.json and names in that of
Transformers, as are its two rotations; and its files have names of their own, which Transformers prefixes.

Source: llama.cpp, `DeepseekV4Model` in conversion/deepseek.py, and src/models/deepseek4.cpp.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

from squish_convert.api import Model, Rule

from squish_core.api import ErrorCode, FormatError, TensorError

from ..config.keys import COMMON, NUMBERS_LIST, SIZES_LIST, Key, check_settings
from ..config.spelling import SLIDING
from ..declared import Declared
from ..engines.needs import EngineNeeds
from ..settings import CONFIG
from ..tables import Row

LAYER = "layers.{n}."
COMPRESSED, INDEXED, HASHED, ROUTED = "compressed", "indexed", "hashed", "routed"
RATIOS = {SLIDING: 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
"""Kind of attention in Transformers -> tokens that become one, the only ratios that llama.cpp has."""
SQRT_SOFTPLUS = 4
"""llama.cpp's id of the gating function."""


def _row(hf: str, gguf: str, *shape: str, **fields: Any) -> Row:
    return Row(hf, gguf, shape, layer=LAYER, **fields)


def _bare(hf: str, gguf: str, *shape: str, **fields: Any) -> Row:
    """A tensor whose name in files has no suffix."""
    return _row(hf, gguf, *shape, suffix="", **fields)


def _compressor(hf: str, gguf: str, kind: str) -> tuple[Row, ...]:
    """Projections, positions and the norm of what makes one token of several; sizes depend on the ratio."""
    width = "head_dim" if kind == COMPRESSED else "index_head_dim"
    return (
        _row(f"{hf}.wkv", f"{gguf}_kv", "*", "hidden_size", kind=kind),
        _row(f"{hf}.wgate", f"{gguf}_gate", "*", "hidden_size", kind=kind),
        _bare(f"{hf}.ape", f"{gguf}_ape", "*", "*", kind=kind, f32=True),
        _row(f"{hf}.norm", f"{gguf}_norm", width, kind=kind),
    )


def _mixing(part: str) -> tuple[Row, ...]:
    return (
        _bare(f"hc_{part}_fn", f"hc_{part}_fn", "mixed", "streams_width", f32=True),
        _bare(f"hc_{part}_base", f"hc_{part}_base", "mixed"),
        _bare(f"hc_{part}_scale", f"hc_{part}_scale", "3"),
    )


EXPERT, SHARED = "moe_intermediate_size", "shared_size"
ROWS = (
    Row("embed", "token_embd", ("vocab_size", "hidden_size"), top=True),
    Row("norm", "output_norm", ("hidden_size",), top=True),
    Row("head", "output", ("vocab_size", "hidden_size"), top=True),
    Row("hc_head_fn", "output_hc_fn", ("hc_mult", "streams_width"), top=True, suffix="", f32=True),
    Row("hc_head_base", "output_hc_base", ("hc_mult",), top=True, suffix=""),
    Row("hc_head_scale", "output_hc_scale", ("1",), top=True, suffix=""),
    _row("attn_norm", "attn_norm", "hidden_size"),
    _bare("attn.attn_sink", "attn_sinks", "num_attention_heads"),
    _row("attn.wq_a", "attn_q_a", "q_lora_rank", "hidden_size"),
    _row("attn.q_norm", "attn_q_a_norm", "q_lora_rank"),
    _row("attn.wq_b", "attn_q_b", "q_rows", "q_lora_rank"),
    _row("attn.wkv", "attn_kv", "head_dim", "hidden_size"),
    _row("attn.kv_norm", "attn_kv_a_norm", "head_dim"),
    _row("attn.wo_a", "attn_output_a", "o_rows", "o_columns"),
    _row("attn.wo_b", "attn_output_b", "hidden_size", "o_rows"),
    *_compressor("attn.compressor", "attn_compressor", COMPRESSED),
    *_compressor("attn.indexer.compressor", "indexer_compressor", INDEXED),
    _row("attn.indexer.wq_b", "indexer.attn_q_b", "index_rows", "q_lora_rank", kind=INDEXED),
    _row("attn.indexer.weights_proj", "indexer.proj", "index_n_heads", "hidden_size", kind=INDEXED),
    *_mixing("attn"),
    *_mixing("ffn"),
    _row("ffn_norm", "ffn_norm", "hidden_size"),
    _row("ffn.gate", "ffn_gate_inp", "experts", "hidden_size", f32=True),
    _bare("ffn.gate.tid2eid", "ffn_gate_tid2eid", "vocab_size", "num_experts_per_tok", kind=HASHED, i32=True),
    _bare("ffn.gate.bias", "exp_probs_b", "experts", gguf_suffix=".bias", kind=ROUTED),
    _bare("ffn.gate.bias_vl", "exp_probs_b_vl", "experts", gguf_suffix=".bias", required=False),
    _row("ffn.experts.{e}.w1", "ffn_gate_exps", EXPERT, "hidden_size"),
    _row("ffn.experts.{e}.w3", "ffn_up_exps", EXPERT, "hidden_size"),
    _row("ffn.experts.{e}.w2", "ffn_down_exps", "hidden_size", EXPERT),
    _row("ffn.shared_experts.w1", "ffn_gate_shexp", SHARED, "hidden_size"),
    _row("ffn.shared_experts.w3", "ffn_up_shexp", SHARED, "hidden_size"),
    _row("ffn.shared_experts.w2", "ffn_down_shexp", "hidden_size", SHARED),
)


class Deepseek4(Declared):
    """DeepSeek 4 Flash and Pro; their layers that predict more tokens are left out, as by llama.cpp's converter."""

    model_type, architecture, class_name = "deepseek_v4", "deepseek4", "DeepseekV4ForCausalLM"
    rows = ROWS
    more: ClassVar = {
        "hf": (Rule(f"{LAYER}attn.norm.weight", f"{LAYER}attn.kv_norm.weight", reading=True),),  # of Transformers
    }
    prefixes: ClassVar = {
        "model.layers.": "layers.", "model.embed_tokens.": "embed.", "model.norm.": "norm.",
        "model.hc_head.hc_": "hc_head_",
    }  # fmt: skip
    keys: ClassVar[Sequence[Key]] = (
        *(key for key in COMMON if key.hf != "intermediate_size"),
        Key("q_lora_rank", "attention.q_lora_rank"),
        Key("sliding_window", "attention.sliding_window"),
        Key("n_routed_experts", "expert_count"),
        Key("num_experts_per_tok", "expert_used_count"),
        Key("moe_intermediate_size", "expert_feed_forward_length"),
        Key("n_shared_experts", "expert_shared_count"),
        Key("routed_scaling_factor", "expert_weights_scale", "f32"),
        Key("norm_topk_prob", "expert_weights_norm", "bool"),
        Key("gating_function", "expert_gating_func"),
        Key("clamps", "swiglu_clamp_exp", NUMBERS_LIST),
        Key("shared_clamps", "swiglu_clamp_shexp", NUMBERS_LIST, required=False),
        Key("index_n_heads", "attention.indexer.head_count"),
        Key("index_head_dim", "attention.indexer.key_length"),
        Key("index_topk", "attention.indexer.top_k"),
        Key("o_groups", "attention.output_group_count"),
        Key("o_lora_rank", "attention.output_lora_rank"),
        Key("compress_ratios", "attention.compress_ratios", SIZES_LIST),
        Key("compress_rope_theta", "attention.compress_rope_freq_base", "f32"),
        Key("hc_mult", "hyper_connection.count"),
        Key("hc_sinkhorn_iters", "hyper_connection.sinkhorn_iterations"),
        Key("hc_eps", "hyper_connection.epsilon", "f32"),
        Key("num_hash_layers", "hash_layer_count"),
        Key("streams_width", "embedding_length_out", required=False),
    )
    engines: ClassVar = {"mlx": EngineNeeds(supported=False)}
    fixed: ClassVar = {
        "hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "scoring_func": "sqrtsoftplus",
    }  # fmt: skip
    unstated: ClassVar = {**fixed, "num_key_value_heads": 1, "tie_word_embeddings": False, "norm_topk_prob": True}
    products: ClassVar = {
        "o_rows": ("o_groups", "o_lora_rank"), "index_rows": ("index_n_heads", "index_head_dim"),
        "shared_size": ("moe_intermediate_size", "n_shared_experts"), "streams_width": ("hc_mult", "hidden_size"),
    }  # fmt: skip
    derived = (
        *Declared.derived, "intermediate_size", "gating_function", "clamps", "shared_clamps", "streams_width",
        "num_nextn_predict_layers", "partial_rotary_factor",
    )  # fmt: skip
    windowless = ()
    unadapted = ("wo_a", "head")

    def settings(self, model: Model) -> dict[str, Any]:
        settings = super().settings(model)
        if settings["num_key_value_heads"] != 1:
            raise FormatError(
                "is not 1, and every head reads the same keys",
                part=f"{CONFIG} num_key_value_heads",
                code=ErrorCode.CONFIG,
                expected=1,
                found=settings["num_key_value_heads"],
            )
        for layer, ratio in enumerate(settings["compress_ratios"][: settings["num_hidden_layers"]]):
            for part, width in (("attn.", "head_dim"), ("attn.indexer.", "index_head_dim")):
                rows = settings[width] * (2 if ratio == 4 else 1)
                _check_compressor(model, f"{layer}.{part}compressor.", (ratio, rows, settings["hidden_size"]))
        return settings

    def sizes(self, settings: Mapping[str, Any]) -> dict[str, int]:
        heads, groups, streams = settings["num_attention_heads"], settings["o_groups"], settings["hc_mult"]
        if groups < 1 or heads % groups:
            raise FormatError(
                "is not a divisor of the number of heads",
                part=f"{CONFIG} o_groups",
                code=ErrorCode.CONFIG,
                expected=f"a divisor of {heads}",
                found=groups,
            )
        own = {"o_columns": heads * settings["head_dim"] // groups, "mixed": (2 + streams) * streams}
        return super().sizes({**settings, **own}) | own

    def layers_of(self, kind: str, settings: Mapping[str, Any]) -> Collection[int]:
        count, hashed = settings["num_hidden_layers"], settings["num_hash_layers"]
        if kind in (HASHED, ROUTED):
            return range(min(hashed, count)) if kind == HASHED else range(min(hashed, count), count)
        ratios = settings["compress_ratios"][:count]
        return [layer for layer, ratio in enumerate(ratios) if ratio == 4 or (ratio and kind == COMPRESSED)]

    def left_out(self, settings: Mapping[str, Any]) -> Collection[str]:
        biases = [f"*layers.{layer}.ffn.gate.bias" for layer in self.layers_of(HASHED, settings)]
        return [*super().left_out(settings), "mtp.*", "model.mtp.*", *biases]

    def spelled(self, config: Mapping[str, Any]) -> dict[str, Any]:
        settings = _with_rope(super().spelled(config), config.get("rope_parameters"))
        kinds = settings.pop("layer_types", None)
        moe = settings.pop("mlp_layer_types", None)
        for name in ("sliding_window_pattern", "compress_rates"):
            settings.pop(name, None)
        check_settings([Key("num_hidden_layers", ""), Key("head_dim", ""), Key("hc_mult", "")], settings, CONFIG)
        if settings.get("compress_ratios") is None and isinstance(kinds, list):
            settings["compress_ratios"] = [RATIOS.get(str(kind), kind) for kind in kinds]
        if settings.get("num_hash_layers") is None:
            settings["num_hash_layers"] = [*moe, "moe"].index("moe") if isinstance(moe, list) else 3
        ratios, count = settings.get("compress_ratios"), settings["num_hidden_layers"]
        if not isinstance(ratios, list) or len(ratios) < count or not {*ratios} <= {*RATIOS.values()}:
            raise FormatError(
                "does not say of each layer how many tokens become one",
                part=f"{CONFIG} compress_ratios",
                code=ErrorCode.CONFIG,
                expected=f"{count} of 0, 4 and 128",
                found=str(ratios)[:60],
            )
        rotated, share = settings.get("qk_rope_head_dim"), settings.get("partial_rotary_factor") or 64 / 512
        settings.setdefault("qk_rope_head_dim", int(settings["head_dim"] * share))
        settings["partial_rotary_factor"] = (rotated or settings["qk_rope_head_dim"]) / settings["head_dim"]
        return settings | self._implied(settings)

    def _implied(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """What follows from other settings."""
        clamps = [settings.get("swiglu_limit", 10.0)] * settings["num_hidden_layers"]
        return {
            "intermediate_size": settings.get("moe_intermediate_size"), "gating_function": SQRT_SOFTPLUS,
            "clamps": clamps, "shared_clamps": clamps, "streams_width": settings["hc_mult"] * settings["hidden_size"],
        }  # fmt: skip

    def _from_keys(self, model: Model) -> dict[str, Any]:
        settings = super()._from_keys(model)
        clamps, ratios = {*settings["clamps"], *settings.get("shared_clamps", ())}, settings["compress_ratios"]
        if len(clamps) != 1:
            expected, found = "one value for all layers", str(sorted(clamps))[:60]
            raise self._inexpressible("swiglu_clamp_exp", expected=expected, found=found)
        if (function := settings["gating_function"]) != SQRT_SOFTPLUS:
            raise self._inexpressible("expert_gating_func", expected=SQRT_SOFTPLUS, found=function)
        if len(ratios) < settings["num_hidden_layers"] or not {*ratios} <= {*RATIOS.values()}:
            raise FormatError(
                "does not say of each layer how many tokens become one",
                part=f"{self.architecture}.attention.compress_ratios",
                code=ErrorCode.CONTRADICTION,
                expected=f"{settings['num_hidden_layers']} of 0, 4 and 128",
                found=str(ratios)[:60],
            )
        settings |= {"swiglu_limit": clamps.pop(), "qk_rope_head_dim": settings["rotary_dim"]}
        return settings | self._implied(settings)


def _check_compressor(model: Model, place: str, sizes: tuple[int, int, int]) -> None:
    """Raise TensorError if a compressor's tensors have other shapes than its ratio says; no row of the table can."""
    ratio, rows, hidden = sizes
    gguf = place.replace("attn.indexer.compressor.", "indexer_compressor_").replace(
        "attn.compressor.", "attn_compressor_"
    )
    for name, in_gguf, shape in (
        ("wkv.weight", "kv.weight", (rows, hidden)),
        ("wgate.weight", "gate.weight", (rows, hidden)),
        ("ape", "ape.weight", (ratio, rows)),
    ):
        for full in (f"layers.{place}{name}", f"model.layers.{place}{name}", f"blk.{gguf}{in_gguf}"):
            spec = model.tensors.get(full)
            if spec is not None and spec.shape != shape:
                raise TensorError(
                    "has a shape that contradicts the settings",
                    tensor=full,
                    code=ErrorCode.CONTRADICTION,
                    expected=list(shape),
                    found=list(spec.shape),
                    hint="The settings belong to another model, or one of the two files is damaged.",
                )


def _with_rope(settings: dict[str, Any], parameters: Any) -> dict[str, Any]:
    """Return the settings with the rotations that Transformers has under names of their own."""
    if not isinstance(parameters, dict) or not all(isinstance(parameters.get(name), dict) for name in ROPES):
        return settings
    main, compress = (parameters[name] for name in ROPES)
    own = ("rope_theta", "partial_rotary_factor", "attention_factor")
    scaling = {name: value for name, value in compress.items() if name not in own}
    scaled = scaling.get("rope_type", scaling.get("type", "default")) != "default"
    settings |= {"rope_theta": main.get("rope_theta", 10000.0), "rope_scaling": scaling if scaled else None}
    if "rope_theta" in compress:
        settings["compress_rope_theta"] = compress["rope_theta"]
    return settings


ROPES = ("main", "compress")
