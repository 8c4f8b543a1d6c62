"""ONNX: the time and memory of an export, and tokens per second of what it writes."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import oracles
from oracles import engines

import squish_core as squish
from benchmarks.data import FOLDER
from benchmarks.models import Cost, keeping_bytecode, make_model, measure
from benchmarks.table import Row, markdown

sys.path.insert(0, str(oracles.ROOT / "examples"))  # the demo fetches real models

LAYERS = 22
"""Of 2048 columns: 1.1 billion weights."""
COPY = """
import os, pathlib, shutil, sys
source, target = map(pathlib.Path, sys.argv[1:])
for path in source.iterdir():
    with open(path, "rb") as read, open(target / path.name, "wb") as written:
        shutil.copyfileobj(read, written, 1 << 20)
        written.flush()
        os.fsync(written.fileno())
"""
IMPORTS = (
    "import squish_cli.app, squish_convert.convert, squish_gguf.container, squish_ggml.codec, "
    "squish_models.family, squish_onnx.container"
)
PACKAGED = {"SmolLM2-135M Q4_1": "smollm2", "Gemma-3 270M Q4_K_M": "gemma"}
TOKENS = 32


def run(quick: bool) -> str:
    """An export against a copy of what it writes; a generated token in four engines."""
    return export(quick) + "\n" + generation(quick)


def export(quick: bool) -> str:
    """The least of interleaved runs of whole processes."""
    with TemporaryDirectory(dir=FOLDER.parent if FOLDER.parent.exists() else None) as name:
        folder = Path(name)
        source = make_model(folder / "source", 1 if quick else LAYERS)
        squish.convert(source, folder / "model.gguf", encode="q4_0")
        shutil.rmtree(source)
        python, written, environment = [sys.executable], folder / "written", keeping_bytecode(folder)
        convert = [*python, "-m", "squish_core", "convert", "--quiet", str(folder / "model.gguf")]
        in_folder([*convert, str(written / "model.onnx")], environment, written)
        size = sum(path.stat().st_size for path in written.iterdir())
        costs: dict[str, list[Cost]] = {"export": [], "copy": [], "import": []}
        for _ in range(1 if quick else 3):
            out = folder / "out"
            costs["export"].append(in_folder([*convert, str(out / "model.onnx")], environment, out))
            shutil.rmtree(out)
            costs["copy"].append(in_folder([*python, "-c", COPY, str(written), str(out)], environment, out))
            shutil.rmtree(out)
            costs["import"].append(measure([*python, "-c", IMPORTS], None, environment))
        seconds = {key: min(cost.seconds for cost in runs) for key, runs in costs.items()}
        peaks = {key: min(cost.peak for cost in runs) for key, runs in costs.items()}
    peak, above = peaks["export"] / 1e6, (peaks["export"] - peaks["import"]) / 1e6
    note = (
        f"A Llama of {1 if quick else LAYERS} layers in Q4_0, {size / 1e9:.2f} GB of ONNX. Whole processes, each the "
        f"least of interleaved runs; `copy` writes and syncs the same files. Private memory at most {peak:.0f} MB, "
        f"{above:.0f} MB above that of the imports (target: 300 MB)."
    )
    row = Row("GGUF to ONNX", seconds["export"], {"copy": seconds["copy"]}, size, "seconds beyond a copy")
    return markdown("ONNX export", note, [row])


def in_folder(command: Sequence[str], environment: Mapping[str, str], folder: Path) -> Cost:
    """The cost of a command that writes into a new folder."""
    folder.mkdir()
    return measure(command, folder, environment)


def generation(quick: bool) -> str:
    """Tokens per second, one thread each, the best of interleaved runs."""
    import demo

    lines = ["| model | squish-torch | onnxruntime | transformers, f32 | llama.cpp |", "|---|---|---|---|---|"]
    for title, name in PACKAGED.items():
        source = demo.fetch(name)
        with TemporaryDirectory() as folder:
            out = Path(folder)
            squish.convert(source, out / "values", "hf", encode="f32")
            (out / "onnx").mkdir()
            squish.convert(source, out / "onnx" / "model.onnx")
            models = {
                "squish-torch": source, "onnxruntime": out / "onnx" / "model.onnx", "transformers": out / "values",
                "llama.cpp": source,
            }  # fmt: skip
            ids = engines.ask("squish-torch", source, tokens=1, timeout=600).ids
            best = dict.fromkeys(models, float("inf"))
            for _ in range(1 if quick else 3):
                for engine, path in models.items():
                    answer = engines.ask(engine, path, ids, tokens=4 if quick else TOKENS, timeout=600)
                    best[engine] = min(best[engine], answer.seconds)
        lines.append(f"| {title} | " + " | ".join(f"{1 / seconds:.1f}" for seconds in best.values()) + " |")
        if quick:
            break
    note = f"Three prompts and {TOKENS} greedy tokens after each, one thread, the best of interleaved runs."
    return "\n".join(["## Generated tokens per second", "", note, "", *lines, ""])
