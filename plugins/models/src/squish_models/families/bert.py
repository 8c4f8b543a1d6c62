"""Encoders with the names of BERT: BERT, RoBERTa and XLM-RoBERTa, as embedding models and as classifiers.

Source of the names and of GGUF's keys: llama.cpp, conversion/bert.py and src/models/bert.cpp. Its converter leaves out
the pooler, which is the first layer of a BERT classifier; llama.cpp loads it, and computes it where it ranks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from attrs import evolve
from squish_convert.api import Carried, Model, Rule

from squish_core.api import ErrorCode, FormatError, Options, Typed

from .. import CUT, MERGES, SCORER, SCORES, WHOLE
from ..config.gguf_defaults import LoadedKeys
from ..config.keys import TEXTS_LIST, Key
from ..declared import Declared
from ..engines.needs import EngineNeeds
from ..general import POOLING, RANK, check_modules
from ..reranking import LABELS
from ..settings import CONFIG, INEXPRESSIBLE
from ..tables import Row

CLASSIFIES = "ForSequenceClassification"
"""In the name of a class, says that it classifies whole texts by the state of their first token."""
ABSOLUTE, ALIBI, ROTARY = "absolute", "alibi", "rotary"
"""Kinds of positions: learned ones, a bias of attention that grows with the distance, and rotations."""
TYPES = "tokenizer.ggml.token_type_count"
PADDING = "tokenizer.ggml.padding_token_id"
OFFSET = "position_offset"
"""The setting with the number of positions that belong to no token."""
JINA = "jinaai/jina-bert-implementation"
"""The repository with the code of Jina's models, which Transformers does not have."""
FIRST_LABEL = "LABEL_0"
"""The name of the first class where nobody has named them."""


def _row(hf: str, gguf: str, *shape: str, **fields: Any) -> Row:
    return Row(hf, gguf, shape, **fields)


def encoder(prefix: str = "", **positions: Any) -> tuple[Row, ...]:
    """The embeddings and layers; `positions` are fields of the row of positions."""
    norm, inner = {"biased": True, "top": True}, "intermediate_size"
    rows = (
        _row("embeddings.word_embeddings", "token_embd", "vocab_size", "hidden_size", top=True),
        _row(
            "embeddings.position_embeddings", "position_embd", "max_position_embeddings", "hidden_size",
            f32=True, top=True, **positions,
        ),
        _row("embeddings.token_type_embeddings", "token_types", "type_vocab_size", "hidden_size", f32=True, top=True),
        _row("embeddings.LayerNorm", "token_embd_norm", "hidden_size", **norm),
        _row("attention.self.query", "attn_q", "hidden_size", "hidden_size", biased=True),
        _row("attention.self.key", "attn_k", "hidden_size", "hidden_size", biased=True),
        _row("attention.self.value", "attn_v", "hidden_size", "hidden_size", biased=True),
        _row("attention.output.dense", "attn_output", "hidden_size", "hidden_size", biased=True),
        _row("attention.output.LayerNorm", "attn_output_norm", "hidden_size", biased=True),
        _row("intermediate.dense", "ffn_up", inner, "hidden_size", biased=True),
        _row("output.dense", "ffn_down", "hidden_size", inner, biased=True),
        _row("output.LayerNorm", "layer_output_norm", "hidden_size", biased=True),
    )  # fmt: skip
    layer = f"{prefix}encoder.layer.{{n}}."
    return tuple(evolve(row, hf=f"{prefix}{row.hf}") if row.top else evolve(row, layer=layer) for row in rows)


def pooler(name: str, **fields: Any) -> Row:
    """What a state of the first token passes before it is classified."""
    return _row(name, "cls", "hidden_size", "hidden_size", top=True, **fields)


def old_norms(rows: Sequence[Row]) -> tuple[Rule, ...]:
    """Rules for the names that parameters of norms have in files of TensorFlow's age, which are only read."""
    norms = [row for row in rows if row.hf.endswith("LayerNorm")]
    pairs = ((".gamma", ".weight"), (".beta", ".bias"))
    return tuple(Rule(row.module(old), row.module(new), reading=True) for row in norms for old, new in pairs)


class Bert(Declared):
    """BERT: layer norms behind attention and MLP, learned positions, types of tokens."""

    model_type, architecture, class_name = "bert", "bert", "BertModel"
    rows = (*encoder(), pooler("pooler.dense", required=False, bias=True))
    more: ClassVar[Mapping[str, Sequence[Rule]]] = {"hf": old_norms(rows)}
    prefixes: ClassVar[Mapping[str, str]] = {"bert.": ""}
    keys: ClassVar[Sequence[Key]] = (
        Key("max_position_embeddings", "context_length"),
        Key("hidden_size", "embedding_length"),
        Key("num_hidden_layers", "block_count"),
        Key("intermediate_size", "feed_forward_length"),
        Key("num_attention_heads", "attention.head_count"),
        Key("layer_norm_eps", "attention.layer_norm_epsilon", "f32"),
        Key("is_causal", "attention.causal", "bool", required=False),
        Key("output_labels", LABELS, TEXTS_LIST, required=False),
    )
    fixed: ClassVar = {"hidden_act": "gelu", "position_embedding_type": ABSOLUTE, "is_decoder": False}
    equivalents: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "hidden_act": dict.fromkeys(("gelu_new", "gelu_fast", "gelu_pytorch_tanh"), "gelu")
    }
    unstated: ClassVar = {
        "max_position_embeddings": 512, "type_vocab_size": 2, "layer_norm_eps": 1e-12, "hidden_act": "gelu",
    }  # fmt: skip
    derived: ClassVar[Sequence[str]] = (
        "rotary_dim", "num_key_value_heads", "head_dim", "rope_theta", "rope_scaling", "attention_bias", "mlp_bias",
        "tie_word_embeddings", "is_causal", "output_labels",
    )  # fmt: skip
    other_positions: ClassVar[str] = ALIBI
    """The kind of positions of another family with this model type."""
    generates = False
    leftovers = ("*embeddings.position_ids",)
    heads: ClassVar[Sequence[str]] = ("cls.predictions.*", "cls.seq_relationship.*")
    """Heads that predict tokens, which no engine of embeddings computes."""
    remainder = "part of a head that predicts tokens"
    engines: ClassVar = {name: EngineNeeds(supported=False) for name in ("mlx", "mistralrs")}

    def fits(self, config: Mapping[str, Any]) -> bool:
        own, kind = self.fixed["position_embedding_type"], config.get("position_embedding_type")
        if own != ABSOLUTE or kind == self.other_positions:
            return bool(own == kind)
        return bool(self.pooling) == any(name.endswith(CLASSIFIES) for name in classes_of(config))

    def left_out(self, settings: Mapping[str, Any]) -> Collection[str]:
        return (*super().left_out(settings), *self.heads)

    def spelled(self, config: Mapping[str, Any]) -> dict[str, Any]:
        return {**super().spelled(config), "is_causal": False, "output_labels": self._labels(config)}

    def _labels(self, config: Mapping[str, Any]) -> list[str] | None:
        """The names of the classes, as llama.cpp's converter takes them: not the two that Transformers invents."""
        labels = labels_of(config)
        return None if labels is None or (len(labels) == 2 and labels[0] == FIRST_LABEL) else labels

    def _from_config(self, model: Model) -> dict[str, Any]:
        return {**super()._from_config(model), "tie_word_embeddings": True}  # there is no head to be tied

    def _from_keys(self, model: Model) -> dict[str, Any]:
        settings = super()._from_keys(model)
        settings["type_vocab_size"] = self._token_types(model)
        if labels := settings.get("output_labels"):
            settings |= {"id2label": {str(number): label for number, label in enumerate(labels)}}
            settings |= {"label2id": {label: number for number, label in enumerate(labels)}}
        loaded = LoadedKeys(self.architecture, model.meta)
        if loaded["attention.causal"] is not False:
            settings[INEXPRESSIBLE] = self._inexpressible(
                "attention.causal", "is true or absent, and no config.json expresses it: BERT attends to later tokens"
            )
        if loaded[POOLING] == RANK and not self.pooling:
            settings[INEXPRESSIBLE] = self._inexpressible(POOLING, f"is {RANK}, but there is no {SCORER} to rank with")
        return settings

    def _token_types(self, model: Model) -> int:
        """The number of types of tokens, without which llama.cpp does not load the model either."""
        stated = model.value(TYPES)
        if type(stated) is int and 0 < stated < 1 << 32:
            return stated
        raise FormatError(
            "is missing, and the model cannot be run without it" if stated is None else "is not a number of types",
            part=TYPES,
            code=ErrorCode.CONFIG,
            expected="at least 1",
            found=str(stated)[:40],
        )

    def carry(self, model: Model, settings: Mapping[str, Any], layout: str, options: Options) -> Carried:
        carried = super().carry(model, settings, layout, options)
        if layout != "gguf" or model.layout == "gguf":
            return carried
        check_modules(model.assets)
        own = {TYPES: Typed("u32", settings["type_vocab_size"])}
        if OFFSET not in settings and not carried.meta.keys().isdisjoint((MERGES, SCORES)):
            own[WHOLE] = Typed("bool", True)
        return evolve(carried, meta={**carried.meta, **own}, storage=(*carried.storage, WHOLE))


class BertClassifier(Bert):
    """BERT that classifies a text, or scores two: cross-encoders and rerankers."""

    class_name = f"Bert{CLASSIFIES}"
    rows = (
        *encoder("bert."),
        pooler("bert.pooler.dense", biased=True),
        _row("classifier", "cls.output", "classes", "hidden_size", biased=True, top=True),
    )
    more: ClassVar = {"hf": old_norms(rows)}
    prefixes: ClassVar = {}
    pooling = RANK
    derived: ClassVar[Sequence[str]] = (*Bert.derived, "classes")

    def _labels(self, config: Mapping[str, Any]) -> list[str] | None:
        labels, count = labels_of(config), config.get("num_labels", 2)
        invented = [f"LABEL_{number}" for number in range(count if type(count) is int and 0 < count < 1 << 16 else 2)]
        return labels or invented

    def spelled(self, config: Mapping[str, Any]) -> dict[str, Any]:
        settings = super().spelled(config)
        return {**settings, "classes": len(settings["output_labels"])}

    def _from_keys(self, model: Model) -> dict[str, Any]:
        settings = super()._from_keys(model)
        labels = settings.get("output_labels") or [FIRST_LABEL]
        return {**settings, "output_labels": labels, "classes": len(labels)}


class Roberta(Bert):
    """RoBERTa: the first positions, up to that of the padding token, belong to no token, and GGUF lacks their rows."""

    model_type, class_name = "roberta", "RobertaModel"
    rows = (*encoder(cut=OFFSET), pooler("pooler.dense", required=False, bias=True))
    more: ClassVar = {"hf": old_norms(rows)}
    prefixes: ClassVar = {"roberta.": ""}
    keys = (Key("positions", "context_length"), *Bert.keys[1:])
    unstated: ClassVar = {**Bert.unstated, "pad_token_id": 1}
    derived: ClassVar[Sequence[str]] = (*Bert.derived, "positions", OFFSET)
    heads: ClassVar[Sequence[str]] = ("lm_head.*",)

    def spelled(self, config: Mapping[str, Any]) -> dict[str, Any]:
        settings = super().spelled(config)
        padding, positions = settings.get("pad_token_id"), settings["max_position_embeddings"]
        if type(padding) is not int or not 0 <= padding < positions - 1:
            raise FormatError(
                "is not the position of padding, behind which those of tokens begin",
                part=f"{CONFIG} pad_token_id",
                code=ErrorCode.CONFIG,
                expected=f"an integer from 0 to {positions - 2}, since there are {positions} positions",
                found=repr(padding)[:60],
            )
        return {**settings, OFFSET: padding + 1, "positions": positions - padding - 1}

    def _from_keys(self, model: Model) -> dict[str, Any]:
        settings = super()._from_keys(model)
        stored, padding = _first_rows(model, settings["hidden_size"]), model.value(PADDING)
        offset = 1 + (padding if type(padding) is int and padding < 1 << 16 else 1)
        if stored is not None:
            offset = len(stored)
        return {
            **settings,
            OFFSET: offset,
            "max_position_embeddings": settings["positions"] + offset,
            "pad_token_id": offset - 1,
        }

    def carry(self, model: Model, settings: Mapping[str, Any], layout: str, options: Options) -> Carried:
        carried = super().carry(model, settings, layout, options)
        stored = _first_rows(model, settings["hidden_size"])
        if model.layout == "gguf" and layout != "gguf" and stored is not None:
            return evolve(carried, rows={OFFSET: stored})
        if layout != "gguf" or model.layout == "gguf" or options.get("keep") == "no" or model.rows is None:
            return carried
        name = next(name for name in model.tensors if name.endswith("embeddings.position_embeddings.weight"))
        first = np.asarray(model.rows(name, range(settings[OFFSET])), np.float32)
        meta = {**carried.meta, CUT: Typed("array:f32", first.ravel())}
        return evolve(carried, meta=meta, storage=(*carried.storage, CUT))


def _first_rows(model: Model, width: int) -> np.ndarray | None:
    """The rows that a key of a GGUF keeps; None without the key, or if it has no rows of this width."""
    stored = np.asarray(model.value(CUT, ()))
    is_whole = stored.ndim == 1 and stored.dtype.kind == "f" and width and 0 < stored.size <= width << 16
    return stored.astype(np.float32).reshape(-1, width) if is_whole and stored.size % width == 0 else None


class RobertaClassifier(Roberta, BertClassifier):
    """RoBERTa that classifies a text, or scores two."""

    class_name = f"Roberta{CLASSIFIES}"
    rows = (
        *encoder("roberta.", cut=OFFSET),
        pooler("classifier.dense", biased=True),
        _row("classifier.out_proj", "cls.output", "classes", "hidden_size", biased=True, top=True),
    )
    more: ClassVar = {"hf": old_norms(rows)}
    prefixes: ClassVar = {}
    derived: ClassVar[Sequence[str]] = (*Roberta.derived, "classes")
    heads: ClassVar[Sequence[str]] = ("lm_head.*", "roberta.pooler.*")


class XlmRoberta(Roberta):
    """XLM-RoBERTa: RoBERTa with unigram tokens, such as bge-m3 and multilingual E5."""

    model_type, class_name = "xlm-roberta", "XLMRobertaModel"
    other_positions = ROTARY


class XlmRobertaClassifier(RobertaClassifier):
    """XLM-RoBERTa that classifies a text, or scores two, such as bge-reranker-v2-m3."""

    model_type, class_name = "xlm-roberta", f"XLMRoberta{CLASSIFIES}"
    other_positions = ROTARY


class JinaBert(Bert):
    """Jina Embeddings 2: BERT with a bias of attention instead of positions, and a gated MLP in one matrix."""

    architecture, class_name = "jina-bert-v2", "JinaBertModel"
    rows = (
        *(
            row
            for row in Bert.rows
            if row.hf
            not in ("embeddings.position_embeddings", "intermediate.dense", "output.dense", "output.LayerNorm")
            and row.gguf != "cls"
        ),
        *(
            Row(hf, gguf, shape, layer="encoder.layer.{n}.", biased=gguf != "ffn_up")
            for hf, gguf, shape in (
                ("mlp.gated_layers", "ffn_up", ("gate_up_rows", "hidden_size")),
                ("mlp.wo", "ffn_down", ("hidden_size", "intermediate_size")),
                ("mlp.layernorm", "layer_output_norm", ("hidden_size",)),
            )
        ),
    )
    more: ClassVar[Mapping[str, Sequence[Rule]]] = {}
    fixed: ClassVar = {**Bert.fixed, "position_embedding_type": ALIBI, "feed_forward_type": "geglu"}
    unstated: ClassVar = {**Bert.unstated, "feed_forward_type": "original"}
    heads: ClassVar[Sequence[str]] = (*Bert.heads, "pooler.*", "bert.pooler.*")
    remainder = "not computed by llama.cpp"

    def _from_keys(self, model: Model) -> dict[str, Any]:
        names = {"AutoConfig": "configuration_bert.JinaBertConfig", "AutoModel": "modeling_bert.JinaBertModel"}
        settings = super()._from_keys(model)
        return {**settings, "auto_map": {kind: f"{JINA}--{name}" for kind, name in names.items()}}


def tasks_note(tasks: Any, remedy: str) -> str:
    """Say of a model with an adapter for each task that its GGUF is the base model."""
    names = ", ".join(map(str, tasks)) if isinstance(tasks, list) else "unknown"
    return f"lacks the adapters of the model's tasks ({names}): {remedy}"


def labels_of(config: Mapping[str, Any]) -> list[str] | None:
    """The names of classes in a config.json, in their order; FormatError if they are not names of 0, 1, 2, ..."""
    stated = config.get("id2label")
    if stated is None:
        return None
    named = {str(number): label for number, label in stated.items()} if isinstance(stated, dict) else {}
    labels = [named.get(str(number)) for number in range(len(named))]
    if not labels or not all(isinstance(label, str) for label in labels):
        raise FormatError(
            "does not name each class",
            part=f"{CONFIG} id2label",
            code=ErrorCode.CONFIG,
            expected="an object from the numbers 0, 1, ... to texts",
            found=str(stated)[:60],
        )
    return [str(label) for label in labels]


def classes_of(config: Mapping[str, Any]) -> list[str]:
    """The classes that a config.json names."""
    names = config.get("architectures")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
