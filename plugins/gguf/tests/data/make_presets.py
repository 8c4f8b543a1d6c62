"""Makes presets.json: the types that llama.cpp's own quantizer gives the tensors of `tests/preset_models.py`.

    npm pack @node-llama-cpp/linux-x64@3.22.1 && tar xzf node-llama-cpp-linux-x64-3.22.1.tgz
    PYTHONPATH=tests python plugins/gguf/tests/data/make_presets.py package/bins/linux-x64

The package holds llama.cpp v0.5.0 (`llama_model_quantize`), which this calls on files of f16.
"""

from __future__ import annotations

import json
import sys
import tempfile
from ctypes import (
    CDLL,
    POINTER,
    RTLD_GLOBAL,
    Structure,
    byref,
    c_bool,
    c_char_p,
    c_float,
    c_int32,
    c_size_t,
    c_void_p,
    cast,
)
from pathlib import Path

import numpy as np
from preset_models import MODELS, Request, Shapes, in_runs, matrices, metadata, requests, title
from squish_gguf.presets import PRESETS
from squish_gguf.types import TYPES

import squish_core as squish
from squish_core.api import Typed

CODES = {kind.name.lower(): code for code, kind in TYPES.items()}


class Params(Structure):
    """llama_model_quantize_params."""

    _fields_ = (
        ("nthread", c_int32), ("ftype", c_int32), ("output", c_int32), ("embedding", c_int32), ("requantize", c_bool),
        ("quantize_output", c_bool), ("only_copy", c_bool), ("pure", c_bool), ("keep_split", c_bool),
        ("dry_run", c_bool), ("imatrix", c_void_p), ("overrides", c_void_p), ("types", c_void_p), ("prune", c_void_p),
        ("max_buffer", c_size_t),
    )  # fmt: skip


class Statistics(Structure):
    """llama_model_imatrix_data."""

    _fields_ = (("name", c_char_p), ("data", POINTER(c_float)), ("size", c_size_t))


class TypeOverride(Structure):
    """llama_model_tensor_override."""

    _fields_ = (("pattern", c_char_p), ("type", c_int32))


def load(folder: Path) -> CDLL:
    for name in ("libggml-base.so", "libggml.v0.5.0.so", "libllama.v0.5.0.so"):
        library = CDLL(str(folder / name), mode=RTLD_GLOBAL)
    library.llama_model_quantize_default_params.restype = Params
    return library


def types(library: CDLL, source: Path, target: Path, shapes: Shapes, request: Request) -> str | None:
    """The types of the matrices, or None where llama.cpp refuses."""
    preset, changes, with_statistics = request
    params = library.llama_model_quantize_default_params()
    changes = dict(changes)
    params.ftype, params.nthread = PRESETS[preset].number, 1
    params.pure = changes.pop("pure", "no") == "yes"
    for key in ("output", "embedding"):
        if key in changes:
            setattr(params, key, CODES[changes.pop(key)])
    overrides = (TypeOverride * (len(changes) + 1))()
    for place, (pattern, kind) in enumerate(changes.items()):
        overrides[place] = TypeOverride(pattern.lower().encode(), CODES[kind])
    params.types = cast(overrides, c_void_p)
    ones = np.ones(8192, np.float32)
    rows = [(name, shape) for name, shape in shapes.items() if len(shape) > 1]
    statistics = (Statistics * (len(rows) + 1))()
    for place, (name, shape) in enumerate(rows):
        size = shape[-1] * (shape[0] if len(shape) > 2 else 1)
        statistics[place] = Statistics(name.encode(), ones.ctypes.data_as(POINTER(c_float)), size)
    if with_statistics:
        params.imatrix = cast(statistics, c_void_p)
    if library.llama_model_quantize(str(source).encode(), str(target).encode(), byref(params)):
        return None
    with squish.open(target) as file:
        return in_runs([type_name(file[name]) for name in matrices(shapes)])


def type_name(tensor: squish.Tensor) -> str:
    """GGML's name of a tensor's type, in small letters."""
    codec = str(tensor.codec)
    return codec.removeprefix("ggml.") if codec.startswith("ggml.") else str(tensor.dtype)


def typed(value: object) -> object:
    """Numbers in the types that llama.cpp reads."""
    return value if isinstance(value, str) else Typed("u32" if isinstance(value, int) else "f32", value)


def main(folder: Path) -> None:
    library = load(folder)
    types_of = {}
    for model, (*_, shapes) in MODELS.items():
        with tempfile.TemporaryDirectory() as temporary:
            source, target = Path(temporary, "f16.gguf"), Path(temporary, "out.gguf")
            rng = np.random.default_rng(0)
            tensors = {
                name: rng.standard_normal(shape).astype("f4" if len(shape) == 1 else "f2")
                for name, shape in shapes.items()
            }
            squish.save(source, tensors, metadata={key: typed(value) for key, value in metadata(model).items()})
            types_of[model] = {
                title(request): types(library, source, target, shapes, request)
                for request in requests(model, tuple(PRESETS))
            }
    Path(__file__).with_suffix("").with_name("presets.json").write_text(json.dumps(types_of, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
