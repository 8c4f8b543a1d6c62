"""A large checkpoint opens by its headers; its data, a hole in a sparse file, are not touched."""

from __future__ import annotations

import json
import os
import time
import tracemalloc
from pathlib import Path

from squish_testing import CountingSource

import squish_core as squish
from squish_core.api import open_source

ROWS, COLUMNS, GROUP = 4096, 14336, 128
SHARDS, LAYERS = 4, 100
PARTS = {
    "qweight": ("I32", [COLUMNS // 8, ROWS]), "qzeros": ("I32", [COLUMNS // GROUP, ROWS // 8]),
    "scales": ("F16", [COLUMNS // GROUP, ROWS]), "g_idx": ("I32", [COLUMNS]),
}  # fmt: skip


def checkpoint(folder: Path) -> int:
    """Writes the headers of a GPTQ checkpoint in four shards; its size in bytes."""
    places, total = {}, 0
    for shard in range(SHARDS):
        header, end = {}, 0
        for layer in range(LAYERS):
            for field, (dtype, shape) in PARTS.items():
                name = f"model.layers.{shard * LAYERS + layer}.mlp.down_proj.{field}"
                size = (2 if dtype == "F16" else 4) * shape[0] * (shape[1] if len(shape) > 1 else 1)
                header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
                places[name] = f"model-{shard + 1:05}-of-{SHARDS:05}.safetensors"
                end += size
        text = json.dumps(header).encode()
        path = folder / places[name]
        path.write_bytes(len(text).to_bytes(8, "little") + text)
        os.truncate(path, 8 + len(text) + end)
        total += end
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    quantization = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False}
    (folder / "config.json").write_text(json.dumps({"quantization_config": quantization}))
    return total


def test_twelve_gigabytes_open_by_their_headers(tmp_path: Path) -> None:
    assert checkpoint(tmp_path) > 12 * 10**9
    headers = sum(path.stat().st_blocks * 512 for path in tmp_path.iterdir())
    started = time.monotonic()
    tracemalloc.start()
    try:
        source = CountingSource(open_source(tmp_path))
        with squish.open(source) as file:
            assert (len(file), file.problems) == (SHARDS * LAYERS, ())
            assert file["model.layers.7.mlp.down_proj.weight"].shape == (ROWS, COLUMNS)
            assert file["model.layers.7.mlp.down_proj.weight"].plan().chosen
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sum(length for *_, length in source.log) <= 2 * headers
    assert peak < 64 << 20
    assert time.monotonic() - started < 30  # a guard against hanging
