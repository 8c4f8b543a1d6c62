"""Encoders that are like decoders: ModernBERT and EuroBERT, whose tokens have rotary positions.

Source of the names and of GGUF's keys: llama.cpp, conversion/bert.py, src/models/modern-bert.cpp and eurobert.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from attrs import evolve
from squish_convert.api import Carried, Model

from squish_core.api import ErrorCode, FormatError, Options

from ..config.gguf_defaults import LoadedKeys
from ..config.keys import TEXT, TEXTS_LIST, VOCABULARY, Key
from ..config.spelling import FULL, SLIDING
from ..engines.needs import EngineNeeds
from ..family import TextModel
from ..general import CLS, LAST, MEAN, RANK, check_modules, check_pooling
from ..reranking import LABELS
from ..settings import CONFIG, INEXPRESSIBLE, MOST_BLOCKS
from ..tables import BASE_PREFIXES, Row, attention, base_rows, gated_mlp, norm, pre_norm_model
from .bert import CLASSIFIES, classes_of, labels_of, tasks_note

UNSCALED = "none"
"""llama.cpp's kind of scaling for positions that are not scaled."""
ENCODER_KEYS = (
    Key("max_position_embeddings", "context_length"),
    Key("hidden_size", "embedding_length"),
    Key("num_hidden_layers", "block_count"),
    Key("intermediate_size", "feed_forward_length"),
    Key("num_attention_heads", "attention.head_count"),
    Key("is_causal", "attention.causal", "bool", required=False),
    Key("scaling_kind", "rope.scaling.type", TEXT, required=False),
)


class Encoder(TextModel):
    """What encoders with rotary positions share: no head, and attention in both directions."""

    generates = False
    derived: ClassVar[Sequence[str]] = (
        "rotary_dim", "head_dim", "is_causal", "scaling_kind", "rope_scaling", "tie_word_embeddings",
    )  # fmt: skip
    fixed: ClassVar[Mapping[str, Any]] = {"rope_scaling": None}
    prefixes: ClassVar[Mapping[str, str]] = BASE_PREFIXES
    engines: ClassVar = {name: EngineNeeds(supported=False) for name in ("mlx", "mistralrs")}
    heads: ClassVar[Sequence[str]] = ("lm_head.*",)
    """The head that predicts tokens, which no engine of embeddings computes."""
    remainder = "part of a head that predicts tokens"

    def left_out(self, settings: Mapping[str, Any]) -> Sequence[str]:
        return (*super().left_out(settings), *self.heads)

    def spelled(self, config: Mapping[str, Any]) -> dict[str, Any]:
        return {**super().spelled(config), "is_causal": False, "scaling_kind": UNSCALED}

    def _from_config(self, model: Model) -> dict[str, Any]:
        return {**super()._from_config(model), "tie_word_embeddings": True}  # there is no head to be tied

    def _from_keys(self, model: Model) -> dict[str, Any]:
        settings = super()._from_keys(model)
        if LoadedKeys(self.architecture, model.meta)["attention.causal"] is not False:
            settings[INEXPRESSIBLE] = self._inexpressible(
                "attention.causal",
                "is true or absent, which no config.json of this model expresses: it attends to later tokens, too",
                expected=False,
            )
        if settings.get("rope_scaling") is not None:
            settings[INEXPRESSIBLE] = FormatError(
                "scales positions, which no config.json of this model expresses",
                part=f"{self.architecture}.rope.scaling.type",
                code=ErrorCode.ROPE,
                expected=UNSCALED,
                found=str(settings["rope_scaling"])[:60],
            )
        return settings

    def carry(self, model: Model, settings: Mapping[str, Any], layout: str, options: Options) -> Carried:
        if layout == "gguf" and model.layout != "gguf":
            check_modules(model.assets)
        return super().carry(model, settings, layout, options)


NORMED = "normed"
"""The layers with a norm before attention: all but the first, whose input is normalized already."""
ACTIVATIONS = ("gelu", "gelu_python", "gelu_new", "gelu_pytorch_tanh", "silu", "swish")
"""Activations of the MLP that llama.cpp computes as Transformers does."""
OF_HEAD = ("gelu", "silu", "tanh")
"""Activations of the head that llama.cpp computes."""
POOLINGS = {"cls": CLS, "mean": MEAN}
BASES = ((FULL, "rope_theta", "global_rope_theta", 160000.0),
         (SLIDING, "rope_local_base_freq", "local_rope_theta", 10000.0))  # fmt: skip
"""Kind of layers, the usual name of the base of its rotation, its own name, and its default."""
EVERY, WINDOW = "global_attn_every_n_layers", "local_attention"


def modern_rows(prefix: str) -> tuple[Row, ...]:
    """The embeddings and layers of ModernBERT; names begin with a prefix."""
    rows = (
        Row("embeddings.tok_embeddings", "token_embd", ("vocab_size", "hidden_size"), top=True),
        norm("embeddings.norm", "token_embd_norm", top=True),
        norm("final_norm", "output_norm", top=True),
        Row("attn.Wqkv", "attn_qkv", ("qkv_rows", "hidden_size")),
        evolve(norm("attn_norm", "attn_norm"), kind=NORMED),
        Row("attn.Wo", "attn_output", ("hidden_size", "hidden_size")),
        norm("mlp_norm", "ffn_norm"),
        Row("mlp.Wi", "ffn_up", ("gate_up_rows", "hidden_size")),
        Row("mlp.Wo", "ffn_down", ("hidden_size", "intermediate_size")),
    )
    layer = f"{prefix}layers.{{n}}."
    return tuple(evolve(row, hf=f"{prefix}{row.hf}") if row.top else evolve(row, layer=layer) for row in rows)


class ModernBert(Encoder):
    """ModernBERT: every third layer attends to everything, the others to a window on both sides."""

    model_type, architecture, class_name = "modernbert", "modern-bert", "ModernBertModel"
    rows: ClassVar[Sequence[Row]] = modern_rows("")
    keys: ClassVar[Sequence[Key]] = (
        *ENCODER_KEYS,
        Key("norm_eps", "attention.layer_norm_epsilon", "f32"),
        Key("norm_eps", "attention.layer_norm_rms_epsilon", "f32", required=False),
        Key("global_rope_theta", "rope.freq_base", "f32", required=False),
        Key("local_rope_theta", "rope.freq_base_swa", "f32", required=False),
        Key(WINDOW, "attention.sliding_window", required=False),
        Key(EVERY, "attention.sliding_window_pattern", required=False),
        Key("hidden_activation", "hidden_activation", TEXT, required=False),
        Key("pooling_of_head", "classifier.pooling_type", required=False),
        Key("classifier_activation", "classifier.activation", TEXT, required=False),
        Key("output_labels", LABELS, TEXTS_LIST, required=False),
        VOCABULARY,
    )
    fixed: ClassVar = {**Encoder.fixed, "attention_bias": False, "mlp_bias": False, "norm_bias": False}
    unstated: ClassVar = {
        "norm_eps": 1e-05, "hidden_activation": "gelu", WINDOW: 128, "classifier_pooling": "cls",
        "classifier_activation": "gelu",
    }  # fmt: skip
    own_names: ClassVar = {usual: own for _, usual, own, _ in BASES}
    derived: ClassVar = (
        *Encoder.derived, *(usual for _, usual, _, _ in BASES), "num_key_value_heads", "pooling_of_head",
        "output_labels",
    )  # fmt: skip
    windowless: ClassVar[Sequence[str]] = ()
    heads: ClassVar[Sequence[str]] = ("head.*", "decoder.*")

    def fits(self, config: Mapping[str, Any]) -> bool:
        return bool(self.pooling) == any(name.endswith(CLASSIFIES) for name in classes_of(config))

    def layers_of(self, kind: str, settings: Mapping[str, Any]) -> Sequence[int]:
        return range(1, settings["num_hidden_layers"])

    def spelled(self, config: Mapping[str, Any]) -> dict[str, Any]:
        settings = super().spelled({name: value for name, value in config.items() if name != "layer_types"})
        parameters = config.get("rope_parameters") or {}
        for kind, usual, own, default in BASES:
            each = parameters.get(kind)
            base = each.get("rope_theta") if isinstance(each, Mapping) else None
            base = settings.get(own) if base is None else base
            settings |= dict.fromkeys((usual, own), default if base is None else base)
            if isinstance(each, Mapping) and each.get("rope_type", "default") != "default":
                settings["rope_scaling"] = each
        pooling = settings["classifier_pooling"]
        return {
            **settings,
            EVERY: self._every(config, settings),
            "pooling_of_head": POOLINGS.get(pooling) if isinstance(pooling, str) else None,
            "output_labels": labels_of(config) if self.pooling else None,
        }

    def _every(self, config: Mapping[str, Any], settings: Mapping[str, Any]) -> Any:
        """One in this many layers attends to everything, the first of them; FormatError for other kinds."""
        kinds, count = config.get("layer_types"), settings.get("num_hidden_layers")
        if kinds is None:
            return settings.get(EVERY, 3)
        if isinstance(kinds, list) and type(count) is int and count <= MOST_BLOCKS:
            every = next((n for n in range(1, len(kinds)) if kinds[n] == FULL), max(len(kinds), 1))
            if kinds == [SLIDING if layer % every else FULL for layer in range(count)]:
                return every
        raise FormatError(
            "is not a list in which one in so many layers, beginning with the first, attends to everything",
            part=f"{CONFIG} layer_types",
            code=ErrorCode.CONFIG,
            expected=f"{count} of {FULL} and {SLIDING}",
            found=str(kinds)[:60],
        )

    def check_for_gguf(self, settings: Mapping[str, Any]) -> None:
        super().check_for_gguf(settings)
        legal = {"hidden_activation": ACTIVATIONS, "classifier_activation": OF_HEAD, "classifier_pooling": (*POOLINGS,)}
        for name, values in legal.items():
            if settings[name] not in values:
                raise FormatError(
                    "is not what llama.cpp computes",
                    part=f"{CONFIG} {name}",
                    code=ErrorCode.CONFIG,
                    expected=" or ".join(values),
                    found=repr(settings[name])[:60],
                )

    def _from_keys(self, model: Model) -> dict[str, Any]:
        settings = super()._from_keys(model)
        if not settings.get(WINDOW):  # then llama.cpp has no layers with a window
            settings |= {WINDOW: 128, EVERY: 1}
        names = {number: name for name, number in POOLINGS.items()}
        settings["classifier_pooling"] = names.get(settings.get("pooling_of_head", MEAN), "mean")
        if labels := settings.get("output_labels"):
            settings |= {"id2label": {str(number): label for number, label in enumerate(labels)}}
            settings |= {"label2id": {label: number for number, label in enumerate(labels)}}
        return settings


class ModernBertClassifier(ModernBert):
    """ModernBERT that classifies a text, or scores two, such as gte-reranker-modernbert-base."""

    class_name = f"ModernBert{CLASSIFIES}"
    rows = (
        *modern_rows("model."),
        Row("head.dense", "cls", ("hidden_size", "hidden_size"), top=True),
        norm("head.norm", "cls.norm", top=True),
        Row("classifier", "cls.output", ("classes", "hidden_size"), biased=True, top=True),
    )
    prefixes: ClassVar = {}
    pooling = RANK
    derived = (*ModernBert.derived, "classes")
    heads: ClassVar[Sequence[str]] = ("decoder.*",)

    def spelled(self, config: Mapping[str, Any]) -> dict[str, Any]:
        settings = super().spelled(config)
        labels = settings["output_labels"] or [f"LABEL_{number}" for number in range(2)]
        return {**settings, "output_labels": labels, "classes": len(labels)}

    def sizes(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        return {**super().sizes(settings), "classes": settings["classes"]}

    def _from_keys(self, model: Model) -> dict[str, Any]:
        settings = super()._from_keys(model)
        return {**settings, "classes": len(settings.get("output_labels") or [""])}


JINA = "jina_embeddings_v5"
"""The type of Jina Embeddings 5 nano, a EuroBERT whose own code takes the state of the last token."""


class EuroBert(Encoder):
    """EuroBERT: a Llama whose tokens attend to those behind them, too."""

    model_type, architecture, class_name = "eurobert", "eurobert", "EuroBertModel"
    rows = base_rows(row for row in pre_norm_model(attention(bias=False), gated_mlp()) if row.gguf != "output")
    keys = (
        *ENCODER_KEYS,
        Key("num_key_value_heads", "attention.head_count_kv", required=False),
        Key("head_dim", "attention.key_length", required=False),
        Key("head_dim", "attention.value_length", required=False),
        Key("rope_theta", "rope.freq_base", "f32", required=False),
        Key("rms_norm_eps", "attention.layer_norm_rms_epsilon", "f32"),
    )
    fixed: ClassVar = {**Encoder.fixed, "hidden_act": "silu", "attention_bias": False, "mlp_bias": False}
    unstated: ClassVar = {"rms_norm_eps": 1e-05, "rope_theta": 250000.0}

    def pooling_of(self, config: Mapping[str, Any]) -> int | None:
        return LAST if config.get("model_type") == JINA else None

    def _from_config(self, model: Model) -> dict[str, Any]:
        settings = super()._from_config(model)
        if settings.get("model_type") == JINA and settings.get("is_decoder") is not False:
            raise FormatError(
                "is not stated as false: Jina Embeddings 5 small, a Qwen 3 of the same type, does not state it either",
                part=f"{CONFIG} is_decoder",
                code=ErrorCode.CONFIG,
                expected=False,
                found=repr(settings.get("is_decoder"))[:60],
                hint="Only the nano model, which is a EuroBERT, is mapped. To keep the names: {option:rename=keep}.",
            )
        return settings

    def carry(self, model: Model, settings: Mapping[str, Any], layout: str, options: Options) -> Carried:
        carried = super().carry(model, settings, layout, options)
        if layout != "gguf" or settings.get("model_type") != JINA:
            return carried
        check_pooling(model.assets, LAST)
        note = tasks_note(settings.get("task_names"), "convert them, too, each out of its own folder")
        return evolve(carried, notes=(*carried.notes, note))
