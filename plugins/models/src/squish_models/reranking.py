"""Rerankers that are causal models: the score of two texts is the probability of one token against another one.

In Hugging Face the two are ids in `1_LogitScore/config.json`; llama.cpp wants their rows of the head as a classifier.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from attrs import evolve
from squish_convert.api import Carried, Model

from squish_core.api import DENSE, ErrorCode, FormatError, Typed

from .general import POOLING, RANK, SCORE, SCORE_FOLDER, module_settings
from .settings import HEAD
from .tokenizer import TEMPLATE, TEMPLATES, stored_tokens

SCORES, LABELS = "cls.output.weight", "classifier.output_labels"
"""GGUF's classifier, and the key with the names of its rows, which are the tokens."""
IDS = ("true_token_id", "false_token_id")
NAME = "rerank"
"""The name of the template that llama.cpp's server fills in for rerankers of two labels."""
PROMPT = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n"
    "<Query>: {query}\n<Document>: {document}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
"""The prompt of Qwen3-Reranker."""


def with_scores(architecture: str, model: Model, carried: Carried, layout: str) -> Carried:
    """Return what surrounds a GGUF's tensors, with the classifier of a reranker.

    Raises
    ------
    FormatError
        `config` for ids that are not two tokens: llama.cpp computes a probability among them.
    """
    settings = module_settings(model.assets, SCORE) if layout == "gguf" and model.layout != "gguf" else {}
    if not settings or model.rows is None:
        return carried
    place, tokens = f"{SCORE_FOLDER}/config.json", stored_tokens(carried.meta)
    ids = [settings.get(key) for key in IDS]
    for key, number in zip(IDS, ids):
        if type(number) is not int or not 0 <= number < len(tokens):
            raise FormatError(
                f"has a {key} that is not a token, and llama.cpp scores two texts by two tokens",
                part=place,
                code=ErrorCode.CONFIG,
                expected=f"an id below {len(tokens)}",
                found=repr(number)[:40],
            )
    rows = np.asarray(model.rows(_head(model), ids), np.float32)
    labels = {f"{architecture}.{LABELS}": Typed("array:str", [tokens[number] for number in ids])}
    names = list(getattr(carried.meta.get(TEMPLATES), "value", ()))
    prompts = {f"{TEMPLATE}.{NAME}": Typed("str", PROMPT), TEMPLATES: Typed("array:str", [*names, NAME])}
    meta = {**carried.meta, **labels, **(prompts if NAME not in names else {})}
    return evolve(carried, meta=meta, constants={**carried.constants, SCORES: rows})


def without_prompt(architecture: str, meta: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a GGUF's keys without the prompt that `with_scores` adds, which no file of a folder has."""
    prompt = meta.get(f"{TEMPLATE}.{NAME}")
    if getattr(prompt, "value", prompt) != PROMPT or score_settings(architecture, meta) is None:
        return meta
    names = [name for name in getattr(meta.get(TEMPLATES), "value", ()) if name != NAME]
    others = {key: value for key, value in meta.items() if key not in (f"{TEMPLATE}.{NAME}", TEMPLATES)}
    return {**others, TEMPLATES: Typed("array:str", names)} if names else others


def check_scores(architecture: str, model: Model, layout: str) -> None:
    """Raise FormatError for a GGUF with a classifier other than two rows of its head, which a folder cannot express."""
    if model.layout != "gguf" or layout == "gguf" or SCORES not in model.tensors or model.rows is None:
        return
    ids = score_ids(architecture, model.meta)
    if ids is None or not _is_same(model, _head(model), ids):
        raise FormatError(
            f"is not the rows of the tokens in {architecture}.{LABELS}, which is all that a folder can express",
            tensor=SCORES,
            code=ErrorCode.UNMAPPED,
            hint="Write only the tensors, under their own names: {option:rename=keep}.",
        )


def score_ids(architecture: str, meta: Mapping[str, Any]) -> list[int] | None:
    """Return the ids of the tokens whose rows are a GGUF's classifier; None if it is none of two tokens."""
    stored, tokens = meta.get(f"{architecture}.{LABELS}"), stored_tokens(meta)
    labels: Sequence[str] = tuple(getattr(stored, "value", stored) or ())
    if len(labels) != 2 or not {*labels} <= {*tokens}:
        return None
    return [tokens.index(label) for label in labels]


def score_settings(architecture: str, meta: Mapping[str, Any]) -> dict[str, int] | None:
    """Return the settings of the module that scores two texts; None for a GGUF that is not such a reranker."""
    pooling = meta.get(f"{architecture}.{POOLING}")
    ids = score_ids(architecture, meta) if getattr(pooling, "value", pooling) == RANK else None
    return dict(zip(IDS, ids)) if ids is not None else None


def _head(model: Model) -> str:
    """Return the name of the head, or of the embeddings if it is tied to them."""
    ends = ("output.weight", "token_embd.weight") if model.layout == "gguf" else (HEAD, "embed_tokens.weight")
    names = [name for name in model.tensors if name != SCORES]
    return next(name for end in ends for name in names if name == end or name.endswith(f".{end}"))


def _is_same(model: Model, head: str, ids: Sequence[int]) -> bool:
    """Return whether the classifier is these rows of the head, except for the rounding of one of them."""
    assert model.rows is not None
    shape = model.tensors[SCORES].shape
    if len(shape) != 2 or shape[0] != len(ids) or shape[1:] != model.tensors[head].shape[1:]:
        return False
    one, other = (np.asarray(model.rows(name, rows), np.float64) for name, rows in ((SCORES, (0, 1)), (head, ids)))
    if all(each.codec == DENSE for name in (SCORES, head) for each in model.tensors[name].encodings):
        return bool(np.allclose(one, other, rtol=2**-7, atol=0))  # bf16 has eight bits
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    return bool((np.einsum("ij,ij->i", one, other) >= 0.99 * lengths).all())
