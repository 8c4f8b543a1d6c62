"""Makes presets.json and preset_digests.json: the types, and digests of the blocks, that llama.cpp's own quantizer
gives the tensors of `tests/helpers/preset_models.py`.

    npm pack @node-llama-cpp/linux-x64@3.22.1 && tar xzf node-llama-cpp-linux-x64-3.22.1.tgz
    PYTHONPATH=tests python plugins/gguf/tests/data/make_presets.py package/bins/linux-x64

The package holds llama.cpp v0.5.0 (`llama_model_quantize`), which this calls on files of f16.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from ctypes import (
    CDLL,
    POINTER,
    RTLD_GLOBAL,
    Array,
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
from itertools import product
from pathlib import Path

import numpy as np
from preset_models import (
    MODELS,
    WEIGHED,
    Request,
    Shapes,
    digest,
    in_runs,
    is_low,
    matrices,
    metadata,
    requests,
    statistics,
    title,
    write_f16,
)
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
    sizes = {name: shape[-1] * (shape[0] if len(shape) > 2 else 1) for name, shape in shapes.items() if len(shape) > 1}
    vectors = {name: np.ones(size, np.float32) for name, size in sizes.items()}
    table = entries(vectors)
    if with_statistics:
        params.imatrix = cast(table, c_void_p)
    if library.llama_model_quantize(str(source).encode(), str(target).encode(), byref(params)):
        return None
    with squish.open(target) as file:
        return in_runs([type_name(file[name]) for name in matrices(shapes)])


def entries(vectors: Mapping[str, np.ndarray]) -> Array[Statistics]:
    """llama_model_imatrix_data of all tensors, and an empty one; pointers into the arrays, which must stay."""
    table = (Statistics * (len(vectors) + 1))()
    for place, (name, vector) in enumerate(vectors.items()):
        table[place] = Statistics(name.encode(), vector.ctypes.data_as(POINTER(c_float)), vector.size)
    return table


def digests(library: CDLL, model: str, folder: Path) -> dict[str, str]:
    """Digests of the blocks by preset, without and with activation statistics."""
    write_f16(folder / "f16.gguf", model)
    vectors = statistics(model)
    table = entries(vectors)
    result = {}
    for preset, is_weighed in product([name for name in PRESETS if not is_low(name)], (False, True)):
        params = library.llama_model_quantize_default_params()
        params.ftype, params.nthread = PRESETS[preset].number, 1
        params.imatrix = cast(table, c_void_p) if is_weighed else None
        source, target = (str(folder / name).encode() for name in ("f16.gguf", "out.gguf"))
        if not library.llama_model_quantize(source, target, byref(params)):
            result[f"{preset} with statistics" if is_weighed else preset] = digest(folder / "out.gguf")
    return result


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
    write("presets.json", types_of)
    with tempfile.TemporaryDirectory() as temporary:
        write("preset_digests.json", {model: digests(library, model, Path(temporary)) for model in WEIGHED})


def write(name: str, content: object) -> None:
    """Write a file of test data."""
    Path(__file__).with_name(name).write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
