"""Quantized checkpoints: opening a large sharded one, and repacking codes beside copying as many bytes."""

from __future__ import annotations

import json
import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import oracles
from squish_testing import CountingSource

import squish_core as squish
from benchmarks.data import FOLDER, write_header
from benchmarks.table import Row, markdown
from squish_core.api import open_source

SHARDS, LAYERS, GROUP = 4, 100, 128
SHAPE = (4096, 14336)
PIECE = 4 << 20
PAIRS = (
    ("GPTQ", "gguf"), ("GGUF Q4_0", "hf:method=gptq"), ("GPTQ", "mlx"), ("MLX", "hf:method=gptq"), ("AWQ", "mlx"),
    ("AWQ", "hf:method=compressed-tensors"), ("compressed-tensors", "hf:method=awq"), ("GGUF Q4_0", "mlx"),
)  # fmt: skip
TARGETS = {"GPTQ": "hf:method=gptq", "AWQ": "hf:method=awq", "MLX": "mlx", "GGUF Q4_0": "gguf"}
Tensor = tuple[str, list[int], bytes | int]
"""Safetensors' dtype, shape, and the bytes, or a number of zeros."""


def run(quick: bool) -> str:
    """Opening, then every pair of families."""
    return "\n".join([opening(), repacking(1 if quick else 8, 3 if quick else 7)])


def opening() -> str:
    """A GPTQ checkpoint whose data are holes of sparse files: it is opened by its headers."""
    folder = FOLDER / "gptq-12gb"
    total = sparse(folder) if not folder.exists() else sum(path.stat().st_size for path in folder.iterdir())
    source = CountingSource(open_source(folder))
    with squish.open(source) as file:
        listed = len(file)
    read = sum(length for *_, length in source.log)
    shards = [str(path) for path in sorted(folder.glob("*.safetensors"))]
    peer = oracles.peer("safetensors").prepare(listing, paths=shards)
    seconds = oracles.interleave({"ours": partial(open_and_list, folder), "safetensors": peer})
    row = Row("open and list shapes", seconds.pop("ours"), seconds)
    note = (
        f"GPTQ of 4 bits in {SHARDS} sparse shards, {total / 1e9:.1f} GB, {listed} layers of four tensors each, "
        f"combined into one. Opening reads {read:,} bytes, headers and JSON; safetensors lists the stored tensors."
    )
    return markdown("A large quantized checkpoint", note, [row])


def sparse(folder: Path) -> int:
    """Write the shards of a large checkpoint as sparse files; returns their size in bytes."""
    rows, columns = SHAPE
    layer: dict[str, Tensor] = {
        "qweight": ("I32", [columns // 8, rows], rows * columns // 2),
        "qzeros": ("I32", [columns // GROUP, rows // 8], rows * columns // GROUP // 2),
        "scales": ("F16", [columns // GROUP, rows], 2 * rows * columns // GROUP),
        "g_idx": ("I32", [columns], 4 * columns),
    }
    folder.mkdir(parents=True)
    weight_map: dict[str, str] = {}
    for shard in range(SHARDS):
        path = folder / f"model-{shard + 1:05}-of-{SHARDS:05}.safetensors"
        arrays = {
            f"model.layers.{shard * LAYERS + number}.mlp.down_proj.{field}": tensor
            for number in range(LAYERS)
            for field, tensor in layer.items()
        }
        save(path, arrays)
        weight_map |= dict.fromkeys(arrays, path.name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    declare(folder, {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False})
    return sum(path.stat().st_size for path in folder.iterdir())


def save(path: Path, tensors: dict[str, Tensor]) -> None:
    """A safetensors file; data given as a number of zeros become a hole."""
    header, end = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        size = data if isinstance(data, int) else len(data)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    with path.open("wb") as file:
        write_header(file, header)
        start = file.tell()
        for _, _, data in tensors.values():
            file.seek(data, os.SEEK_CUR) if isinstance(data, int) else file.write(data)
        file.truncate(start + end)


def declare(folder: Path, quantization: dict[str, Any]) -> None:
    (folder / "config.json").write_text(json.dumps({"quantization_config": quantization}))


def open_and_list(folder: Path) -> int:
    """Open and list."""
    with squish.open(folder) as file:
        return sum(file[name].shape[0] for name in file)


def listing(paths: list[str]) -> Any:
    """Runs in the peer."""
    from safetensors import safe_open

    def call() -> int:
        count = 0
        for path in paths:
            with safe_open(path, framework="np") as file:
                count += sum(file.get_slice(name).get_shape()[0] for name in file.keys())  # noqa: SIM118
        return count

    return call


def repacking(layers: int, rounds: int) -> str:
    """Conversions between families whose codes fit, beside reading and writing as many bytes."""
    folder = FOLDER / f"repack-{layers}"
    if not folder.exists():
        sources(folder, layers)
    rows = []
    for number, (name, target) in enumerate(PAIRS):
        source, target_path = path_of(folder, name), folder / f"out-{number}{'.gguf' if target == 'gguf' else ''}"
        repack(source, target_path, target)
        size = size_of(target_path)
        calls = {
            "ours": partial(repack, source, target_path, target),
            "read + write": partial(read_and_write, source, folder / "copy", size),
        }
        seconds = oracles.interleave(calls, rounds)
        rows.append(Row(f"{name} to {target}", seconds.pop("ours"), seconds, size_of(source) + size))
    note = (
        f"{layers} layers of 4096x4096, 4 bits in groups of 32, from a cached file to a synced one. `read + write` "
        "reads the source into a buffer, then writes and syncs as many bytes as the target has: the lower limit. "
        "Rates count bytes read and written."
    )
    return markdown("Repacking", note, rows)


def sources(folder: Path, layers: int) -> None:
    """Random symmetric codes in compressed-tensors, converted to the other families."""
    rng, (rows, columns) = np.random.default_rng(0), (4096, 4096)
    first = folder / "compressed-tensors"
    first.mkdir(parents=True)
    tensors: dict[str, Tensor] = {}
    for number in range(layers):
        name = f"model.layers.{number}.mlp.down_proj"
        scale = rng.uniform(1e-3, 1e-2, (rows, columns // 32)).astype("<f2")
        tensors |= {
            f"{name}.weight_packed": ("I32", [rows, columns // 8], rng.bytes(rows * columns // 2)),
            f"{name}.weight_scale": ("F16", list(scale.shape), scale.tobytes()),
            f"{name}.weight_shape": ("I64", [2], np.array([rows, columns], "<i8").tobytes()),
        }
    save(first / "model.safetensors", tensors)
    weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    declare(first, {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": groups})
    for name, target in TARGETS.items():
        squish.convert(first, path_of(folder, name), target)


def path_of(folder: Path, name: str) -> Path:
    """Path of the checkpoint in a family."""
    return folder / (f"{name}.gguf" if TARGETS.get(name) == "gguf" else name)


def size_of(path: Path) -> int:
    """Bytes of a file, or of the shards in a folder."""
    files = path.glob("*.safetensors") if path.is_dir() else [path]
    return sum(path.stat().st_size for path in files)


def repack(source: Path, target_path: Path, target: str) -> None:
    """Convert, replacing an earlier target; every tensor must be repacked."""
    if target_path.is_dir():
        shutil.rmtree(target_path)
    steps = squish.convert(source, target_path, target).steps
    assert {step.action for step in steps} == {"repack"}, steps


def read_and_write(source: Path, target: Path, size: int) -> None:
    """Read all of the source, and write and sync `size` bytes."""
    buffer = bytearray(PIECE)
    for path in source.glob("*.safetensors") if source.is_dir() else [source]:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    with target.open("wb", buffering=0) as file:
        for start in range(0, size, PIECE):
            file.write(memoryview(buffer)[: size - start])
        os.fsync(file.fileno())
