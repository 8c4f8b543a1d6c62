"""A model of Qwen2.5-1.5B's shapes: converting it to a npy directory, building its tiers, and loading each of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import oracles

from benchmarks import data
from benchmarks.table import Row, markdown, shown

LAYERS, HIDDEN, INNER, KEYS, WORDS = 28, 1536, 8960, 256, 151_936
TIERS = {"finalized": "finalized", "mlx": "squish_weights", "4bit": "squish_4bit"}
ROUNDS = 3
SAMPLE = Path(__file__).resolve().parent.parent / "tests" / "data" / "sample.npydir"


def run(quick: bool) -> str:
    """Conversions with their peak memory, then loading, then everything is deleted."""
    place = data.FOLDER / "tiers"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    try:
        source = model(place / "model.safetensors", 2 if quick else LAYERS)
        return "\n".join((converting(place, source), loading(place, source)))
    finally:
        shutil.rmtree(place)


def shapes(layers: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of Qwen2.5-1.5B, head tied to the embedding."""
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (WORDS, HIDDEN)}
    for number in range(layers):
        layer = f"model.layers.{number}"
        for name, rows in (("q_proj", HIDDEN), ("k_proj", KEYS), ("v_proj", KEYS), ("o_proj", HIDDEN)):
            found[f"{layer}.self_attn.{name}.weight"] = (rows, HIDDEN)
            if name != "o_proj":
                found[f"{layer}.self_attn.{name}.bias"] = (rows,)
        found |= {f"{layer}.mlp.{name}.weight": (INNER, HIDDEN) for name in ("gate_proj", "up_proj")}
        found[f"{layer}.mlp.down_proj.weight"] = (HIDDEN, INNER)
        found |= {f"{layer}.{name}.weight": (HIDDEN,) for name in ("input_layernorm", "post_attention_layernorm")}
    return {**found, "model.norm.weight": (HIDDEN,)}


def model(path: Path, layers: int) -> Path:
    """A safetensors file of bfloat16; the values repeat a seeded block."""
    header, end = {}, 0
    for name, shape in shapes(layers).items():
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    block = np.random.default_rng(0).normal(0, 0.02, 1 << 23).astype(np.float32)
    raw = (block.view(np.uint32) >> 16).astype("<u2").tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        while end:
            end -= file.write(raw[:end])
    return path


def converting(place: Path, source: Path) -> str:
    """To INT8 by rows and INT4, then each tier; seconds, and peak memory that is not the file's own pages."""
    lines = ["## A npy directory and its tiers", "", f"{source.stat().st_size / 1e9:.3g} GB of bf16.", ""]
    lines += ["| step | time | input per second | peak memory |", "|---|---|---|---|"]
    steps = {"read the source once": f"for c in iter(lambda f=open({str(source)!r}, 'rb'): f.read(1 << 22), b''): pass"}
    for name in ("int8", "int4"):
        call = f"squish.convert({str(source)!r}, {str(place / name)!r}, 'npydir', 'mixed:bits={name[3:]},outliers=0')"
        steps[f"convert to {name}"] = f"import squish_core as squish; {call}"
    for tier in TIERS:
        folder = place / ("int4" if tier == "4bit" else "int8")
        steps[f"cache build {tier}"] = f"from squish_npydir import cache; cache.build({str(folder)!r}, {tier!r})"
    for step, code in steps.items():
        seconds, _, peak = timed(code)
        rate = source.stat().st_size / seconds / 1e9
        lines.append(f"| {step} | {shown(seconds)} | {rate:.2f} GB/s | {peak / 1e6:.0f} MB |")
    return "\n".join([*lines, ""])


def timed(code: str) -> tuple[float, int, int]:
    """Seconds, anonymous bytes at the end, and the peak of resident anonymous bytes, of code in a fresh process."""
    watched = f"""
import json, threading, time
def anonymous():
    lines = open("/proc/self/status").read().split()
    return 1024 * int(lines[lines.index("RssAnon:") + 1])
import numpy, squish_core as squish
with squish.open({str(SAMPLE)!r}) as file:  # imports what there is to import
    warm = [(tensor.numpy(), tensor.load()) for tensor in file.values()]
before, peak, done = anonymous(), [0], threading.Event()
def watch():
    while not done.wait(0.01):
        peak[0] = max(peak[0], anonymous())
threading.Thread(target=watch, daemon=True).start()
started = time.perf_counter()
{code}
seconds = time.perf_counter() - started
done.set()
print(json.dumps([seconds, anonymous() - before, max(peak[0], anonymous()) - before]))
"""
    found = subprocess.run([sys.executable, "-c", watched], check=True, capture_output=True, text=True)
    seconds, held, peak = json.loads(found.stdout)
    return seconds, held, peak


def loading(place: Path, source: Path) -> str:
    """Every tensor ready to use: arrays (views where they can be), or weights still packed (4bit, int8)."""
    ways = {
        "squish_weights": (place / "int8", "keep = squish.open({path!r}).numpy()", ".squish_ready"),
        "finalized": (place / "int8", "keep = squish.open({path!r}).numpy()", "finalized/.ready"),
        "int8, packed": (place / "int8", "keep = [t.load() for t in squish.open({path!r}).values()]", None),
        "squish_4bit, packed": (place / "int4", "keep = [t.load() for t in squish.open({path!r}).values()]", None),
    }
    theirs = {name: peer_time(name, source) for name in ("safetensors", "torch", "mlx")}
    rows, notes = [], []
    for way, (folder, code, sentinel) in ways.items():
        for cold in (False, True):
            results = []
            for _ in range(ROUNDS):
                if cold:
                    evicted(folder)
                results.append(timed(code.format(path=str(folder))))
            seconds = float(np.median([result[0] for result in results]))
            what = f"{way}, {'cold' if cold else 'warm'}"
            rows.append(Row(what, seconds, {name: found[cold] for name, found in theirs.items()}))
            notes.append(f"{what}: {max(result[1] for result in results) / 1e6:.1f} MB")
        if sentinel:
            (folder / sentinel).unlink()  # what comes next is a tier further down
    held = "; ".join(f"{name} {found[2] / 1e6:.0f} MB" for name, found in theirs.items())
    note = f"Added anonymous memory: {'; '.join(notes)}; others: {held}."
    return markdown("Load every tensor", note, rows)


def evicted(folder: Path) -> None:
    """Drop all files of a folder from the page cache."""
    for root, _, names in os.walk(folder):
        for name in names:
            data.evict(Path(root) / name)


def peer_time(name: str, source: Path) -> tuple[float, float, int]:
    """A peer's medians, warm and cold, and the anonymous memory it adds."""
    found = []
    for cold in (False, True):
        results = []
        for _ in range(ROUNDS):
            if cold:
                data.evict(source)
            results.append(oracles.peer(name).run(load_all, path=str(source), name=name))
        found.append((float(np.median([seconds for seconds, _ in results])), max(held for _, held in results)))
    return found[0][0], found[1][0], found[0][1]


def load_all(path: str, name: str) -> tuple[float, int]:
    """Runs in the peer: seconds and added anonymous bytes of its own way to load a whole file."""
    import time

    def anonymous() -> int:
        with open("/proc/self/status") as status:
            words = status.read().split()
        return 1024 * int(words[words.index("RssAnon:") + 1])

    if name == "mlx":
        import mlx.core as mx

        def load() -> object:
            arrays = mx.load(path)
            mx.eval(arrays)
            return arrays
    elif name == "torch":
        from safetensors.torch import load_file

        def load() -> object:
            return load_file(path)
    else:
        from safetensors.numpy import load_file

        def load() -> object:
            return load_file(path)

    before, started = anonymous(), time.perf_counter()
    keep = load()
    return time.perf_counter() - started, (anonymous() - before) * bool(keep)
