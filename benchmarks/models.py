"""Whole models between layouts: time and memory against llama.cpp's converter, mlx_lm.convert, and no map at all."""

from __future__ import annotations

import os
import random
import resource
import shutil
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import oracles
from attrs import frozen
from oracles import vocabularies
from squish_testing import write_model

import squish_core as squish
from benchmarks.data import FOLDER, evict
from benchmarks.table import Row, markdown

CONVERTER = "convert_hf_to_gguf.py"
VENDOR = ("convert_hf_to_gguf.py", "conversion/", "gguf-py/gguf/")
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048, "intermediate_size": 5632,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 49152, "rope_theta": 10000.0,
    "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
    "hidden_act": "silu",
}  # fmt: skip
FACTS = "seconds", "synced", "processor", "peak"
KEEP = ["--names", "keep"]
MAPPED = "to gguf", "to mlx", "to hf"
RUNS = 3
"""Runs of each of our commands per run of a peer: with and without a map differ by less than two runs of the same."""
PIECE = 2 << 20
COPY = "import os, shutil, sys; shutil.copyfile(*sys.argv[1:]); os.fsync(os.open(sys.argv[2], os.O_RDWR))"
"""What no conversion to the disk can beat."""


@frozen
class Cost:
    """Seconds of a process, and until its output is on the disk; its seconds on processors, and the most private memory
    that it had at once."""

    seconds: float
    synced: float
    processor: float
    peak: int


def run(quick: bool) -> str:
    """The median of interleaved runs of whole processes."""
    with TemporaryDirectory(dir=FOLDER.parent if FOLDER.parent.exists() else None) as name:
        folder = Path(name)
        source = make_model(folder / "source", 1 if quick else 9)
        size = sum(path.stat().st_size for path in source.glob("*.safetensors"))
        squish.convert(source, folder / "model.gguf")
        costs = interleave(commands(folder, source), folder, 1 if quick else 5)
    typical = {name: {fact: median(map(attrgetter(fact), runs)) for fact in FACTS} for name, runs in costs.items()}
    rows = [
        row("HF to GGUF", "to gguf", {"llama.cpp": "llama.cpp"}, typical, size, ">= 5x llama.cpp, "),
        row("HF to MLX", "to mlx", {"mlx_lm": "mlx_lm"}, typical, size, ">= 5x mlx_lm, "),
        row("GGUF to HF", "to hf", {}, typical, size, ""),
    ]
    memory = ", ".join(f"{name} {facts['peak'] / 1e6:.0f} MB" for name, facts in typical.items())
    processor = ", ".join(f"{name} {facts['processor']:.2f} s" for name, facts in typical.items())
    added = ", ".join(
        f"{name} {typical[name]['seconds'] - typical[f'{name}, kept']['seconds']:.2f} s" for name in MAPPED
    )
    note = (
        f"A Llama of {size / 1e9:.2f} GB in bf16. Whole processes with imports; each time is the median of "
        "interleaved runs with an idle disk and the source in memory. Squish syncs its output, the peers do not: "
        '"synced" is the peer and an fsync of what it wrote. '
        f"A map adds: {added}. Most of this does not depend on the size of the tensors: the vocabulary of 49,152 "
        "tokens (parse, check, compare with what could be rebuilt, write) and imports. "
        f"CPU time (user and system): {processor}. "
        f"Peak private memory: {memory} (target: 300 MB)."
    )
    return markdown("Whole models", note, rows)


def row(label: str, ours: str, peers: Mapping[str, str], typical: Mapping[str, Any], size: int, target: str) -> Row:
    """A conversion against its peers, itself without a map, and a copy."""
    columns = {**peers, "without a map": f"{ours}, kept", "a synced copy": "copy"}
    seconds = {label: typical[name]["seconds"] for label, name in columns.items()}
    seconds |= {f"{label}, synced": typical[name]["synced"] for label, name in peers.items()}
    return Row(label, typical[ours]["seconds"], seconds, size, f"{target}<= 1.15x without a map")


def make_model(folder: Path, layers: int) -> Path:
    """A seeded model with the vocabulary that llama.cpp's source package has for StarCoder, whose kind it knows."""
    config = {**CONFIG, "num_hidden_layers": layers}
    return write_model(folder, "llama", config, files=tokenizer())


def tokenizer() -> dict[str, bytes]:
    """Files of the vocabulary of StarCoder, which llama.cpp's converter knows."""
    from squish_models.tokenizer import huggingface_files, read_gguf

    with squish.open(vocabularies.vocabulary("starcoder")) as file:
        stored = read_gguf(file.meta)
    assert stored is not None
    return dict(huggingface_files(stored, gemma=False))


def commands(folder: Path, source: Path) -> dict[str, list[str]]:
    """Name -> command; `{out}` is a path that does not exist."""
    ours = [sys.executable, "-m", "squish_core", "convert", "--quiet"]
    gguf, out = str(folder / "model.gguf"), "{out}"
    converter = llama_cpp_converter()
    torch, mlx = (str(oracles.peer(name).python) for name in ("transformers", "mlx-lm"))
    return {
        "to gguf": [*ours, str(source), out, "--to", "gguf"],
        "to gguf, kept": [*ours, str(source), out, "--to", "gguf", *KEEP],
        "llama.cpp": [torch, str(converter), str(source), "--outfile", out, "--outtype", "bf16"],
        "to mlx": [*ours, str(source), out, "--to", "mlx"],
        "to mlx, kept": [*ours, str(source), out, "--to", "mlx", *KEEP],
        "mlx_lm": [mlx, "-m", "mlx_lm", "convert", "--hf-path", str(source), "--mlx-path", out],
        "to hf": [*ours, gguf, out, "--to", "hf"],
        "to hf, kept": [*ours, gguf, out, "--to", "hf", *KEEP],
        "copy": [sys.executable, "-c", COPY, gguf, out],
    }


def llama_cpp_converter() -> Path:
    """llama.cpp's converter out of the source package of llama-cpp-python, unpacked once."""
    home = vocabularies.FOLDER.with_name(vocabularies.FOLDER.name.replace("vocabularies", "llama-cpp-converter"))
    if not home.exists():
        with TemporaryDirectory(dir=home.parent) as temporary:
            package = vocabularies.download(temporary)
            with tarfile.open(package) as archive:
                for member in archive:
                    inside = member.name.partition("vendor/llama.cpp/")[2]
                    content = archive.extractfile(member) if inside.startswith(VENDOR) else None
                    if content is not None:
                        path = Path(temporary, "whole", inside)
                        path.parent.mkdir(parents=True, exist_ok=True)
                        path.write_bytes(content.read())
            Path(temporary, "whole").rename(home)
    return home / CONVERTER


def interleave(calls: Mapping[str, Sequence[str]], folder: Path, rounds: int) -> dict[str, list[Cost]]:
    """The costs of each command, in turns, from memory and onto a disk at rest.

    All keep the bytecode of what they import, in one folder, as programs that are installed do.
    """
    environment = keeping_bytecode(folder)
    costs: dict[str, list[Cost]] = {name: [] for name in calls}
    target = folder / "out"
    turns = [name for name in calls for _ in range(RUNS if name.startswith(MAPPED) else 1)]
    for _ in range(rounds):
        for name in random.sample(turns, len(turns)):  # each follows any other
            for path in (folder / "model.gguf", *folder.glob("source/*.safetensors")):
                reread(path)
            remove(target)
            os.sync()
            call = [part.replace("{out}", str(target)) for part in calls[name]]
            costs[name].append(measure(call, target, environment))
    remove(target)
    return costs


def remove(target: Path) -> None:
    """Remove an earlier output, if there is one.

    Its memory is used for the next one: a virtual machine returns memory that is free for seconds to its host, and to
    get it back can take longer than what is measured.
    """
    if target.is_dir():
        shutil.rmtree(target)
    else:
        target.unlink(missing_ok=True)


def reread(path: Path) -> None:
    """Read a file into the page cache, in order: the kernel evicts parts of it while other commands run, and pages that
    return one by one are read at a third of the speed."""
    evict(path)
    with path.open("rb", buffering=0) as file:
        while file.read(PIECE):
            pass


def sync(target: Path) -> None:
    """Wait until a file, or the files of a folder, are on the disk."""
    for path in [*target.rglob("*"), target]:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def keeping_bytecode(folder: Path) -> dict[str, str]:
    """Variables with which Python compiles a module once for all rounds."""
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return environment


def measure(command: Sequence[str], target: Path | None, environment: Mapping[str, str]) -> Cost:
    """Run a command that writes a target, or none; RssAnon of its process is read every 10 ms."""
    before, peak = resource.getrusage(resource.RUSAGE_CHILDREN), 0
    start = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment)
    errors: list[str] = []
    reader = threading.Thread(target=lambda: errors.append(child.stderr.read() if child.stderr else ""))
    reader.start()
    status = Path(f"/proc/{child.pid}/status")
    while child.poll() is None:
        try:
            line = next(line for line in status.read_text().splitlines() if line.startswith("RssAnon"))
            peak = max(peak, int(line.split()[1]) * 1024)
        except (OSError, StopIteration):
            pass
        time.sleep(0.01)
    seconds = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if child.returncode:
        reader.join()
        raise RuntimeError(f"{' '.join(command)} failed: {errors[-1][-2000:]}")
    if target is not None:
        sync(target)
    synced = time.perf_counter() - start
    reader.join()
    return Cost(seconds, synced, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, peak)
