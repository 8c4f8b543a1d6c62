"""Small models on which presets are compared with llama.cpp's own quantizer: their settings and shapes."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

import squish_core as squish
from squish_core.model import Typed

Shapes = dict[str, tuple[int, ...]]
ROWS = 2
WEIGHED = ("llama, 8 layers", "mixtral, 8 experts")
"""Models whose blocks are compared too, with and without activation statistics."""


def _layers(count: int, tensors: dict[str, int], experts: int = 0) -> Shapes:
    """Matrices of ROWS rows, of these widths, for each layer; experts' ones stacked; and a norm."""
    shapes: Shapes = {}
    for layer in range(count):
        shapes[f"blk.{layer}.attn_norm.weight"] = (256,)
        for name, width in tensors.items():
            stacked = (experts,) if name.endswith("_exps") else ()
            shapes[f"blk.{layer}.{name}.weight"] = (*stacked, ROWS, width)
    return shapes


ATTENTION = {"attn_q": 256, "attn_k": 256, "attn_v": 256, "attn_output": 256}
MLP = {"ffn_gate": 256, "ffn_up": 256, "ffn_down": 512}
EXPERTS = {"ffn_gate_inp": 256, "ffn_gate_exps": 256, "ffn_up_exps": 256, "ffn_down_exps": 512}
HEAD: Shapes = {"token_embd.weight": (ROWS, 256), "output_norm.weight": (256,), "output.weight": (ROWS, 256)}
TIED: Shapes = {"token_embd.weight": (ROWS, 256), "output_norm.weight": (256,)}

# name -> (architecture, layers, heads, key-value heads, experts, shapes)
MODELS: dict[str, tuple[str, int, int, int, int, Shapes]] = {
    "llama, 8 layers": ("llama", 8, 4, 4, 0, {**HEAD, **_layers(8, {**ATTENTION, **MLP})}),
    "llama, 33 layers": ("llama", 33, 8, 2, 0, {**HEAD, **_layers(33, {**ATTENTION, **MLP})}),
    "llama, 33 layers, tied": ("llama", 33, 4, 2, 0, {**TIED, **_layers(33, {**ATTENTION, **MLP})}),
    "llama, 80 layers": ("llama", 80, 8, 1, 0, {**HEAD, **_layers(80, {"attn_v": 256, "ffn_down": 256})}),
    "mixtral, 8 experts": ("llama", 8, 8, 2, 8, {**HEAD, **_layers(8, {**ATTENTION, **EXPERTS}, 8)}),
    "qwen3moe, 4 experts": ("qwen3moe", 9, 8, 2, 4, {**HEAD, **_layers(9, {**ATTENTION, **EXPERTS}, 4)}),
    "gemma3, rows of 640": (
        "gemma3", 18, 4, 1, 0,
        {"token_embd.weight": (ROWS, 640), **_layers(18, {**dict.fromkeys(ATTENTION, 640), **MLP, "ffn_up": 640})},
    ),
    "llama, rows of 40": ("llama", 8, 4, 4, 0, {**HEAD, "output.weight": (ROWS, 40), **_layers(8, {"attn_v": 40})}),
    "falcon, 33 layers": (
        "falcon", 33, 8, 8, 0,
        {**HEAD, **_layers(33, {"attn_qkv": 256, "attn_output": 256, "ffn_up": 256, "ffn_down": 512})},
    ),
    "phi3, 8 layers": (
        "phi3", 8, 4, 4, 0,
        {**HEAD, **_layers(8, {"attn_qkv": 256, "attn_output": 256, "ffn_up": 256, "ffn_down": 512})},
    ),
}  # fmt: skip

# preset, parameters beside it, whether activation statistics are given
Request = tuple[str, dict[str, str], bool]
OVERRIDDEN: dict[str, tuple[Request, ...]] = {
    "llama, 8 layers": (
        ("q4_k_m", {"pure": "yes"}, False),
        ("q4_k_m", {"output": "q8_0"}, False),
        ("q4_k_m", {"embedding": "q6_k"}, False),
        ("q4_k_m", {"output": "f16", "embedding": "q5_0", "attn_v": "q8_0"}, False),
        ("q5_k_s", {r"blk\.[0-3]\.ffn_down": "q6_k", "ffn": "q4_0"}, False),
        ("q8_0", {"ATTN_K": "q4_k"}, False),
        ("f16", {"attn_v": "q8_0"}, False),
        ("q2_k_s", {}, True),
        ("q4_0", {}, True),
        ("q5_0", {}, True),
        ("q3_k_m", {}, True),
        ("iq4_nl", {}, True),
        ("iq4_xs", {}, True),
        ("q4_k_m", {"attn_q": "iq2_s"}, False),
    ),
    "llama, 33 layers, tied": (
        ("q4_k_m", {"output": "q8_0"}, False),
        ("q4_k_m", {"embedding": "q5_1"}, False),
        ("q4_k_m", {"attn_v": "q5_1"}, False),
        ("q4_k_m", {"pure": "yes"}, False),
        ("q2_k_s", {}, True),
    ),
    "gemma3, rows of 640": (("q4_k_m", {"pure": "yes"}, False), ("q5_k_m", {"attn_q": "q6_k"}, False)),
}  # fmt: skip


def metadata(model: str) -> dict[str, Any]:
    """GGUF metadata that llama.cpp's quantizer reads."""
    architecture, layers, heads, per_head, experts, _ = MODELS[model]
    settings: dict[str, Any] = {
        "context_length": 64, "embedding_length": 256, "block_count": layers, "feed_forward_length": 512,
        "attention.head_count": heads, "attention.head_count_kv": per_head,
        "attention.layer_norm_rms_epsilon": 1e-5, "attention.layer_norm_epsilon": 1e-5, "rope.dimension_count": 32,
        "attention.key_length": 32, "attention.value_length": 32, "vocab_size": ROWS,
    }  # fmt: skip
    if architecture == "gemma3":
        settings["attention.sliding_window"] = 32
    if experts:
        settings |= {"expert_count": experts, "expert_used_count": 2, "expert_feed_forward_length": 256}
    return {"general.architecture": architecture} | {f"{architecture}.{k}": v for k, v in settings.items()}


def write_f16(path: Path, model: str) -> None:
    """A seeded f16 file of a model, as llama.cpp's quantizer reads it."""
    generator = np.random.default_rng(0)
    tensors = {
        name: generator.standard_normal(shape).astype("f4" if len(shape) == 1 else "f2")
        for name, shape in MODELS[model][-1].items()
    }
    settings = {key: _typed(value) for key, value in metadata(model).items()}
    squish.save(path, tensors, metadata={**settings, "general.file_type": Typed("u32", 1)})


def statistics(model: str) -> dict[str, np.ndarray]:
    """Seeded mean squares of activations, [experts or 1, columns] of each matrix."""
    generator = np.random.default_rng(1)
    shapes = {name: shape for name, shape in MODELS[model][-1].items() if len(shape) > 1}
    sizes = {name: (shape[0] if len(shape) > 2 else 1, shape[-1]) for name, shape in shapes.items()}
    return {name: generator.random(size, np.float32) ** 4 + np.float32(1e-3) for name, size in sizes.items()}


def digest(path: Path) -> str:
    """SHA-256 of the types and bytes of all matrices, in the order of their names."""
    total = sha256()
    with squish.open(path) as file:
        for name in sorted(name for name in file if file[name].ndim > 1):
            total.update(f"{name} {file[name].codec} {file[name].dtype}".encode())
            total.update(file[name].parts()["data"].raw)
    return total.hexdigest()


def _typed(value: object) -> object:
    """A value in the type that llama.cpp reads."""
    return value if isinstance(value, str) else Typed("u32" if isinstance(value, int) else "f32", value)


def is_low(preset: str) -> bool:
    """Whether a preset has types of 1 to 3 bits that only libggml encodes."""
    return preset.startswith(("iq1", "iq2", "iq3"))


def requests(model: str, presets: tuple[str, ...]) -> Iterator[Request]:
    """All presets by themselves, those of 1 to 3 bits with statistics too, then those of OVERRIDDEN."""
    yield from ((preset, {}, False) for preset in presets)
    yield from ((preset, {}, True) for preset in presets if is_low(preset))
    yield from OVERRIDDEN.get(model, ())


def title(request: Request) -> str:
    """A request as one text."""
    preset, params, statistics = request
    return f"{preset}:{','.join(f'{k}={v}' for k, v in params.items())}" + (" with statistics" if statistics else "")


def matrices(shapes: Shapes) -> list[str]:
    """The names of the matrices, in order."""
    return sorted(name for name, shape in shapes.items() if len(shape) > 1)


def in_runs(types: list[str]) -> str:
    """Types as one text, `q4_k*3` for three in a row."""
    runs = [(kind, len(list(group))) for kind, group in groupby(types)]
    return " ".join(kind if count == 1 else f"{kind}*{count}" for kind, count in runs)
