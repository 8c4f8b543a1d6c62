"""`config.json` of published encoders that are like decoders, with small sizes: the spelling is the models' own."""

from __future__ import annotations

from typing import Any

from published_parts import SIZES

MODERNBERT = {
    **{name: value for name, value in SIZES.items() if name != "num_key_value_heads"}, "attention_bias": False,
    "attention_dropout": 0.0, "bos_token_id": 60, "classifier_activation": "gelu", "classifier_bias": False,
    "classifier_dropout": 0.0, "classifier_pooling": "mean", "cls_token_id": 60, "decoder_bias": True,
    "deterministic_flash_attn": False, "embedding_dropout": 0.0, "eos_token_id": 61, "global_attn_every_n_layers": 3,
    "global_rope_theta": 160000.0, "gradient_checkpointing": False, "hidden_activation": "gelu",
    "initializer_cutoff_factor": 2.0, "initializer_range": 0.02, "layer_norm_eps": 1e-05, "local_attention": 128,
    "local_rope_theta": 10000.0, "mlp_bias": False, "mlp_dropout": 0.0, "model_type": "modernbert",
    "norm_bias": False, "norm_eps": 1e-05, "pad_token_id": 62, "position_embedding_type": "absolute",
    "sep_token_id": 61, "tie_word_embeddings": True, "transformers_version": "4.48.0",
}  # fmt: skip
T5 = {
    "architectures": ["T5EncoderModel"], "classifier_dropout": 0.0, "d_ff": 48, "d_kv": 8, "d_model": 32,
    "decoder_start_token_id": 0, "dense_act_fn": "gelu_new", "dropout_rate": 0.1, "eos_token_id": 1,
    "feed_forward_proj": "gated-gelu", "initializer_factor": 1.0, "is_encoder_decoder": True, "is_gated_act": True,
    "layer_norm_epsilon": 1e-06, "model_type": "t5", "num_decoder_layers": 4, "num_heads": 3, "num_layers": 4,
    "output_past": True, "pad_token_id": 0, "relative_attention_max_distance": 128,
    "relative_attention_num_buckets": 16, "tie_word_embeddings": False, "use_cache": True, "vocab_size": 64,
}  # fmt: skip
PUBLISHED: dict[str, tuple[str, dict[str, Any]]] = {
    "embeddinggemma-300m": ("embeddinggemma", {
        **SIZES, "_sliding_window_pattern": 6, "architectures": ["Gemma3TextModel"], "attention_bias": False,
        "attention_dropout": 0.0, "attn_logit_softcapping": None, "dtype": "bfloat16", "eos_token_id": 1,
        "final_logit_softcapping": None, "head_dim": 16, "hidden_activation": "gelu_pytorch_tanh",
        "initializer_range": 0.02, "layer_types": ["sliding_attention"] * 4, "model_type": "gemma3_text",
        "num_key_value_heads": 1, "query_pre_attn_scalar": 16, "rms_norm_eps": 1e-06,
        "rope_local_base_freq": 10000.0, "rope_scaling": None, "rope_theta": 1000000.0, "sliding_window": 64,
        "transformers_version": "4.57.0.dev0", "use_bidirectional_attention": True, "use_cache": True,
    }),
    "ModernBERT-base": ("modernbert", {**MODERNBERT, "architectures": ["ModernBertForMaskedLM"]}),
    "granite-embedding-97m-multilingual-r2": ("modernbert", {
        **{name: value for name, value in MODERNBERT.items() if not name.endswith("_rope_theta")},
        "architectures": ["ModernBertModel"], "hidden_activation": "silu",
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
        "rope_parameters": {
            "full_attention": {"rope_theta": 150000.0, "rope_type": "default"},
            "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
        },
    }),
    "gte-reranker-modernbert-base": ("modernbert_classifier", {
        **MODERNBERT, "architectures": ["ModernBertForSequenceClassification"], "id2label": {"0": "LABEL_0"},
        "label2id": {"LABEL_0": 0},
    }),
    "EuroBERT-210m": ("eurobert", {
        **SIZES, "architectures": ["EuroBertForMaskedLM"], "attention_bias": False, "attention_dropout": 0.0,
        "bos_token": "<|begin_of_text|>", "bos_token_id": 60, "clf_pooling": "late", "eos_token": "<|end_of_text|>",
        "eos_token_id": 61, "head_dim": 8, "hidden_act": "silu", "hidden_dropout": 0.0, "initializer_range": 0.02,
        "mask_token": "<|mask|>", "mask_token_id": 62, "mlp_bias": False, "model_type": "eurobert",
        "num_key_value_heads": 4, "pad_token": "<|end_of_text|>", "pad_token_id": 61, "pretraining_tp": 1,
        "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 250000, "tie_word_embeddings": False,
        "use_cache": False,
    }),
    "jina-embeddings-v5-text-nano": ("eurobert", {
        **SIZES, "architectures": ["JinaEmbeddingsV5Model"],
        "task_names": ["retrieval", "text-matching", "clustering", "classification"],
        "auto_map": {
            "AutoConfig": "configuration_jina_embeddings_v5.JinaEmbeddingsV5Config",
            "AutoModel": "modeling_jina_embeddings_v5.JinaEmbeddingsV5Model",
        },
        "attention_bias": False, "attention_dropout": 0.0, "bos_token": "<|begin_of_text|>", "bos_token_id": 60,
        "eos_token": "<|end_of_text|>", "eos_token_id": 61, "pad_token": "<|end_of_text|>", "pad_token_id": 61,
        "mask_token": "<|mask|>", "mask_token_id": 62, "hidden_act": "silu", "hidden_dropout": 0.0,
        "initializer_range": 0.02, "model_type": "jina_embeddings_v5", "num_key_value_heads": 4, "pretraining_tp": 1,
        "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 1000000, "tie_word_embeddings": False,
        "torch_dtype": "float32", "transformers_version": "4.40.0.dev0", "is_decoder": False,
    }),
    "sentence-t5-base": ("t5_encoder", {
        **{name: value for name, value in T5.items() if name not in ("dense_act_fn", "is_gated_act", "output_past")},
        "feed_forward_proj": "relu", "n_positions": 512, "is_encoder_decoder": False,
    }),
    "FLUX.1-dev/text_encoder_2": ("t5_gated_encoder", T5),
    "Wan2.1-T2V-14B-Diffusers/text_encoder": ("umt5_encoder", {
        **T5, "architectures": ["UMT5EncoderModel"], "model_type": "umt5", "scalable_attention": True,
        "tokenizer_class": "T5Tokenizer",
    }),
}  # fmt: skip
"""Model -> its family, and its config."""
