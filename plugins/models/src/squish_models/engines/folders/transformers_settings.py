"""Settings of Transformers' configuration classes, with their types and defaults, as of release 5.23.

Transformers refuses a value of another type, and uses the default for a missing setting. mlx-lm loads
tokenizers with Transformers, which reads `config.json` for that, so it refuses the same types.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from attrs import frozen

TEXT, VISION = "text_config", "vision_config"


@frozen
class Setting:
    """The JSON types of a setting ("int", "float", "bool", "str", "dict", "list[int]", "null"), and its default."""

    types: tuple[str, ...]
    default: Any


@cache
def settings_of(model_type: str, part: str = "") -> Mapping[str, Setting] | None:
    """Return the settings of a model type, or of a part of its config.json; None for an unknown one."""
    name = f"{model_type} {part}".strip()
    text = _CLASSES.get(_SAME.get(name, name))
    if text is None:
        return None
    settings = {}
    for entry in text.split():
        key, _, rest = entry.partition(":")
        types, _, default = rest.partition("=")
        settings[key] = Setting(tuple(types.split("|")), json.loads(default))
    return settings


_SAME = {"gemma3 text_config": "gemma3_text", "gemma4 text_config": "gemma4_text"}
_CLASSES = {
    "llama": """
        vocab_size:int=32000 hidden_size:int=4096 intermediate_size:int=11008 num_hidden_layers:int=32
        num_attention_heads:int=32 num_key_value_heads:int|null=null hidden_act:str="silu"
        max_position_embeddings:int=2048 initializer_range:float=0.02 rms_norm_eps:float=1e-06 use_cache:bool=true
        pad_token_id:int|null=null bos_token_id:int|null=1 eos_token_id:int|list[int]|null=2 pretraining_tp:int|null=1
        tie_word_embeddings:bool=false rope_parameters:dict|null=null attention_bias:bool=false
        attention_dropout:float|int|null=0.0 mlp_bias:bool=false head_dim:int|null=null
    """,
    "mistral": """
        vocab_size:int=32000 hidden_size:int=4096 intermediate_size:int=14336 num_hidden_layers:int=32
        num_attention_heads:int=32 num_key_value_heads:int=8 head_dim:int|null=null hidden_act:str="silu"
        max_position_embeddings:int=131072 initializer_range:float=0.02 rms_norm_eps:float=1e-06 use_cache:bool=true
        pad_token_id:int|null=null bos_token_id:int|null=1 eos_token_id:int|list[int]|null=2
        tie_word_embeddings:bool=false rope_parameters:dict|null=null sliding_window:int|null=4096
        attention_dropout:float|int=0.0
    """,
    "mixtral": """
        vocab_size:int=32000 hidden_size:int=4096 intermediate_size:int=14336 num_hidden_layers:int=32
        num_attention_heads:int=32 num_key_value_heads:int=8 head_dim:int|null=null hidden_act:str="silu"
        max_position_embeddings:int=131072 initializer_range:float=0.02 rms_norm_eps:float=1e-05 use_cache:bool=true
        pad_token_id:int|null=null bos_token_id:int|null=1 eos_token_id:int|list[int]|null=2
        tie_word_embeddings:bool=false sliding_window:int|null=null attention_dropout:float|int=0.0
        num_experts_per_tok:int=2 num_local_experts:int=8 output_router_logits:bool=false
        router_aux_loss_coef:float=0.001 router_jitter_noise:float=0.0 rope_parameters:dict|null=null
    """,
    "granite": """
        vocab_size:int=32000 hidden_size:int=4096 intermediate_size:int=11008 num_hidden_layers:int=32
        num_attention_heads:int=32 num_key_value_heads:int|null=null hidden_act:str="silu"
        max_position_embeddings:int=2048 initializer_range:float=0.02 rms_norm_eps:float=1e-06 use_cache:bool=true
        pad_token_id:int|null=null bos_token_id:int|null=1 eos_token_id:int|list[int]|null=2
        tie_word_embeddings:bool=false rope_parameters:dict|null=null attention_bias:bool=false
        attention_dropout:float|int=0.0 mlp_bias:bool=false embedding_multiplier:float|int=1.0
        logits_scaling:float|int=1.0 residual_multiplier:float|int=1.0 attention_multiplier:float|int=1.0
    """,
    "qwen2": """
        vocab_size:int=151936 hidden_size:int=4096 intermediate_size:int=22016 num_hidden_layers:int=32
        num_attention_heads:int=32 num_key_value_heads:int|null=32 hidden_act:str="silu"
        max_position_embeddings:int=32768 initializer_range:float=0.02 rms_norm_eps:float=1e-06 use_cache:bool=true
        tie_word_embeddings:bool=false rope_parameters:dict|null=null use_sliding_window:bool=false
        sliding_window:int|null=4096 max_window_layers:int=28 layer_types:list[str]|null=null
        attention_dropout:float|int=0.0 pad_token_id:int|null=null bos_token_id:int|null=null
        eos_token_id:int|list[int]|null=null
    """,
    "qwen3": """
        vocab_size:int=151936 hidden_size:int=4096 intermediate_size:int=22016 num_hidden_layers:int=32
        num_attention_heads:int=32 num_key_value_heads:int|null=32 head_dim:int=128 hidden_act:str="silu"
        max_position_embeddings:int=32768 initializer_range:float=0.02 rms_norm_eps:float=1e-06 use_cache:bool=true
        tie_word_embeddings:bool=false rope_parameters:dict|null=null attention_bias:bool=false
        use_sliding_window:bool=false sliding_window:int|null=4096 max_window_layers:int=28
        layer_types:list[str]|null=null attention_dropout:float|int=0.0 pad_token_id:int|null=null
        bos_token_id:int|null=null eos_token_id:int|list[int]|null=null
    """,
    "qwen3_moe": """
        vocab_size:int=151936 hidden_size:int=2048 intermediate_size:int=6144 num_hidden_layers:int=24
        num_attention_heads:int=32 num_key_value_heads:int=4 hidden_act:str="silu" max_position_embeddings:int=32768
        initializer_range:float=0.02 rms_norm_eps:float=1e-06 use_cache:bool=true tie_word_embeddings:bool=false
        rope_parameters:dict|null=null attention_bias:bool=false use_sliding_window:bool=false
        sliding_window:int|null=4096 attention_dropout:float|int=0.0 decoder_sparse_step:int=1
        moe_intermediate_size:int=768 num_experts_per_tok:int=8 num_experts:int=128 norm_topk_prob:bool=false
        output_router_logits:bool=false router_aux_loss_coef:float=0.001 mlp_only_layers:list[int]|null=null
        pad_token_id:int|null=null bos_token_id:int|null=null eos_token_id:int|list[int]|null=null
    """,
    "gemma2": """
        vocab_size:int=256000 hidden_size:int=2304 intermediate_size:int=9216 num_hidden_layers:int=26
        num_attention_heads:int=8 num_key_value_heads:int=4 head_dim:int=256 hidden_activation:str="gelu_pytorch_tanh"
        max_position_embeddings:int=8192 initializer_range:float=0.02 rms_norm_eps:float=1e-06 use_cache:bool=true
        pad_token_id:int|null=0 eos_token_id:int|list[int]|null=1 bos_token_id:int|null=2 tie_word_embeddings:bool=true
        rope_parameters:dict|null=null attention_bias:bool=false attention_dropout:float|int|null=0.0
        query_pre_attn_scalar:int=256 sliding_window:int|null=4096 layer_types:list[str]|null=null
        final_logit_softcapping:float|null=30.0 attn_logit_softcapping:float|null=50.0
        use_bidirectional_attention:bool|null=null
    """,
    "gemma3_text": """
        vocab_size:int=262208 hidden_size:int=2304 intermediate_size:int=9216 num_hidden_layers:int=26
        num_attention_heads:int=8 num_key_value_heads:int=4 head_dim:int=256 hidden_activation:str="gelu_pytorch_tanh"
        max_position_embeddings:int=131072 initializer_range:float=0.02 rms_norm_eps:float=1e-06 use_cache:bool=true
        pad_token_id:int|null=0 eos_token_id:int|list[int]|null=1 bos_token_id:int|null=2 tie_word_embeddings:bool=true
        rope_parameters:dict|null=null attention_bias:bool=false attention_dropout:float|int|null=0.0
        query_pre_attn_scalar:int=256 sliding_window:int|null=4096 layer_types:list[str]|null=null
        final_logit_softcapping:float|null=null attn_logit_softcapping:float|null=null
        use_bidirectional_attention:bool|null=false
    """,
    "gemma4_text": """
        vocab_size:int=262144 hidden_size:int=2304 intermediate_size:int=9216 num_hidden_layers:int=30
        num_attention_heads:int=8 num_key_value_heads:int=4 head_dim:int=256 hidden_activation:str="gelu_pytorch_tanh"
        max_position_embeddings:int=131072 initializer_range:float=0.02 rms_norm_eps:float=1e-06 use_cache:bool=true
        pad_token_id:int|null=0 eos_token_id:int|list[int]|null=1 bos_token_id:int|null=2 tie_word_embeddings:bool=true
        rope_parameters:dict|null=null attention_bias:bool=false attention_dropout:int|float|null=0.0
        sliding_window:int=512 layer_types:list[str]|null=null final_logit_softcapping:float|null=null
        use_bidirectional_attention:str|null=null vocab_size_per_layer_input:int=262144
        hidden_size_per_layer_input:int=256 attention_k_eq_v:bool=false num_kv_shared_layers:int=0
        enable_moe_block:bool=false use_double_wide_mlp:bool=false num_experts:int|null=null
        top_k_experts:int|null=null moe_intermediate_size:int|null=null
    """,
    "phi3": """
        vocab_size:int=32064 hidden_size:int=3072 intermediate_size:int=8192 num_hidden_layers:int=32
        num_attention_heads:int=32 num_key_value_heads:int|null=null resid_pdrop:float|int=0.0 embd_pdrop:float|int=0.0
        attention_dropout:float|int=0.0 hidden_act:str="silu" max_position_embeddings:int=4096
        original_max_position_embeddings:int=4096 initializer_range:float=0.02 rms_norm_eps:float=1e-05
        use_cache:bool=true tie_word_embeddings:bool=false rope_parameters:dict|null=null bos_token_id:int|null=1
        eos_token_id:int|list[int]|null=32000 pad_token_id:int|null=32000 sliding_window:int|null=null
    """,
    "olmo2": """
        vocab_size:int=50304 hidden_size:int=4096 intermediate_size:int=11008 num_hidden_layers:int=32
        num_attention_heads:int=32 num_key_value_heads:int|null=null hidden_act:str="silu"
        max_position_embeddings:int=2048 initializer_range:float=0.02 use_cache:bool=true pad_token_id:int|null=1
        bos_token_id:int|null=null eos_token_id:int|list[int]|null=50279 tie_word_embeddings:bool=false
        rope_parameters:dict|null=null attention_bias:bool=false attention_dropout:float|int=0.0
        rms_norm_eps:float=1e-05
    """,
    "glm4": """
        vocab_size:int=151552 hidden_size:int=4096 intermediate_size:int=13696 num_hidden_layers:int=40
        num_attention_heads:int=32 num_key_value_heads:int=2 head_dim:int=128 hidden_act:str="silu"
        attention_dropout:float|int=0.0 max_position_embeddings:int=131072 initializer_range:float=0.02
        rms_norm_eps:float=1.5625e-07 use_cache:bool=true tie_word_embeddings:bool=false rope_parameters:dict|null=null
        pad_token_id:int|null=151329 eos_token_id:int|list[int]|null=null bos_token_id:int|null=null
        attention_bias:bool=true
    """,
    "starcoder2": """
        vocab_size:int=49152 hidden_size:int=3072 intermediate_size:int=12288 num_hidden_layers:int=30
        num_attention_heads:int=24 num_key_value_heads:int=2 hidden_act:str="gelu_pytorch_tanh"
        max_position_embeddings:int=4096 initializer_range:float=0.018042 norm_epsilon:float=1e-05 use_cache:bool=true
        bos_token_id:int|null=50256 eos_token_id:int|list[int]|null=50256 pad_token_id:int|null=null
        rope_parameters:dict|null=null sliding_window:int|null=null attention_dropout:float|int=0.0
        residual_dropout:float|int=0.0 embedding_dropout:float|int=0.0 use_bias:bool=true tie_word_embeddings:bool=true
    """,
    "deepseek_v2": """
        vocab_size:int=102400 hidden_size:int=4096 intermediate_size:int=11008 num_hidden_layers:int=32
        num_attention_heads:int=32 num_key_value_heads:int|null=null hidden_act:str="silu"
        max_position_embeddings:int=2048 initializer_range:float=0.02 rms_norm_eps:float=1e-06 use_cache:bool=true
        pad_token_id:int|null=null bos_token_id:int|null=1 eos_token_id:int|list[int]|null=2 pretraining_tp:int|null=1
        tie_word_embeddings:bool=false rope_parameters:dict|null=null attention_bias:bool=false
        attention_dropout:float|null=0.0 mlp_bias:bool=false head_dim:int|null=null first_k_dense_replace:int=0
        kv_lora_rank:int=512 q_lora_rank:int|null=1536 n_group:int|null=null n_routed_experts:int=64
        output_router_logits:bool=false n_shared_experts:int=2 qk_nope_head_dim:int=128 qk_rope_head_dim:int=64
        routed_scaling_factor:float=1.0 topk_group:int|null=null topk_method:null|str="greedy"
        norm_topk_prob:bool|null=false v_head_dim:int=128 num_experts_per_tok:int|null=null
        moe_intermediate_size:int=1407
    """,
    "deepseek_v3": """
        vocab_size:int=129280 hidden_size:int=7168 intermediate_size:int=18432 moe_intermediate_size:int=2048
        num_hidden_layers:int=61 num_attention_heads:int=128 num_key_value_heads:int|null=128 n_shared_experts:int=1
        n_routed_experts:int=256 output_router_logits:bool=false routed_scaling_factor:float=2.5 kv_lora_rank:int=512
        q_lora_rank:int|null=1536 qk_rope_head_dim:int=64 v_head_dim:int|null=128 qk_nope_head_dim:int=128
        n_group:int|null=8 topk_group:int|null=4 num_experts_per_tok:int|null=8 first_k_dense_replace:int|null=3
        norm_topk_prob:bool|null=true hidden_act:str="silu" max_position_embeddings:int=4096
        initializer_range:float=0.02 rms_norm_eps:float=1e-06 use_cache:bool=true pad_token_id:int|null=null
        bos_token_id:int|null=0 eos_token_id:int|list[int]|null=1 pretraining_tp:int|null=1
        tie_word_embeddings:bool=false rope_parameters:dict|null=null rope_interleave:bool|null=true
        attention_bias:bool=false attention_dropout:float|int|null=0.0 num_mtp_layers:int=1
    """,
    "gpt2": """
        vocab_size:int=50257 n_positions:int=1024 n_embd:int=768 n_layer:int=12 n_head:int=12 n_inner:int|null=null
        activation_function:str="gelu_new" resid_pdrop:float|int=0.1 embd_pdrop:float|int=0.1 attn_pdrop:float|int=0.1
        layer_norm_epsilon:float=1e-05 initializer_range:float=0.02 summary_type:str="cls_index"
        summary_use_proj:bool=true summary_activation:null|str=null summary_proj_to_labels:bool=true
        summary_first_dropout:float|int=0.1 scale_attn_weights:bool=true use_cache:bool=true bos_token_id:int|null=50256
        eos_token_id:int|list[int]|null=50256 pad_token_id:int|null=null scale_attn_by_inverse_layer_idx:bool=false
        reorder_and_upcast_attn:bool=false add_cross_attention:bool=false tie_word_embeddings:bool=true
    """,
    "gpt_oss": """
        num_hidden_layers:int=36 num_local_experts:int=128 vocab_size:int=201088 hidden_size:int=2880
        intermediate_size:int=2880 head_dim:int=64 num_attention_heads:int=64 num_key_value_heads:int=8
        sliding_window:int|null=128 tie_word_embeddings:bool=false hidden_act:str="silu" initializer_range:float=0.02
        max_position_embeddings:int=131072 rms_norm_eps:float=1e-05 rope_parameters:dict|null=null
        attention_dropout:float|int=0.0 num_experts_per_tok:int=4 swiglu_alpha:float=1.702 swiglu_limit:float=7.0
        router_aux_loss_coef:float=0.001 output_router_logits:bool=false use_cache:bool=true
        layer_types:list[str]|null=null pad_token_id:int|null=null bos_token_id:int|null=null
        eos_token_id:int|list[int]|null=null attention_bias:bool=true
    """,
    "lfm2": """
        vocab_size:int=65536 hidden_size:int=2560 intermediate_size:int=12288 num_hidden_layers:int=32
        num_attention_heads:int=32 num_key_value_heads:int=8 max_position_embeddings:int=128000
        initializer_range:float=0.02 norm_eps:float=1e-05 use_cache:bool=true pad_token_id:int|null=0
        bos_token_id:int|null=1 eos_token_id:int|list[int]|null=2 tie_word_embeddings:bool=true
        rope_parameters:dict|null=null conv_bias:bool=false conv_L_cache:int=3 block_multiple_of:int=256
        block_ffn_dim_multiplier:float|int=1.0 block_auto_adjust_ff_dim:bool=true full_attn_idxs:list[int]|null=null
        layer_types:list[str]|null=null
    """,
    "qwen2_vl": """
        text_config:dict|null=null vision_config:dict|null=null image_token_id:int=151655 video_token_id:int=151656
        vision_start_token_id:int=151652 vision_end_token_id:int=151653 tie_word_embeddings:bool=false
    """,
    "qwen2_vl text_config": """
        vocab_size:int=152064 hidden_size:int=8192 intermediate_size:int=29568 num_hidden_layers:int=80
        num_attention_heads:int=64 num_key_value_heads:int|null=8 hidden_act:str="silu"
        max_position_embeddings:int=32768 initializer_range:float=0.02 rms_norm_eps:float=1e-05 use_cache:bool=true
        use_sliding_window:bool|null=false sliding_window:int|null=4096 max_window_layers:int|null=80
        layer_types:list[str]|null=null attention_dropout:float|int|null=0.0 rope_parameters:dict|null=null
        bos_token_id:int|null=151643 eos_token_id:int|list[int]|null=151645 pad_token_id:int|null=null
    """,
    "qwen2_vl vision_config": """
        depth:int=32 embed_dim:int=1280 hidden_size:int=3584 hidden_act:str="quick_gelu" mlp_ratio:int=4
        num_heads:int=16 in_channels:int=3 patch_size:int|list[int]=14 spatial_merge_size:int=2
        temporal_patch_size:int|list[int]=2 initializer_range:float=0.02 rope_parameters:dict|null=null
    """,
    "qwen2_5_vl": """
        text_config:dict|null=null vision_config:dict|null=null image_token_id:int=151655 video_token_id:int=151656
        vision_start_token_id:int=151652 vision_end_token_id:int=151653 tie_word_embeddings:bool=false
    """,
    "qwen2_5_vl text_config": """
        vocab_size:int=152064 hidden_size:int=8192 intermediate_size:int=29568 num_hidden_layers:int=80
        num_attention_heads:int=64 num_key_value_heads:int|null=8 hidden_act:str="silu"
        max_position_embeddings:int=32768 initializer_range:float=0.02 rms_norm_eps:float=1e-05 use_cache:bool=true
        use_sliding_window:bool|null=false sliding_window:int|null=4096 max_window_layers:int|null=80
        layer_types:list[str]|null=null attention_dropout:float|int|null=0.0 rope_parameters:dict|null=null
        bos_token_id:int|null=151643 eos_token_id:int|list[int]|null=151645 pad_token_id:int|null=null
    """,
    "qwen2_5_vl vision_config": """
        depth:int=32 hidden_size:int=3584 hidden_act:str="silu" intermediate_size:int=3420 num_heads:int=16
        in_channels:int=3 patch_size:int|list[int]=14 spatial_merge_size:int=2 temporal_patch_size:int|list[int]=2
        tokens_per_second:int=4 window_size:int=112 out_hidden_size:int=3584
        fullatt_block_indexes:list[int]=[7,15,23,31] initializer_range:float=0.02 rope_parameters:dict|null=null
    """,
    "gemma3": """
        text_config:dict|null=null vision_config:dict|null=null mm_tokens_per_image:int|null=256
        boi_token_index:int|null=255999 eoi_token_index:int|null=256000 image_token_index:int|null=262144
        initializer_range:float|null=0.02 tie_word_embeddings:bool|null=true
    """,
    "gemma3 vision_config": """
        hidden_size:int=768 intermediate_size:int=3072 num_hidden_layers:int=12 num_attention_heads:int=12
        num_channels:int=3 image_size:int|list[int]=224 patch_size:int|list[int]=16 hidden_act:str="gelu_pytorch_tanh"
        layer_norm_eps:float=1e-06 attention_dropout:float|int=0.0 vision_use_head:bool=true
    """,
}
