"""Tiny seeded encoders in the spelling of published folders, with the modules of sentence-transformers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from . import families, peer

TRANSFORMERS = "sentence_transformers.models."
GEMMA_LAYERS = ["full_attention" if layer % 6 == 5 else "sliding_attention" for layer in range(7)]
BERT = {f"{name}_token": f"[{name.upper()}]" for name in ("cls", "sep", "mask", "pad", "unk")}
MODERNBERT = {
    "architectures": ["ModernBertModel"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 627,
    "classifier_activation": "gelu", "classifier_bias": False, "classifier_dropout": 0.0, "classifier_pooling": "mean",
    "cls_token_id": 627, "decoder_bias": True, "deterministic_flash_attn": False, "embedding_dropout": 0.0,
    "eos_token_id": 628, "global_attn_every_n_layers": 3, "global_rope_theta": 160000.0,
    "gradient_checkpointing": False, "hidden_activation": "gelu", "hidden_size": 64, "initializer_cutoff_factor": 2.0,
    "initializer_range": 0.02, "intermediate_size": 96, "layer_norm_eps": 1e-05, "local_attention": 16,
    "local_rope_theta": 10000.0, "max_position_embeddings": 512, "mlp_bias": False, "mlp_dropout": 0.0,
    "model_type": "modernbert", "norm_bias": False, "norm_eps": 1e-05, "num_attention_heads": 4,
    "num_hidden_layers": 5, "pad_token_id": 630, "position_embedding_type": "absolute",
    "repad_logits_with_grad": False, "sep_token_id": 628, "sparse_pred_ignore_index": -100,
    "sparse_prediction": False, "torch_dtype": "float32", "transformers_version": "4.48.0", "vocab_size": 640,
}  # fmt: skip
EUROBERT = {
    "architectures": ["EuroBertModel"], "attention_bias": False, "attention_dropout": 0.0,
    "bos_token": "<|begin_of_text|>", "bos_token_id": 629, "clf_pooling": "late", "eos_token": "<|end_of_text|>",
    "eos_token_id": 630, "head_dim": 16, "hidden_act": "silu", "hidden_dropout": 0.0, "hidden_size": 64,
    "initializer_range": 0.02, "intermediate_size": 96, "mask_token": "<|mask|>", "mask_token_id": 631,
    "max_position_embeddings": 512, "mlp_bias": False, "model_type": "eurobert", "num_attention_heads": 4,
    "num_hidden_layers": 3, "num_key_value_heads": 2, "pad_token": "<|end_of_text|>", "pad_token_id": 630,
    "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 250000,
    "tie_word_embeddings": False, "torch_dtype": "float32", "use_cache": False, "vocab_size": 640,
}  # fmt: skip
JINA5 = {
    **{name: value for name, value in EUROBERT.items() if name not in ("clf_pooling", "use_cache", "head_dim")},
    "architectures": ["JinaEmbeddingsV5Model"], "is_decoder": False, "model_type": "jina_embeddings_v5",
    "rope_theta": 1000000, "task_names": ["retrieval", "text-matching"], "transformers_version": "4.40.0.dev0",
}  # fmt: skip
JINA5_MODULES = [
    {"idx": 0, "name": "transformer", "path": "", "type": "custom_st.Transformer", "kwargs": ["task", "truncate_dim"]}
]
LLAMA3 = {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>", "mask_token": "<|mask|>"}
T5 = {
    "architectures": ["T5EncoderModel"], "classifier_dropout": 0.0, "d_ff": 96, "d_kv": 16, "d_model": 64,
    "decoder_start_token_id": 0, "dense_act_fn": "gelu_new", "dropout_rate": 0.1, "eos_token_id": 1,
    "feed_forward_proj": "gated-gelu", "initializer_factor": 1.0, "is_encoder_decoder": True, "is_gated_act": True,
    "layer_norm_epsilon": 1e-06, "model_type": "t5", "num_decoder_layers": 3, "num_heads": 3, "num_layers": 3,
    "output_past": True, "pad_token_id": 0, "relative_attention_max_distance": 128,
    "relative_attention_num_buckets": 32, "tie_word_embeddings": False, "torch_dtype": "float32", "use_cache": True,
    "vocab_size": 640,
}  # fmt: skip
T5_ENCODER = {
    "config": T5, "tokenizer": "pieces", "pooling": "mean_tokens", "width": "d_model",
    "others": ("t5encoder.pooling_type", "ggml.add_bos_token", "ggml.scores", "ggml.token_type"),
}  # fmt: skip
ENCODERS: dict[str, dict[str, Any]] = {
    "embeddinggemma": {
        "config": {
            "_sliding_window_pattern": 6, "architectures": ["Gemma3TextModel"], "attention_bias": False,
            "attention_dropout": 0.0, "attn_logit_softcapping": None, "bos_token_id": 2, "dtype": "float32",
            "eos_token_id": 1, "final_logit_softcapping": None, "head_dim": 32,
            "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 96, "initializer_range": 0.02,
            "intermediate_size": 128, "layer_types": GEMMA_LAYERS, "max_position_embeddings": 512,
            "model_type": "gemma3_text", "num_attention_heads": 3, "num_hidden_layers": 7, "num_key_value_heads": 1,
            "pad_token_id": 0, "query_pre_attn_scalar": 32, "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000.0,
            "rope_scaling": None, "rope_theta": 1000000.0, "sliding_window": 16,
            "transformers_version": "4.57.0.dev0", "use_bidirectional_attention": True, "use_cache": True,
            "vocab_size": 640,
        },
        "tokenizer": "gemma", "special": families.GEMMA, "around": ("<bos>", "<eos>"), "pooling": "mean_tokens",
        "dense": (("2_Dense", 160), ("3_Dense", 96)),
    },
    "modernbert": {
        "config": MODERNBERT, "tokenizer": "gpt-2", "special": BERT, "around": ("[CLS]", "[SEP]"), "normalizer": "NFC",
        "pooling": "cls_token", "pre": "modern-bert",
    },
    "eurobert": {
        "config": EUROBERT, "tokenizer": "llama-bpe", "special": {**LLAMA3, "pad_token": "<|end_of_text|>"},
        "around": ("<|begin_of_text|>", "<|end_of_text|>"), "pooling": "mean_tokens", "pre": "llama-bpe",
        "converter": {"classifier_pooling": "mean"},
    },
    "jina-embeddings-v5": {
        "config": JINA5, "tokenizer": "llama-bpe", "special": {**LLAMA3, "pad_token": "<|end_of_text|>"},
        "around": ("<|begin_of_text|>", "<|end_of_text|>"), "pooling": "lasttoken", "pre": "llama-bpe",
        "known": {"architectures": ["EuroBertModel"], "model_type": "eurobert"}, "modules": JINA5_MODULES,
        "others": ("eurobert.pooling_type", "attention.key_length", "attention.value_length"),
    },
    "t5-v1_1": T5_ENCODER,
    "t5": {
        **T5_ENCODER, "config": {
            **{name: value for name, value in T5.items() if name not in ("dense_act_fn", "is_gated_act")},
            "feed_forward_proj": "relu", "n_positions": 512, "tie_word_embeddings": True,
        },
    },
    "umt5": {
        **T5_ENCODER, "config": {**T5, "architectures": ["UMT5EncoderModel"], "model_type": "umt5"},
        "converter": {"architectures": ["T5EncoderModel"], "model_type": "t5"},
    },
}  # fmt: skip
"""Name -> config.json, the kind of the tokenizer and its special tokens, those around a text, the pooling, and the
dense modules with their outputs. `pre`: llama.cpp's pre-tokenizer; `converter`: settings for its converter alone, which
does not run with those that Transformers 5 fills in, or does not know the model. `known`: settings of the model that
Transformers has in its place; `modules`: its modules.json, which states no pooling. `others`: ends of the keys in which
its file differs, since it knows no pooling of T5, and scores of its own for added tokens."""


def make(name: str, folder: Path, **config: Any) -> Path:
    """Write an encoder; `config` overrides its settings."""
    model = ENCODERS[name]
    folder.mkdir(parents=True, exist_ok=True)
    arguments: dict[str, Any] = {"text": families.TEXT.read_text(), "folder": str(folder)}
    if model["tokenizer"] == "pieces":
        peer("torch").run(train_pieces, **arguments)
    else:
        more = {"kind": model["tokenizer"], "size": 640 - families.PADDING, "special": model["special"]}
        peer("torch").run(families.train_tokenizer, **arguments, **more)
        before, after = model["around"]
        put_around(folder, before, after, model.get("normalizer"))
    if model["tokenizer"] == "gemma":
        (folder / "tokenizer.model").write_bytes(families.sentencepiece_model(folder, False))
    stated = {**model["config"], **config}
    (folder / "config.json").write_text(json.dumps({**stated, **model.get("known", {})}))
    dense = [list(each) for each in model.get("dense", ())]
    peer("torch").run(save, folder=str(folder), dense=dense, prefix=model.get("prefix", ""))
    (folder / "config.json").write_text(json.dumps(stated, indent=2))
    size = stated.get(model.get("width", "hidden_size"))
    assert isinstance(size, int)
    write_modules(folder, model["pooling"], size, [path for path, _ in dense])
    if "modules" in model:
        (folder / "modules.json").write_text(json.dumps(model["modules"], indent=2))
        shutil.rmtree(folder / "1_Pooling")
    return folder


def known(name: str, folder: Path) -> Path:
    """The folder, or a copy as a model that Transformers has, with the pooling of the model's own code."""
    model = ENCODERS[name]
    if "known" not in model:
        return folder
    copy = shutil.copytree(folder, folder.with_name(f"{folder.name} known"), dirs_exist_ok=True)
    stated = json.loads((folder / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**stated, **model["known"]}))
    write_modules(copy, model["pooling"], stated["hidden_size"], [])
    return copy


def put_around(folder: Path, before: str, after: str, normalizer: str | None) -> None:
    """Let the tokenizer put a token on each side of a text, and normalize it."""
    path = folder / "tokenizer.json"
    stored = json.loads(path.read_text())
    ids = {each["content"]: each["id"] for each in stored["added_tokens"]}
    single = [{"SpecialToken": {"id": before, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
              {"SpecialToken": {"id": after, "type_id": 0}}]  # fmt: skip
    pair = [*single, {"Sequence": {"id": "B", "type_id": 1}}, {"SpecialToken": {"id": after, "type_id": 1}}]
    stored["normalizer"] = {"type": normalizer} if normalizer else stored["normalizer"]
    named = {text: {"id": text, "ids": [ids[text]], "tokens": [text]} for text in (before, after)}
    stored["post_processor"] = {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": named}
    path.write_text(json.dumps(stored, ensure_ascii=False, indent=1))


def write_modules(folder: Path, pooling: str, size: int, dense: list[str]) -> None:
    """Write the files of sentence-transformers besides the weights of dense modules."""
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling"), *((path, "Dense") for path in dense)]
    kinds.append((f"{len(kinds)}_Normalize", "Normalize"))
    modules = [
        {"idx": place, "name": str(place), "path": path, "type": f"{TRANSFORMERS}{kind}"}
        for place, (path, kind) in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules, indent=2))
    modes = {f"pooling_mode_{mode}": mode == pooling for mode in ("cls_token", "mean_tokens", "max_tokens")}
    modes |= dict.fromkeys(("pooling_mode_mean_sqrt_len_tokens", "pooling_mode_weightedmean_tokens"), False)
    modes |= {"pooling_mode_lasttoken": pooling == "lasttoken", "include_prompt": True}
    (folder / "1_Pooling").mkdir(exist_ok=True)
    pooled = {"word_embedding_dimension": size, **modes}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooled, indent=2))
    prompts = {"query": "task: search result | query: ", "document": "title: none | text: "}
    stated = {"model_type": "SentenceTransformer", "prompts": prompts, "default_prompt_name": None}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(stated, indent=2))
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 512, "do_lower_case": false}')


def train_pieces(folder: str, text: str) -> None:
    """Runs in the peer: trains and saves T5's tokenizer, with the list of added tokens that old files have."""
    import io
    import json
    import os
    from pathlib import Path

    os.environ["PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"] = "python"
    import sentencepiece
    from transformers import AutoTokenizer

    pieces = io.BytesIO()
    ids = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text.splitlines()),
        model_writer=pieces,
        vocab_size=300,
        hard_vocab_limit=False,
        model_type="unigram",
        minloglevel=2,
        num_threads=1,
        **ids,
    )
    Path(folder, "spiece.model").write_bytes(pieces.getvalue())
    special = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    options = {"tokenizer_class": "T5Tokenizer", "extra_ids": 5, "model_max_length": 512, **special}
    Path(folder, "tokenizer_config.json").write_text(json.dumps(options))
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    tokenizer.save_pretrained(folder)
    Path(folder, "spiece.model").write_bytes(pieces.getvalue())
    added = {text: number for text, number in tokenizer.get_vocab().items() if text.startswith("<extra")}
    Path(folder, "added_tokens.json").write_text(json.dumps(added))


def scores(folder: str, texts: list[str]) -> Any:
    """What a classifier gives for texts; runs in the peer."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = AutoModelForSequenceClassification.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", local_files_only=True
    )
    with torch.inference_mode():
        return torch.stack([model(**tokenizer(text, return_tensors="pt")).logits[0] for text in texts]).numpy()


def save(folder: str, dense: list[list[Any]], prefix: str) -> None:
    """Runs in the peer: saves seeded weights of the model in config.json, and of dense modules."""
    import json
    from pathlib import Path

    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, T5EncoderModel, UMT5EncoderModel

    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(folder)
    stated = json.loads(Path(folder, "config.json").read_text())
    classifies = stated["architectures"][0].endswith("ForSequenceClassification")
    alone = {"t5": T5EncoderModel, "umt5": UMT5EncoderModel}.get(stated["model_type"])
    kind = AutoModelForSequenceClassification if classifies else AutoModel
    model = kind.from_config(config, dtype=torch.float32) if alone is None else alone(config)
    centered = stated["model_type"] != "gemma3_text"
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            scale = 0.2 if parameter.ndim == 1 else parameter.shape[-1] ** -0.5
            scale *= 0.25 if name.endswith("wo.weight") else 1.0  # llama.cpp reads T5's GELU from a table of f16
            center = 1.0 if "norm" in name and name.endswith("weight") and centered else 0.0
            parameter.copy_(center + scale * torch.randn(parameter.shape, generator=generator))
    tensors = {f"{prefix}{name}": value.detach().clone() for name, value in model.named_parameters()}
    save_file(tensors, Path(folder, "model.safetensors"), metadata={"format": "pt"})
    inputs = stated.get("hidden_size")
    for path, outputs in dense:
        place = Path(folder, path)
        place.mkdir(exist_ok=True)
        weight = torch.randn((outputs, inputs), generator=generator) * inputs**-0.5
        save_file({"linear.weight": weight}, place / "model.safetensors", metadata={"format": "pt"})
        settings = {
            "in_features": inputs,
            "out_features": outputs,
            "bias": False,
            "activation_function": "torch.nn.modules.linear.Identity",
        }
        (place / "config.json").write_text(json.dumps(settings, indent=2))
        inputs = outputs
