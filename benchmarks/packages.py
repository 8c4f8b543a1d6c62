"""Core ML packages and palettes: time against coremltools and scikit-learn, and own memory."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import oracles
from squish_codecs.api import Palette
from squish_testing.sources import memory_file

from benchmarks.table import Row, markdown
from squish_core.api import CodecSpec, TensorSpec
from squish_core.plugins.registry import registry

# Runs in a process of its own, which reports how far its resident set grew (Linux; the peak is reset first, because a
# new process inherits that of its parent).
BUILD = """
import re, sys
from pathlib import Path
import squish_core as squish
def kilobytes(name):
    return int(re.search(name + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
path, target, encode = sys.argv[1:]
Path("/proc/self/clear_refs").write_text("5")
before = kilobytes("VmRSS")
squish.convert(path, target, encode=encode)
print((kilobytes("VmHWM") - before) // 1024)
"""


def run(quick: bool) -> str:
    """Palettes of one matrix, packages of many, and the memory that building one takes."""
    size, layers = (256, 4) if quick else (768, 4)
    rows = [palette(size, fit) for fit in ("kmeans", "uniform")]
    rows += [package(size, layers, name) for name in ("lut4", "int8")]
    note = (
        f"4-bit palettes of {size}x{size} normal values, and packages of {layers} such layers from f32. coremltools "
        f"builds and compresses in memory; ours streams: {memory(size, 4 if quick else 64)}."
    )
    return markdown("Core ML packages", note, rows)


def palette(size: int, fit: str) -> Row:
    """A palette of one matrix."""
    values = np.random.default_rng(0).standard_normal((size, size)).astype(np.float32)
    codec = Palette.from_params({"bits": 4, "axis": "flat", "codebook_dtype": "f16", "fit": fit})
    calls: dict[str, Any] = {"ours": lambda: codec.encode(values)}
    calls["coremltools"] = oracles.peer("coremltools").prepare(their_palette, values=values, fit=fit)
    if fit == "kmeans":
        calls["scikit-learn"] = oracles.peer("coremltools").prepare(their_clusters, values=values)
    seconds = oracles.interleave(calls)
    return Row(f"4-bit palette, {fit}", seconds.pop("ours"), seconds, values.nbytes)


def package(size: int, layers: int, name: str) -> Row:
    """A package of many layers."""
    with tempfile.TemporaryDirectory() as folder:
        count = iter(range(1_000_000))
        file = model(size, layers)

        def ours() -> None:
            from squish_convert.convert import convert

            convert(file, Path(folder) / f"{next(count)}.mlpackage", encode=name)

        theirs = oracles.peer("coremltools").prepare(their_package, size=size, layers=layers, name=name, folder=folder)
        seconds = oracles.interleave({"ours": ours, "coremltools": theirs})
    return Row(f"package of {layers} layers, {name}", seconds.pop("ours"), seconds, 4 * layers * size * size)


def model(size: int, layers: int) -> Any:
    """An open file of matrices."""
    chance = np.random.default_rng(0)
    tensors = {}
    for number in range(layers):
        spec = TensorSpec(name=f"w{number}", shape=(size, size), dtype="f32")
        tensors[spec.name] = (spec, CodecSpec("dense"), {"data": chance.standard_normal(spec.shape, np.float32)})
    return memory_file(registry(), tensors)[0]


def memory(size: int, layers: int) -> str:
    """How far the resident set of a process grows that builds a package, beside the bytes of the model."""
    from squish_convert.convert import convert

    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "plain.safetensors"
        convert(model(size, layers), source)
        notes = []
        for name in ("lut4", "int8"):
            command = [sys.executable, "-c", BUILD, str(source), f"{folder}/{name}.mlpackage", name]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            notes.append(f"{name} {done.stdout.strip()} MiB")
        whole = source.stat().st_size >> 20
    return f"the resident set grows by {', '.join(notes)} for a model of {whole} MiB, including its mapped pages"


def their_palette(values: Any, fit: str) -> object:
    """Runs in the peer."""
    import logging

    logging.disable(logging.CRITICAL)
    from coremltools.optimize.coreml._quantization_passes import palettize_weights

    half = values.astype(np.float16)
    return lambda: palettize_weights.blockwise_compress(half, fit.upper(), 4, block_sizes=[0, 0])


def their_clusters(values: Any) -> object:
    """Runs in the peer: k-means from 16 even quantiles, one start."""
    from sklearn.cluster import KMeans

    flat = values.reshape(-1, 1)
    start = np.quantile(flat, (np.arange(16) + 0.5) / 16)[:, None]
    return lambda: KMeans(16, init=start, n_init=1, max_iter=100).fit(flat)


def their_package(size: int, layers: int, name: str, folder: str) -> object:
    """Runs in the peer: build a program of linear layers, compress and save it."""
    import logging
    import os

    os.environ["TQDM_DISABLE"] = "1"
    logging.disable(logging.CRITICAL)
    import coremltools as ct
    import coremltools.optimize.coreml as cto
    from coremltools.converters.mil import Builder
    from coremltools.converters.mil.mil import types

    chance = np.random.default_rng(0)
    weights = [chance.standard_normal((size, size), np.float32).astype(np.float16) for _ in range(layers)]
    inputs = [Builder.TensorSpec(shape=(1, size), dtype=types.fp16)]

    def build(x):  # type: ignore[no-untyped-def]
        return tuple(Builder.linear(x=x, weight=weight) for weight in weights)

    def call() -> None:
        program = Builder.program(input_specs=inputs, opset_version=ct.target.iOS18)(build)
        package = ct.convert(
            program,
            source="milinternal",
            convert_to="mlprogram",
            minimum_deployment_target=ct.target.iOS18,
            skip_model_load=True,
        )
        if name == "lut4":
            config = cto.OptimizationConfig(global_config=cto.OpPalettizerConfig(mode="kmeans", nbits=4))
            package = cto.palettize_weights(package, config)
        else:
            config = cto.OptimizationConfig(global_config=cto.OpLinearQuantizerConfig(mode="linear_symmetric"))
            package = cto.linear_quantize_weights(package, config)
        package.save(f"{folder}/theirs.mlpackage")

    return call
