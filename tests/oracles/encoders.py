"""Tiny seeded encoders with a tokenizer and the files of sentence-transformers, and their vectors and scores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from . import ROOT, peer

SIZE = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4}
ROBERTA = {"max_position_embeddings": 130, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
MODELS: dict[str, dict[str, Any]] = {
    "bert": {"config": {**SIZE, "max_position_embeddings": 128}, "tokenizer": "words"},
    "xlm-roberta": {"config": {**SIZE, **ROBERTA}, "tokenizer": "pieces"},
    "roberta": {"config": {**SIZE, **ROBERTA}, "tokenizer": "bytes"},
    "nomic_bert": {
        "config": {
            **SIZE,
            "max_position_embeddings": 2048,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
        },
        "tokenizer": "words",
        "published": {
            "activation_function": "swiglu",
            "causal": False,
            "layer_norm_epsilon": 1e-12,
            "max_trained_positions": 2048,
            "mlp_fc1_bias": False,
            "mlp_fc2_bias": False,
            "n_embd": 64,
            "n_head": 4,
            "n_inner": 128,
            "n_layer": 3,
            "n_positions": 8192,
            "prenorm": False,
            "qkv_proj_bias": False,
            "rotary_emb_base": 1000,
            "rotary_emb_fraction": 1.0,
            "rotary_emb_interleaved": False,
            "rotary_emb_scale_base": None,
        },
    },
}
"""Model type -> its settings, and the kind of its tokenizer."""
POOLING = {"cls_token": 2, "mean_tokens": 1, "lasttoken": 3}
NAMES = {
    "words": {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"},
    "pieces": {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>", "mask": "<mask>"},
}
NAMES["bytes"] = NAMES["pieces"]
CLASSES = {"words": "BertTokenizer", "pieces": "XLMRobertaTokenizer", "bytes": "RobertaTokenizer"}


def make(name: str, folder: Path, *, labels: int = 0, pooling: str = "", **config: Any) -> Path:
    """Write a model: one that classifies if it has `labels`, one of embeddings if it has a `pooling`."""
    model = MODELS[name]
    files = tokenizer(model["tokenizer"], folder)
    size = len(json.loads(files["tokenizer.json"])["model"]["vocab"])
    settings = {**model["config"], "vocab_size": size, **config}
    peer("torch").run(save, folder=str(folder), kind=model.get("model_type", name), settings=settings, labels=labels)
    if "published" in model:
        stated = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**stated, **model["published"]}, indent=2))
    if pooling:
        write_modules(folder, pooling, settings["hidden_size"])
    return folder


def tokenizer(kind: str, folder: Path) -> dict[str, bytes]:
    """Write the files of a tokenizer, and return them."""
    folder.mkdir(parents=True, exist_ok=True)
    text, special = (ROOT / "LICENSE").read_text(), NAMES[kind]
    peer("torch").run(train, folder=str(folder), kind=kind, text=text, special=special)
    options: dict[str, Any] = {f"{role}_token": token for role, token in special.items()}
    options |= {"tokenizer_class": CLASSES[kind], "model_max_length": 128}
    (folder / "tokenizer_config.json").write_text(json.dumps(options))
    return {name: (folder / name).read_bytes() for name in ("tokenizer.json", "tokenizer_config.json")}


def write_modules(folder: Path, pooling: str, width: int) -> None:
    """Write the files of sentence-transformers."""
    kinds = (("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize"))
    modules = [
        {"idx": place, "name": str(place), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for place, (path, kind) in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules, indent=2))
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 128, "do_lower_case": false}')
    (folder / "1_Pooling").mkdir()
    modes = {f"pooling_mode_{name}": name == pooling for name in POOLING}
    stated = {"word_embedding_dimension": width, **modes}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(stated))


def train(folder: str, kind: str, text: str, special: dict[str, str]) -> None:
    """Save a tokenizer.json that is trained on a text; runs in the peer."""
    import io
    import os
    from pathlib import Path

    os.environ["PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"] = "python"
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

    tokens = list(special.values())
    if kind == "words":
        tokenizer = Tokenizer(models.WordPiece(unk_token=special["unk"]))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(vocab_size=600, special_tokens=tokens)
        first, last = special["cls"], special["sep"]
    elif kind == "pieces":
        spoken = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(text.splitlines()),
            model_writer=spoken,
            vocab_size=200,
            hard_vocab_limit=False,
            normalization_rule_name="nmt_nfkc",
            minloglevel=2,
            num_threads=1,
        )
        stored = sentencepiece_model_pb2.ModelProto.FromString(spoken.getvalue())
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.normalizer = normalizers.Precompiled(stored.normalizer_spec.precompiled_charsmap)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
        )
        trainer = trainers.UnigramTrainer(vocab_size=600, special_tokens=tokens, unk_token=special["unk"])
        first, last = special["bos"], special["eos"]
    else:
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=tokens, initial_alphabet=alphabet)
        first, last = special["bos"], special["eos"]
    tokenizer.train_from_iterator(text.splitlines(), trainer)
    ids = {token: tokenizer.token_to_id(token) for token in (first, last)}
    between = last if kind == "words" else f"{last} {last}"
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}", pair=f"{first} $A {between} $B {last}", special_tokens=list(ids.items())
    )
    tokenizer.save(str(Path(folder, "tokenizer.json")))


def save(folder: str, kind: str, settings: dict[str, Any], labels: int) -> None:
    """Save a model of seeded weights; runs in the peer."""
    import torch
    from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **settings, **({"num_labels": labels} if labels else {}))
    model = (AutoModelForSequenceClassification if labels else AutoModel).from_config(config)
    with torch.no_grad():
        for name, values in model.named_parameters():
            is_norm = "LayerNorm" in name or "norm" in name.split(".")[-2]
            if values.ndim > 1:
                values.normal_(0, 1.0 if "embeddings" in name else values.shape[-1] ** -0.5)
            else:
                values.normal_(1.0 if is_norm and name.endswith("weight") else 0.0, 0.1)
    model.to(torch.float32).save_pretrained(folder)


def scores(folder: Path, texts: list[str]) -> np.ndarray:
    """What Transformers' classifier gives for texts."""
    return np.asarray(peer("torch").run(classify, folder=str(folder), texts=texts))


def classify(folder: str, texts: list[str]) -> np.ndarray:
    """Runs in the peer."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    with torch.inference_mode():
        logits = [model(**tokenizer(text, return_tensors="pt")).logits[0] for text in texts]
    return torch.stack(logits).numpy()
