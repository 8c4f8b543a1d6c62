"""`config.json` of published models of 2022 to 2024 with small sizes: keys, values and spelling are the models' own."""

from __future__ import annotations

from typing import Any

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64}
GROUPS = {**SIZES, "intermediate_size": 48, "num_key_value_heads": 2, "max_position_embeddings": 512}
FALCON = {
    **SIZES, "alibi": False, "apply_residual_connection_post_layernorm": False, "architectures": ["FalconForCausalLM"],
    "attention_dropout": 0.0, "bias": False, "bos_token_id": 11, "eos_token_id": 11, "hidden_dropout": 0.0,
    "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "falcon", "multi_query": True,
    "new_decoder_architecture": False, "parallel_attn": True, "use_cache": True,
}  # fmt: skip
NEOX = {
    **SIZES, "architectures": ["GPTNeoXForCausalLM"], "bos_token_id": 0, "eos_token_id": 0, "hidden_act": "gelu",
    "initializer_range": 0.02, "intermediate_size": 128, "layer_norm_eps": 1e-05, "max_position_embeddings": 512,
    "model_type": "gpt_neox", "rotary_emb_base": 10000, "rotary_pct": 0.25, "tie_word_embeddings": False,
    "use_cache": True, "use_parallel_residual": True,
}  # fmt: skip
STABLELM = {
    **GROUPS, "architectures": ["StableLmForCausalLM"], "hidden_act": "silu", "initializer_range": 0.02,
    "layer_norm_eps": 1e-05, "model_type": "stablelm", "partial_rotary_factor": 0.25, "rope_theta": 10000,
    "tie_word_embeddings": False, "use_cache": True, "use_qkv_bias": True,
}  # fmt: skip
PUBLISHED: dict[str, tuple[str, dict[str, Any]]] = {
    "falcon-7b": ("falcon", FALCON),
    "falcon-40b": ("falcon", {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2}),
    "falcon-11B": ("falcon", {
        **FALCON, "activation": "gelu", "ff_factor": 4, "ffn_hidden_size": 96, "max_position_embeddings": 512,
        "new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1, "rope_scaling": None,
        "rope_theta": 500042.0, "tie_word_embeddings": False,
    }),
    "pythia-70m": ("gpt_neox", NEOX),
    "gpt-neox-20b": ("gpt_neox", {**NEOX, "hidden_act": "gelu_fast", "attention_probs_dropout_prob": 0}),
    "phi-2": ("phi", {
        **GROUPS, "num_key_value_heads": 4, "architectures": ["PhiForCausalLM"], "attention_dropout": 0.0,
        "embd_pdrop": 0.0, "hidden_act": "gelu_new", "initializer_range": 0.02, "layer_norm_eps": 1e-05,
        "model_type": "phi", "partial_rotary_factor": 0.5, "qk_layernorm": False, "resid_pdrop": 0.1,
        "rope_scaling": None, "rope_theta": 10000.0, "tie_word_embeddings": False, "use_cache": True,
    }),
    "stablelm-2-1_6b": ("stablelm", STABLELM),
    "stablelm-3b-4e1t": ("stablelm", {**STABLELM, "use_qkv_bias": False}),
    "internlm2-7b": ("internlm2", {
        **GROUPS, "architectures": ["InternLM2ForCausalLM"], "attn_implementation": "eager", "bias": False,
        "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "initializer_range": 0.02,
        "model_type": "internlm2", "pad_token_id": 2, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
        "rope_scaling": {"factor": 2.0, "type": "dynamic"}, "rope_theta": 1000000, "tie_word_embeddings": False,
    }),
    "internlm3-8b-instruct": ("internlm3", {
        **GROUPS, "architectures": ["InternLM3ForCausalLM"], "attention_dropout": 0.0, "bias": False, "head_dim": 8,
        "hidden_act": "silu", "model_type": "internlm3", "qkv_bias": False, "rms_norm_eps": 1e-05,
        "rope_scaling": {"factor": 6.0, "rope_type": "dynamic"}, "rope_theta": 50000000, "tie_word_embeddings": False,
    }),
    "bloom-560m": ("bloom", {
        "apply_residual_connection_post_layernorm": False, "architectures": ["BloomForCausalLM"],
        "attention_dropout": 0.0, "attention_softmax_in_fp32": True, "bias_dropout_fusion": True, "bos_token_id": 1,
        "eos_token_id": 2, "pad_token_id": 3, "hidden_dropout": 0.0, "initializer_range": 0.02,
        "layer_norm_epsilon": 1e-05, "masked_softmax_fusion": True, "model_type": "bloom", "n_embed": 32,
        "n_inner": None, "n_layer": 2, "num_attention_heads": 4, "offset_alibi": 100, "pretraining_tp": 1,
        "seq_length": 512, "skip_bias_add": True, "vocab_size": 64,
    }),
    "mpt-7b": ("mpt", {
        "architectures": ["MPTForCausalLM"], "attn_config": {
            "alibi": True, "alibi_bias_max": 8, "attn_impl": "torch", "attn_pdrop": 0,
            "attn_type": "multihead_attention", "attn_uses_sequence_id": False, "clip_qkv": None, "prefix_lm": False,
            "qk_ln": False, "softmax_scale": None,
        },
        "d_model": 32, "emb_pdrop": 0, "embedding_fraction": 1.0, "expansion_ratio": 4, "init_device": "cpu",
        "learned_pos_emb": True, "logit_scale": None, "max_seq_len": 512, "model_type": "mpt", "n_heads": 4,
        "n_layers": 2, "no_bias": True, "norm_type": "low_precision_layernorm", "resid_pdrop": 0, "use_cache": False,
        "verbose": 0, "vocab_size": 64,
    }),
    "Nemotron-Mini-4B-Instruct": ("nemotron", {
        **GROUPS, "architectures": ["NemotronForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "head_dim": 8, "hidden_act": "relu2", "initializer_range": 0.0134, "mlp_bias": False,
        "model_type": "nemotron", "norm_eps": 1e-05, "partial_rotary_factor": 0.5, "rope_theta": 10000,
        "tie_word_embeddings": False, "use_cache": True,
    }),
    "OLMo-1B-hf": ("olmo", {
        **GROUPS, "num_key_value_heads": 4, "architectures": ["OlmoForCausalLM"], "attention_bias": False,
        "clip_qkv": None, "hidden_act": "silu", "model_type": "olmo", "pad_token_id": 1, "rope_scaling": None,
        "rope_theta": 10000.0, "tie_word_embeddings": True,
    }),
    "starcoderbase": ("gpt_bigcode", {
        "activation_function": "gelu_pytorch_tanh", "architectures": ["GPTBigCodeForCausalLM"],
        "attention_softmax_in_fp32": True, "attn_pdrop": 0.1, "bos_token_id": 0, "embd_pdrop": 0.1, "eos_token_id": 0,
        "inference_runner": 0, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "gpt_bigcode",
        "multi_query": True, "n_embd": 32, "n_head": 4, "n_inner": 128, "n_layer": 2, "n_positions": 512,
        "scale_attention_softmax_in_fp32": True, "scale_attn_weights": True, "use_cache": True, "vocab_size": 64,
    }),
    "CodeShell-7B": ("codeshell", {
        "activation_function": "gelu_pytorch_tanh", "architectures": ["CodeShellForCausalLM"], "attn_pdrop": 0.1,
        "embd_pdrop": 0.1, "group_query_attention": True, "layer_norm_epsilon": 1e-05, "model_type": "codeshell",
        "n_embd": 32, "n_head": 4, "n_inner": 128, "n_layer": 2, "n_positions": 512, "num_query_groups": 2,
        "position_embedding_type": "rope", "rope_scaling": None, "scale_attn_weights": True,
        "tie_word_embeddings": False,
        "vocab_size": 64,
    }),
    "EXAONE-3.5-2.4B-Instruct": ("exaone", {
        "activation_function": "silu", "architectures": ["ExaoneForCausalLM"], "attention_dropout": 0.0,
        "embed_dropout": 0.0, "head_dim": 8, "hidden_size": 32, "initializer_range": 0.02, "intermediate_size": 48,
        "layer_norm_epsilon": 1e-05, "max_position_embeddings": 512, "model_type": "exaone",
        "num_attention_heads": 4, "num_key_value_heads": 2, "num_layers": 2, "rope_theta": 1000000, "rope_scaling": {
            "factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        "tie_word_embeddings": True, "vocab_size": 64,
    }),
    "Orion-14B-Base": ("orion", {
        **GROUPS, "num_key_value_heads": 4, "architectures": ["OrionForCausalLM"], "attention_bias": False,
        "hidden_act": "silu", "max_sequence_length": 512, "model_type": "orion", "pretraining_tp": 1,
        "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 10000.0, "tie_word_embeddings": False,
    }),
    "XVERSE-7B": ("xverse", {
        **GROUPS, "num_key_value_heads": 4, "architectures": ["XverseForCausalLM"], "hidden_act": "silu",
        "model_type": "xverse", "rms_norm_eps": 1e-06, "rope_theta": 500000, "tie_word_embeddings": False,
    }),
    "MiniCPM-2B-sft-bf16": ("minicpm", {
        **GROUPS, "num_key_value_heads": 4, "architectures": ["MiniCPMForCausalLM"], "dim_model_base": 8,
        "hidden_act": "silu", "model_type": "minicpm", "rms_norm_eps": 1e-05, "rope_scaling": None,
        "scale_depth": 1.4, "scale_emb": 12,
    }),
    "Phi-4-multimodal-instruct": ("phi4_multimodal", {
        **GROUPS, "architectures": ["Phi4MMForCausalLM"], "attention_bias": False, "audio_processor": {"name": "x"},
        "embd_layer": {"embedding_cls": "image_audio"}, "full_attn_mod": 1, "hidden_act": "silu",
        "img_processor": None, "interpolate_factor": 1, "lm_head_bias": False, "mlp_bias": False,
        "model_type": "phi4mm", "original_max_position_embeddings": 256, "partial_rotary_factor": 0.75,
        "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 262144, "speech_lora": {"r": 320},
        "rope_scaling": {"long_factor": [1.0, 2.0, 3.0], "short_factor": [1.0, 1.0, 1.5], "type": "longrope"},
        "tie_word_embeddings": True, "vision_lora": {"r": 256},
    }),
}  # fmt: skip
"""Model -> its family, and its config."""
