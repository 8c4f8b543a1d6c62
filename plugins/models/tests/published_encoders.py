"""`config.json` of published encoders with small sizes: keys, values and spelling are the models' own."""

from __future__ import annotations

from typing import Any

SIZES = {
    "attention_probs_dropout_prob": 0.1, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 32,
    "initializer_range": 0.02, "intermediate_size": 48, "num_attention_heads": 4, "num_hidden_layers": 2,
    "position_embedding_type": "absolute", "use_cache": True, "vocab_size": 64,
}  # fmt: skip
BERT = {
    **SIZES, "architectures": ["BertModel"], "classifier_dropout": None, "gradient_checkpointing": False,
    "layer_norm_eps": 1e-12, "max_position_embeddings": 40, "model_type": "bert", "pad_token_id": 0,
    "type_vocab_size": 2,
}  # fmt: skip
ROBERTA = {
    **SIZES, "bos_token_id": 0, "classifier_dropout": None, "eos_token_id": 2, "layer_norm_eps": 1e-05,
    "max_position_embeddings": 42, "output_past": True, "pad_token_id": 1, "type_vocab_size": 1,
}  # fmt: skip
ONE = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
ENTAILMENT = {"0": "contradiction", "1": "entailment", "2": "neutral"}
FLASH = "jinaai/xlm-roberta-flash-implementation"
TASKS = {
    "retrieval.query": "Represent the query for retrieving evidence documents: ",
    "retrieval.passage": "Represent the document for retrieval: ",
    "separation": "", "classification": "", "text-matching": "",
}  # fmt: skip
NOMIC = {
    "architectures": ["NomicBertModel"], "attn_pdrop": 0.0, "bos_token_id": None, "causal": False,
    "dense_seq_output": True, "embd_pdrop": 0.0, "eos_token_id": None, "fused_bias_fc": True,
    "fused_dropout_add_ln": True, "initializer_range": 0.02, "max_trained_positions": 2048, "model_type": "nomic_bert",
    "n_embd": 32, "n_head": 4, "n_inner": 48, "n_layer": 2, "pad_vocab_size_multiple": 64, "parallel_block": False,
    "parallel_block_tied_norm": False, "prenorm": False, "reorder_and_upcast_attn": False, "resid_pdrop": 0.0,
    "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False, "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None, "scale_attn_by_inverse_layer_idx": False, "scale_attn_weights": True,
    "summary_activation": None, "summary_first_dropout": 0.0, "summary_proj_to_labels": True,
    "summary_type": "cls_index", "summary_use_proj": True, "use_cache": True, "use_flash_attn": True,
    "use_rms_norm": False, "use_xentropy": True, "vocab_size": 64,
}  # fmt: skip
PUBLISHED: dict[str, tuple[str, dict[str, Any]]] = {
    "all-MiniLM-L6-v2": ("bert", BERT),
    "bge-small-en-v1.5": ("bert", {**BERT, **ONE, "_name_or_path": "bge-small-en"}),
    "bert-base-uncased": ("bert", {**BERT, "architectures": ["BertForMaskedLM"]}),
    "ms-marco-MiniLM-L6-v2": ("bert_classifier", {
        **BERT, **ONE, "architectures": ["BertForSequenceClassification"],
        "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity",
    }),
    "all-distilroberta-v1": ("roberta", {**ROBERTA, "architectures": ["RobertaForMaskedLM"], "model_type": "roberta"}),
    "nli-distilroberta-base": ("roberta_classifier", {
        **ROBERTA, "architectures": ["RobertaForSequenceClassification"], "model_type": "roberta",
        "id2label": ENTAILMENT, "label2id": {label: int(number) for number, label in ENTAILMENT.items()},
    }),
    "bge-m3": ("xlm_roberta", {
        **ROBERTA, "architectures": ["XLMRobertaModel"], "model_type": "xlm-roberta", "torch_dtype": "float32",
    }),
    "bge-reranker-v2-m3": ("xlm_roberta_classifier", {
        **ROBERTA, **ONE, "architectures": ["XLMRobertaForSequenceClassification"], "model_type": "xlm-roberta",
    }),
    "jina-embeddings-v2-small-en": ("jina_bert_v2", {
        **BERT, "architectures": ["JinaBertForMaskedLM"],
        "auto_map": {
            "AutoConfig": "jinaai/jina-bert-implementation--configuration_bert.JinaBertConfig",
            "AutoModel": "jinaai/jina-bert-implementation--modeling_bert.JinaBertModel",
        },
        "emb_pooler": "mean", "feed_forward_type": "geglu", "max_position_embeddings": 8192, "model_max_length": 8192,
        "position_embedding_type": "alibi",
    }),
    "jina-embeddings-v3": ("jina_bert_v3", {
        **ROBERTA, "architectures": ["XLMRobertaModel"],
        "auto_map": {
            "AutoConfig": f"{FLASH}--configuration_xlm_roberta.XLMRobertaFlashConfig",
            "AutoModel": f"{FLASH}--modeling_lora.XLMRobertaLoRA",
            "AutoModelForMaskedLM": f"{FLASH}--modeling_xlm_roberta.XLMRobertaForMaskedLM",
            "AutoModelForPreTraining": f"{FLASH}--modeling_xlm_roberta.XLMRobertaForPreTraining",
        },
        "emb_pooler": None, "load_trained_adapters": True, "lora_adaptations": [*TASKS], "task_instructions": TASKS,
        "lora_alpha": 1, "lora_dropout_p": 0.0, "lora_main_params_trainable": False, "lora_rank": 4,
        "matryoshka_dimensions": [8, 16, 32], "model_type": "xlm-roberta", "position_embedding_type": "rotary",
        "rotary_emb_base": 20000.0, "truncate_dim": None, "use_flash_attn": True, "use_reg_tokens": False,
    }),
    "nomic-embed-text-v1.5": ("nomic_bert", {
        **NOMIC, "activation_function": "swiglu", "layer_norm_epsilon": 1e-12, "mlp_fc1_bias": False,
        "mlp_fc2_bias": False, "n_positions": 8192, "qkv_proj_bias": False, "rotary_emb_base": 1000,
        "type_vocab_size": 2,
    }),
    "nomic-embed-text-v2-moe": ("nomic_bert_moe", {
        **NOMIC, "activation_function": "gelu", "add_pooling_layer": False, "expert_choice_router": False,
        "ffn_div": 1.0, "layer_norm_epsilon": 1e-05, "mlp_fc1_bias": True, "mlp_fc2_bias": True,
        "moe_every_n_layers": 2, "moe_impl": "megablocks", "moe_normalize_expert_weights": False,
        "moe_resid_pdrop": 0.0, "moe_top_k": 2, "n_positions": 2048, "num_experts": 8, "num_shared_experts": 0,
        "pad_token_id": 1, "qkv_proj_bias": True, "rotary_emb_base": 10000, "router_aux_loss_coef": 0.1,
        "type_vocab_size": 1, "use_head": False,
    }),
}  # fmt: skip
