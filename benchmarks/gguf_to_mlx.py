"""A GGUF for mlx-lm: our conversion, and the usual way by transformers and mlx_lm.convert; what both keep."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import oracles

import squish_core as squish
from benchmarks.data import FOLDER
from benchmarks.models import Cost, keeping_bytecode, measure, remove, reread
from benchmarks.table import Row, markdown

sys.path.insert(0, str(oracles.ROOT / "examples"))  # the demo fetches real models

DECODE = """
import sys, transformers, torch
place, name, out = sys.argv[1:]
model = transformers.AutoModelForCausalLM.from_pretrained(place, gguf_file=name, dtype=torch.float16)
model.hf_quantizer = None  # else it is not saved
vars(model.config).pop("quantization_config", None)
model.save_pretrained(out)
transformers.AutoTokenizer.from_pretrained(place, gguf_file=name).save_pretrained(out)
"""
TEXTS = ("What is a codec?", "copy          2  1.536 kB", "½ ² ٣٤", "naïve café", "x = 100 + 23")
"""For tokenizers: words, a table, digits of several scripts."""


def run(quick: bool) -> str:
    """The median of interleaved runs of whole processes: of their CPU time, since one way takes all cores and long."""
    import demo

    source = demo.fetch("smollm2")
    with TemporaryDirectory(dir=FOLDER.parent if FOLDER.parent.exists() else None) as name:
        folder = Path(name)
        costs = interleave(source, folder, 1 if quick else 3)
        seconds = {way: median(sum(cost.processor for cost in run) for run in runs) for way, runs in costs.items()}
        with squish.open(source) as file:
            ours, usual = (squish.diff(file, folder / way) for way in ("ours", "usual"))
            codecs = {item: file[item].codec for item in file}
        worst = max(item.nmse or 0 for item in usual.tensors if codecs.get(item.name) == "ggml.q4_1")
        differ = texts_that_differ(folder / "ours", folder / "usual")
    note = (
        f"SmolLM2-135M-Instruct, {source.stat().st_size / 1e6:.0f} MB in Q4_1 with a Q8_0 embedding. CPU time (user "
        "and system) of whole processes with imports. The usual way: transformers decodes the GGUF and saves it, then "
        f"mlx_lm.convert quantizes it (4 bits in groups of 32). Ours: {'all' if ours.same else 'not all'} values, keys "
        "and files are equal, values bit for bit. The usual way: a second quantization, by which the Q4_1 matrices "
        f"have an NMSE of up to {worst:.2g}, and a tokenizer that splits {differ} of {len(TEXTS)} texts into other "
        "tokens than that of the file."
    )
    row = Row("GGUF to MLX", seconds["ours"], {"transformers, then mlx_lm": seconds["usual"]})
    return markdown("GGUF to MLX", note, [row])


def interleave(source: Path, folder: Path, rounds: int) -> dict[str, list[list[Cost]]]:
    """The costs of the processes of each way, in turns; the outputs of the last round stay."""
    torch, mlx = (str(oracles.peer(name).python) for name in ("squish-torch", "mlx-lm"))
    environment, decoded = keeping_bytecode(folder), str(folder / "decoded")
    convert = ["--hf-path", decoded, "-q", "--q-bits", "4", "--q-group-size", "32", "--mlx-path"]
    convert_ours = [sys.executable, "-m", "squish_core", "convert", "-q", "--to", "mlx"]
    ways: dict[str, list[list[str]]] = {
        "ours": [[*convert_ours, str(source), str(folder / "ours")]],
        "usual": [
            [torch, "-c", DECODE, str(source.parent), source.name, decoded],
            [mlx, "-m", "mlx_lm", "convert", *convert, str(folder / "usual")],
        ],
    }
    costs: dict[str, list[list[Cost]]] = {way: [] for way in ways}
    for _ in range(rounds + 1):
        for way, commands in ways.items():
            for target in (folder / way, Path(decoded)):
                remove(target)
            reread(source)
            os.sync()
            costs[way].append([measure(command, Path(command[-1]), environment) for command in commands])
    return {way: runs[1:] for way, runs in costs.items()}  # the first ones compile bytecode


def texts_that_differ(ours: Path, usual: Path) -> int:
    """Number of texts that two folders' tokenizers split into different tokens."""

    def split(folders: Any, texts: Any) -> Any:
        from tokenizers import Tokenizer

        return [
            [Tokenizer.from_file(f"{folder}/tokenizer.json").encode(text).ids for text in texts] for folder in folders
        ]

    one, other = oracles.peer("squish-torch").run(split, folders=[str(ours), str(usual)], texts=list(TEXTS))
    return sum(first != second for first, second in zip(one, other))
