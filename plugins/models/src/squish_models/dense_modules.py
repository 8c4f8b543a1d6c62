"""The dense modules of sentence-transformers behind the pooling, which GGUF stores as `dense_2` and `dense_3`.

Source: llama.cpp, `EmbeddingGemma` in conversion/gemma.py, and `build_dense_out` in src/llama-graph.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from squish_convert.api import Model

from squish_core.api import ErrorCode, FormatError

from .config.keys import Key
from .general import MODULES, listed_modules
from .tables import Row

KIND, IDENTITY = "Dense", "torch.nn.modules.linear.Identity"
DENSE = {"dense_2": "2_Dense", "dense_3": "3_Dense"}
"""GGUF's name of a matrix -> the folder of its module."""
DENSE_KEYS = tuple(
    Key(f"{name}_{side}", f"{name}_feat_{side}", required=False) for name in DENSE for side in ("in", "out")
)
DENSE_ROWS = (
    Row(f"{DENSE['dense_2']}/linear", "dense_2", ("dense_2_out", "hidden_size"), required=False, top=True),
    Row(f"{DENSE['dense_3']}/linear", "dense_3", ("hidden_size", "dense_3_in"), required=False, top=True),
)


def dense_settings(model: Model) -> dict[str, int]:
    """Return the inputs and outputs of a folder's dense modules.

    Raises
    ------
    FormatError
        llama.cpp computes something else than the modules.
    """
    settings: dict[str, int] = {}
    names = {path: name for name, path in DENSE.items()}
    for path in listed_modules(model.assets, KIND):
        name, weight = names.get(path), model.tensors.get(f"{path}/linear.weight")
        if name is None or weight is None or len(weight.shape) != 2:
            problem = "which llama.cpp does not read" if name is None else "which has no matrix linear.weight"
            raise FormatError(
                f"lists the module {path}, {problem}",
                part=MODULES,
                code=ErrorCode.UNMAPPED,
                expected=f"modules with a model.safetensors in {' and '.join(names)}",
                found=path,
            )
        rows, columns = weight.shape
        _check_module(model, path, {"in_features": columns, "out_features": rows, "bias": False})
        settings |= {f"{name}_in": columns, f"{name}_out": rows}
    return settings


def _check_module(model: Model, path: str, facts: Mapping[str, Any]) -> None:
    """Raise FormatError for a module that computes more than its matrix, or states other sizes."""
    place = f"{path}/config.json"
    stated = model.config(place)
    for key, value in {**facts, "activation_function": IDENTITY}.items():
        if stated.get(key, value) != value:
            raise FormatError(
                "is not what its matrix computes, and llama.cpp computes nothing else",
                part=f"{place} {key}",
                code=ErrorCode.CONFIG,
                expected=repr(value),
                found=repr(stated[key])[:60],
            )


def check_dense(settings: Mapping[str, Any], place: str) -> None:
    """Raise FormatError if the inputs of a matrix are not the outputs of the one before it."""
    size = settings["hidden_size"]
    ends = [settings[f"{name}_{side}"] for name in DENSE for side in ("in", "out") if f"{name}_{side}" in settings]
    if ends and (pairs := [size, *ends, size]) and pairs[::2] != pairs[1::2]:
        raise FormatError(
            "has dense modules whose outputs are not the inputs behind them",
            part=place,
            code=ErrorCode.CONTRADICTION,
            expected=f"matrices from {size} back to {size} values, as llama.cpp computes",
            found=", ".join(map(str, ends)),
        )


def dense_files(settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the settings of the modules by folder, for those that a GGUF has."""
    return {
        path: {
            "in_features": settings[f"{name}_in"],
            "out_features": settings[f"{name}_out"],
            "bias": False,
            "activation_function": IDENTITY,
        }
        for name, path in DENSE.items()
        if f"{name}_out" in settings
    }
