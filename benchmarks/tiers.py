"""A model of Qwen2.5-1.5B's shapes: converting it to a npy directory, building its tiers, and loading each of them."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import oracles

import squish_core as squish
from benchmarks import data
from benchmarks.table import Row, format_seconds, markdown

LAYERS, HIDDEN, INNER, KEYS, WORDS = 28, 1536, 8960, 256, 151_936
TIERS = {"finalized": "finalized", "mlx": "squish_weights", "4bit": "squish_4bit"}
ROUNDS = {"warm": 3, "cold": 2}
"""Loads after the first: copying peers take seconds for each."""
SAMPLE = Path(__file__).resolve().parent.parent / "tests" / "data" / "sample.npydir"


def run(quick: bool) -> str:
    """Conversions with their peak memory, then loading, then everything is deleted."""
    root = data.FOLDER / "tiers"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    try:
        source = model(root / "model.safetensors", 2 if quick else LAYERS)
        return "\n".join((converting(root, source), document(root), loading(root, source)))
    finally:
        shutil.rmtree(root)


def shapes(layers: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of Qwen2.5-1.5B, head tied to the embedding."""
    tensors: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (WORDS, HIDDEN)}
    for number in range(layers):
        layer = f"model.layers.{number}"
        for name, rows in (("q_proj", HIDDEN), ("k_proj", KEYS), ("v_proj", KEYS), ("o_proj", HIDDEN)):
            tensors[f"{layer}.self_attn.{name}.weight"] = (rows, HIDDEN)
            if name != "o_proj":
                tensors[f"{layer}.self_attn.{name}.bias"] = (rows,)
        tensors |= {f"{layer}.mlp.{name}.weight": (INNER, HIDDEN) for name in ("gate_proj", "up_proj")}
        tensors[f"{layer}.mlp.down_proj.weight"] = (HIDDEN, INNER)
        tensors |= {f"{layer}.{name}.weight": (HIDDEN,) for name in ("input_layernorm", "post_attention_layernorm")}
    return {**tensors, "model.norm.weight": (HIDDEN,)}


def model(path: Path, layers: int) -> Path:
    """A safetensors file of bfloat16; the values repeat a seeded block."""
    header, end = {}, 0
    for name, shape in shapes(layers).items():
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    block = np.random.default_rng(0).normal(0, 0.02, 1 << 23).astype(np.float32)
    raw = (block.view(np.uint32) >> 16).astype("<u2").tobytes()
    with path.open("wb") as file:
        data.write_header(file, header)
        while end:
            end -= file.write(raw[:end])
    os.sync()  # what is dirty cannot be evicted
    return path


def converting(root: Path, source: Path) -> str:
    """To INT8 by rows and INT4, then each tier; seconds, and peak memory that is not the file's own pages.

    Beside the limits: reading the source once, and writing and syncing as many bytes.
    """
    lines = ["## A npy directory and its tiers", "", f"{source.stat().st_size / 1e9:.3g} GB of bf16.", ""]
    lines += ["| step | time | input per second | output per second | peak memory |", "|---|---|---|---|---|"]
    for step, (code, read, written) in steps(root, source).items():
        before = size_of(read)
        seconds, _, peak = measure(code)
        rates = (f"{size / seconds / 1e9:.2f} GB/s" if size else "" for size in (before, size_of(written)))
        lines.append(f"| {step} | {format_seconds(seconds)} | {' | '.join(rates)} | {peak / 1e6:.0f} MB |")
    (root / "limit").unlink()
    return "\n".join([*lines, ""])


def steps(root: Path, source: Path) -> dict[str, tuple[str, Path | None, Path | None]]:
    """Step -> code, what it reads, what it writes."""
    read = f"for piece in iter(lambda file=open({str(source)!r}, 'rb'): file.read(1 << 22), b''): pass"
    write = f"""
import os
with open({str(root / "limit")!r}, "wb") as file:
    for _ in range({source.stat().st_size >> 22}):
        file.write(piece)
    os.fsync(file.fileno())"""
    variants: dict[str, tuple[str, Path | None, Path | None]] = {
        "limit: read the source once": (read, source, None),
        "limit: write as much, and sync": (f"piece = bytes(1 << 22){write}", None, root / "limit"),
    }
    for name in ("int8", "int4"):
        call = f"squish.convert({str(source)!r}, {str(root / name)!r}, 'npydir', 'mixed:bits={name[3:]},outliers=0')"
        variants[f"convert to {name}"] = f"import squish_core as squish; {call}", source, root / name
    for tier, label in TIERS.items():
        folder = root / ("int4" if tier == "4bit" else "int8")
        written = folder / (f"{label}.safetensors" if tier == "mlx" else label)
        code = f"from squish_npydir.tiers import cache; cache.build({str(folder)!r}, {tier!r})"
        variants[f"cache build {tier}"] = code, folder / "tensors", written
    return variants


def size_of(path: Path | None) -> int:
    """Bytes of a file, or of the files in a folder."""
    if path is None:
        return 0
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def measure(code: str) -> tuple[float, int, int]:
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
    process = subprocess.run([sys.executable, "-c", watched], check=True, capture_output=True, text=True)
    seconds, kept, peak = json.loads(process.stdout)
    return seconds, kept, peak


QUOTED = {
    "mlx_lm.load() native": ("1.96-6.7 s", "1.96 s", "3087 MB", "2400 MB"),
    "mlx_lm + 4-bit quant": ("1.5 s", "1.5 s", "850 MB", "900 MB"),
    "GGUF (llama.cpp)": ("2-3 s", "2-3 s", "1200 MB", "1000 MB"),
    "Squish tier 2": ("0.33-0.53 s", "0.33 s", "2682 MB", "160 MB"),
    "Squish tier 1": ("4.65 s", "4.65 s", "2682 MB", "2100 MB"),
    "Squish tier 0": ("19 s", "n/a", "2682 MB", "2200 MB"),
}
"""Rows of the Squish architecture document, section 9: load (cold), load (warm), disk, RAM added."""
FRESH = """
import os, sys, time
path, code = sys.argv[1:]
for root, _, names in os.walk(path) if code == "cold" else ():
    for name in names:
        fd = os.open(os.path.join(root, name), os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
started = time.perf_counter()
import numpy
imported = time.perf_counter() - started
words = open("/proc/self/status").read().split()
bare = 1024 * int(words[words.index("RssAnon:") + 1])
started, cpu = time.perf_counter(), time.process_time()
import squish_core as squish
if code == "first":
    arrays = [tensor.numpy() for tensor in squish.open(path).values()]
else:
    arrays = squish.open(path).numpy()
seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
words = open("/proc/self/status").read().split()
print(len(arrays), seconds, cpu, imported, 1024 * int(words[words.index("RssAnon:") + 1]) - bare)
"""


def document(root: Path) -> str:
    """The table of the Squish architecture document with its rows, ours beside them: each load in a fresh process."""
    folder = root / "int8"
    sentinels = {"tier 2": folder / ".squish_ready", "tier 1": folder / "finalized" / ".ready"}
    weights = {"tier 2": folder / "squish_weights.safetensors", "tier 1": folder / "finalized"}
    ours, away = {}, list[tuple[Path, Path]]()
    for tier, path in {**weights, "tier 0": folder / "tensors"}.items():
        states = ("first",) if tier == "tier 0" else ("cold", "warm")
        loads = [fastest_load(folder, state) for state in states]
        times = [
            f"{format_seconds(load.seconds)} ({format_seconds(load.cpu)} of CPU), "
            f"{load.seconds / load.imported:.2f}x import numpy"
            for load in loads
        ]
        memory = max(load.added for load in loads)
        cells = (*times, *["n/a"] * (2 - len(times)), f"{size_of(path) / 1e6:.0f} MB", f"{memory / 1e6:.0f} MB")
        ours[f"Squish {tier}"] = cells
        if sentinel := sentinels.get(tier):  # what comes next is a tier further down
            away.append((sentinel.rename(sentinel.with_name("away")), sentinel))
    for hidden, sentinel in away:
        hidden.rename(sentinel)
    lines = [DOCUMENT, "", "| approach | load (cold) | load (warm) | disk | RAM added |", "|---|---|---|---|---|"]
    for name, quoted in QUOTED.items():
        lines.append(f"| {name}, quoted: needs a Mac | {' | '.join(quoted)} |")
        if name in ours:
            lines.append(f"| {name}, ours | {' | '.join(ours[name])} |")
    return "\n".join([*lines, ""])


DOCUMENT = """\
## The table of the Squish architecture document

Names and shapes of Qwen2.5-1.5B. The document measured the quoted rows on a Mac. Our rows measure a fresh process, from
`import numpy` to all tensors usable as arrays; "RAM added" is anonymous memory besides NumPy's. Tier 0 decodes the INT8
arrays to float32, once; the other tiers are mapped."""


_COMPILED = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(data.FOLDER / "pycache")}
"""Modules are compiled once, as in an installation."""


class Fresh(NamedTuple):
    """A load in a fresh process: tensors, seconds (wall and CPU) after `import numpy`, its seconds, and anonymous
    bytes added."""

    tensors: int
    seconds: float
    cpu: float
    imported: float
    added: int


def fastest_load(folder: Path, state: str) -> Fresh:
    """The fastest of nine loads in fresh processes, with the smallest CPU time of them; tier 0 is loaded once."""
    loads = []
    for _ in range(1 if state == "first" else 9):
        command = [sys.executable, "-c", FRESH, str(folder), state]
        fields = subprocess.run(command, check=True, capture_output=True, text=True, env=_COMPILED).stdout.split()
        seconds, cpu, imported = map(float, fields[1:4])
        loads.append(Fresh(int(fields[0]), seconds, cpu, imported, int(fields[4])))
    return min(loads, key=lambda load: load.seconds)._replace(cpu=min(load.cpu for load in loads))


def loading(root: Path, source: Path) -> str:
    """Every tensor ready to use: arrays (views where they can be), or weights still packed (4bit, int8)."""
    squish.convert(source, root / "model.zt", "ztensor:wire=2,digest=none")
    paths = {"source": source, "zt": root / "model.zt", "finalized": root / "int8" / "finalized"}
    peers = {name: measure_loads(oracles.peer(env).python, code, paths[of]) for name, (env, of, code) in PEERS.items()}
    rows, ours = [], {}
    for name, (folder, code, sentinel) in OURS.items():
        ours[name] = measure_loads(Path(sys.executable), f"{code}\nload({str(SAMPLE)!r})", root / folder)
        for state in STATES:
            target = TARGET if (name, state) == ("squish_weights", "warm") else ""
            others = {name: load.seconds[state] for name, load in peers.items()}
            rows.append(Row(f"{name}, {state}", ours[name].seconds[state], others, target=target))
        if sentinel:
            (root / folder / sentinel).unlink()  # what comes next is a tier further down
    return f"{markdown('Load every tensor', NOTE, rows)}\n{memory({**ours, **peers})}"


def memory(loads: dict[str, Load]) -> str:
    """A table of what importing and loading add."""
    lines = ["Anonymous memory added by the imports (8 MB of it by NumPy) and by the first load:", ""]
    lines += ["| | imports | load |", "|---|---|---|"]
    lines += [f"| {name} | {load.imported / 1e6:.1f} MB | {load.kept / 1e6:.1f} MB |" for name, load in loads.items()]
    return "\n".join([*lines, ""])


NOTE = """\
Each load runs in a separate, warm process; medians. safetensors, MLX and Squish read the same bf16 values, ztensor
reads a file that Squish wrote (wire 2), and NumPy maps the arrays of `finalized`. safetensors.torch, ztensor, NumPy and
Squish return views of a mapping; safetensors and MLX copy."""
STATES = tuple(ROUNDS)
TARGET = ">= 10x safetensors, not slower than safetensors.torch, < 20 MB"
ARRAYS = "import squish_core as squish\ndef load(path): return squish.open(path).numpy()"
PACKED = "import squish_core as squish\ndef load(path): return [tensor.load() for tensor in squish.open(path).values()]"
OURS = {
    "squish_weights": ("int8", ARRAYS, ".squish_ready"),
    "finalized": ("int8", ARRAYS, "finalized/.ready"),
    "int8, packed": ("int8", PACKED, None),
    "squish_4bit, packed": ("int4", PACKED, None),
}
SAFETENSORS = "from safetensors.{} import load_file as load"
NUMPY = """\
import glob, numpy as np
def load(path): return [np.load(file, mmap_mode="r") for file in glob.glob(path + "/*.npy")]
"""
ZTENSOR = "from ztensor.numpy import load_file\nload = partial(load_file, copy=False)"
PEERS = {
    "safetensors": ("safetensors", "source", "import ml_dtypes\n" + SAFETENSORS.format("numpy")),
    "safetensors.torch": ("torch", "source", SAFETENSORS.format("torch")),
    "mlx": ("mlx", "source", "import mlx.core as mx\ndef load(path): mx.eval(arrays := mx.load(path)); return arrays"),
    "ztensor 2.1.2": ("ztensor-2.1.2", "zt", ZTENSOR),
    "NumPy": ("safetensors", "finalized", NUMPY),
}
"""Name -> environment, what it reads, its own way to load all of that."""
ROUND = """
import gc, json, os, sys, time
from functools import partial
path, cold = sys.argv[1], sys.argv[2] == "cold"
def anonymous():
    words = open("/proc/self/status").read().split()
    return 1024 * int(words[words.index("RssAnon:") + 1])
def evict():
    walked = os.walk(path) if os.path.isdir(path) else [(os.path.dirname(path), [], [os.path.basename(path)])]
    for root, _, names in walked:
        for name in names:
            fd = os.open(os.path.join(root, name), os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)
bare = anonymous()
{code}
imported, found = anonymous() - bare, []
for _ in range({rounds} + 1):
    keep = None
    gc.collect()
    if cold:
        evict()
    before, started = anonymous(), time.perf_counter()
    keep = load(path)
    found.append((time.perf_counter() - started, anonymous() - before))
print(json.dumps((imported, found)))
"""


class Load(NamedTuple):
    """Median seconds by state, and bytes of anonymous memory that imports and loading added at most."""

    seconds: dict[str, float]
    imported: int
    kept: int


def measure_loads(python: Path, code: str, path: Path) -> Load:
    """Load warm and cold, each in a fresh process of `python`; `code` imports, and defines `load`."""
    seconds, imports, kept = {}, [], []
    for state in STATES:
        text = ROUND.format(code=code, rounds=ROUNDS[state])
        command: list[str | Path] = [python, "-I", "-c", text, str(path), state]
        process = subprocess.run(command, check=True, capture_output=True, text=True)
        imported, rounds = json.loads(process.stdout.splitlines()[-1])
        imports.append(imported)
        kept += [added for _, added in rounds]
        seconds[state] = statistics.median(taken for taken, _ in rounds[1:])
    return Load(seconds, max(imports), max(kept))
