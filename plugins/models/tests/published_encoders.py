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
PUBLISHED: dict[str, tuple[str, dict[str, Any]]] = {
    "all-MiniLM-L6-v2": ("bert", BERT),
    "bge-small-en-v1.5": ("bert", {**BERT, **ONE, "_name_or_path": "/root/.cache/bge-small-en", "torch_dtype": "float32"}),
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
}  # fmt: skip
