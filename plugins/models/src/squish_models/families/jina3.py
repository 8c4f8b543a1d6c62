"""Jina Embeddings 3: XLM-RoBERTa with rotary positions, and an adapter for each task inside the checkpoint.

Source of the names and of GGUF's keys: llama.cpp, conversion/bert.py and src/models/bert.cpp. Its converter writes the
base model, and each task's adapter as a file of its own; here, the adapters are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from attrs import evolve
from squish_convert.api import Carried, Model, Rule

from squish_core.api import ErrorCode, FormatError, Options

from ..config.keys import Key
from ..settings import CONFIG
from ..tables import Row
from .bert import ROTARY, Bert, tasks_note

LAYER = "roberta.encoder.layers.{n}."
ADAPTED = ".parametrizations.weight.original"
"""Ends the names of matrices that have adapters."""
CODE = "jinaai/xlm-roberta-flash-implementation"
"""The repository with the code of these models, which Transformers does not have under their names."""
TASKS = "lora_adaptations"
PUBLISHED_TASKS = ("retrieval.query", "retrieval.passage", "separation", "classification", "text-matching")
"""The tasks of the published model, which a GGUF does not name."""


def _matrix(hf: str, gguf: str, *shape: str, **fields: Any) -> Row:
    return Row(hf, gguf, shape, layer=LAYER, suffix=ADAPTED, **fields)


def _norm(hf: str, gguf: str, **fields: Any) -> Row:
    return Row(hf, gguf, ("hidden_size",), biased=True, layer=LAYER, **fields)


class JinaBert3(Bert):
    """Jina Embeddings 3, without the adapters of its tasks."""

    model_type, architecture, class_name = "xlm-roberta", "jina-bert-v3", "XLMRobertaModel"
    rows = (
        _matrix("roberta.embeddings.word_embeddings", "token_embd", "vocab_size", "hidden_size", top=True),
        _matrix(
            "roberta.embeddings.token_type_embeddings", "token_types", "type_vocab_size", "hidden_size",
            f32=True, top=True,
        ),
        _norm("roberta.emb_ln", "token_embd_norm", top=True),
        _matrix("mixer.Wqkv", "attn_qkv", "qkv_rows", "hidden_size", biased=True),
        _matrix("mixer.out_proj", "attn_output", "hidden_size", "hidden_size", biased=True),
        _norm("norm1", "attn_output_norm"),
        _matrix("mlp.fc1", "ffn_up", "intermediate_size", "hidden_size", biased=True),
        _matrix("mlp.fc2", "ffn_down", "hidden_size", "intermediate_size", biased=True),
        _norm("norm2", "layer_output_norm"),
    )  # fmt: skip
    more: ClassVar[Mapping[str, Sequence[Rule]]] = {}
    prefixes: ClassVar[Mapping[str, str]] = {}
    keys = (
        Key("positions", "context_length"),
        *Bert.keys[1:],
        Key("rotary_emb_base", "rope.freq_base", "f32"),
    )
    own_names: ClassVar = {"rope_theta": "rotary_emb_base"}
    aliases: ClassVar = {"rope_theta": ("rotary_emb_base",)}
    fixed: ClassVar = {**Bert.fixed, "position_embedding_type": ROTARY, "use_reg_tokens": False}
    equivalents: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    unstated: ClassVar = {
        "max_position_embeddings": 512, "type_vocab_size": 2, "layer_norm_eps": 1e-12, "hidden_act": "gelu",
        "rotary_emb_base": 10000.0, "pad_token_id": 1,
    }  # fmt: skip
    derived: ClassVar[Sequence[str]] = (*(name for name in Bert.derived if name != "rope_theta"), "positions")
    heads: ClassVar[Sequence[str]] = ("*.lora_A", "*.lora_B", "roberta.pooler.*", "lm_head.*")
    remainder = "an adapter or a layer that is not of the base model"

    def spelled(self, config: Mapping[str, Any]) -> dict[str, Any]:
        settings = super().spelled(config)
        padding, positions = settings["pad_token_id"], settings["max_position_embeddings"]
        if type(padding) is not int or not 0 <= padding < positions - 1:
            raise FormatError(
                "is not the position of padding, which llama.cpp's converter takes from the number of positions",
                part=f"{CONFIG} pad_token_id",
                code=ErrorCode.CONFIG,
                expected=f"an integer from 0 to {positions - 2}, since there are {positions} positions",
                found=repr(padding)[:60],
            )
        return {**settings, "positions": positions - padding - 1}

    def _from_keys(self, model: Model) -> dict[str, Any]:
        settings = super()._from_keys(model)
        names = {
            "AutoConfig": "configuration_xlm_roberta.XLMRobertaFlashConfig",
            "AutoModel": "modeling_lora.XLMRobertaLoRA",
        }
        return {
            **settings,
            "auto_map": {kind: f"{CODE}--{name}" for kind, name in names.items()},
            "max_position_embeddings": settings["positions"] + 2,
            "pad_token_id": 1,
            TASKS: [*PUBLISHED_TASKS],
        }

    def carry(self, model: Model, settings: Mapping[str, Any], layout: str, options: Options) -> Carried:
        carried = super().carry(model, settings, layout, options)
        if layout != "gguf" or model.layout == "gguf":
            return carried
        note = tasks_note(settings.get(TASKS), "no program but llama.cpp's converter writes them as files")
        return evolve(carried, notes=(*carried.notes, note))
