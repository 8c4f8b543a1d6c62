"""Layers behind the last one, which predict more tokens: those of one GGUF are added to another one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from attrs import evolve
from squish_convert.api import Model

from squish_core.api import ErrorCode, FormatError, Typed

from .config.spelling import BEHIND
from .general import SIZE, size_label
from .keep import same_value
from .settings import TextSettings

COUNT, PREDICTED = "block_count", "nextn_predict_layers"
EMBEDDINGS = "token_embd.weight"
_BLOCK = re.compile(r"blk\.(\d{1,9})\.")


def joined_layers(family: TextSettings, model: Model, other: Model) -> tuple[Mapping[str, Any], list[str]]:
    """Return the keys of a whole model, and the tensors that the GGUF of its last layers adds.

    Parameters
    ----------
    family
        The family of both.
    model, other
        The GGUF of the text layers, and that of the layers behind them.

    Returns
    -------
    tuple of (Mapping, list)
        The keys of the first one, those that count layers from the second one; and names of tensors.

    Raises
    ------
    FormatError
        The first one has such layers, the second one has none or others, or a key differs.
    """
    own, theirs = family.settings(model), family.settings(other)
    layers, count = own["num_hidden_layers"], theirs.get(BEHIND) or 0
    names = [name for name in other.tensors if (block := _BLOCK.match(name)) and int(block[1]) >= layers]
    lower = [name for name in other.tensors if (block := _BLOCK.match(name)) and int(block[1]) < layers]
    predicted = f"{family.architecture}.{PREDICTED}"
    found = theirs["num_hidden_layers"]
    if own.get(BEHIND):
        raise _error(model, "has these layers already", predicted, "a GGUF without them", model.value(predicted))
    if lower:
        expected = f"layers from {layers} on, as in {model.name}"
        raise _error(other, "has lower layers, too", lower[0], expected, f"{len(lower)} tensors of lower layers")
    if found != layers:
        expected, place = f"{layers} and those behind them", f"{family.architecture}.{COUNT}"
        raise _contradiction(other, model, place, expected, f"{found} and those behind them")
    if not count:
        raise _error(other, "has no layers behind the last one", predicted, "at least 1", other.value(predicted))
    counted, constants = _counted(family, model, other), [*model.vectors.values()]
    if model.value(SIZE) == size_label(family, model, own, constants):  # not the name of a published model
        whole = evolve(model, tensors={**model.tensors, **{name: other.tensors[name] for name in names}})
        counted[SIZE] = Typed("str", size_label(family, whole, theirs, constants))
    meta = {**model.meta, **counted}
    return {key: meta[key] for key in (*other.meta, *meta) if key in meta}, names  # in the order of a whole model


def _counted(family: TextSettings, model: Model, other: Model) -> dict[str, Any]:
    """The keys of the second GGUF that count layers; FormatError if another one differs."""
    counted, prefix = {}, f"{family.architecture}."
    shapes = [each.tensors[EMBEDDINGS].shape if EMBEDDINGS in each.tensors else None for each in (model, other)]
    if None not in shapes and shapes[0] != shapes[1]:
        raise _contradiction(other, model, EMBEDDINGS, *shapes)
    for key, value in other.meta.items():
        if key.removeprefix(prefix) in (COUNT, PREDICTED) and key.startswith(prefix):
            counted[key] = value
        elif key.startswith(prefix) and key in model.meta and not same_value(model.meta[key], value):
            if not _continues(model.meta[key], value):
                expected, found = (str(each.value(key))[:60] for each in (model, other))
                raise _contradiction(other, model, key, expected, found)
            counted[key] = value
    return counted


def _continues(one: Typed, other: Typed) -> bool:
    """Return whether a list has the values of another one, and more behind them."""
    if one.type != other.type or not one.type.startswith("array:"):
        return False
    return len(other.value) > len(one.value) and np.array_equal(other.value[: len(one.value)], one.value)


def _contradiction(other: Model, model: Model, part: str, expected: Any, found: Any) -> FormatError:
    """The error for a file with the layers of another model."""
    fault = f"has the layers of another model than {model.name}"
    return _error(other, fault, part, expected, found, ErrorCode.CONTRADICTION)


def _error(model: Model, fault: str, part: str, expected: Any, found: Any, code: str = ErrorCode.USAGE) -> FormatError:
    """The error for a file that has not the layers that are asked for."""
    return FormatError(
        fault,
        file=model.name,
        part=part,
        code=code,
        expected=expected,
        found=found,
        hint="Name the GGUF of a model's text layers, and that of the same model's layers behind them.",
    )
