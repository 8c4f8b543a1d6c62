"""A language model in PyTorch: load, prefill, decoding and a module's call, against transformers and llama.cpp."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import oracles

from benchmarks import language_model_peers as peers
from benchmarks.table import Row, format_seconds, markdown

NOTE = """\
SmolLM2-135M-Instruct, Q4_1 with a Q8_0 embedding and head, interleaved; each engine in a process of its own. A prefill
computes the logits of the last token; decoding is the mean of {steps} tokens after a prefill of {prompt}. `ours`
decodes codes to f32; int8 is `cpu:activations=int8,repack=rows`, bf16 `cpu:activations=bf16,repack=rows`. Tensors that
these two do not take ({dense}) are decoded to f32. transformers has the decoded weights. llama.cpp rounds activations
to 8 bits; `llama.cpp` is the prebuilt wheel of xllamacpp 2026.10, `llama.cpp, native` is llama-cpp-python 0.3.36,
compiled here for this processor. The compiled graph is `torch.compile(fullgraph=True, dynamic=False)` of all layers
with a static cache; compiling took {compilation}. A module is a `CompressedLinear` of 32 x 64, Q4_0, for one row of
f32, against `nn.Linear`."""
LOAD_NOTE = """\
CPU time of loading SmolLM2 from its GGUF of {size:.1f} MB after imports, each in a new process (minimum of {rounds}),
and the anonymous memory that it adds. The first load imports plugins; "again" is a second one in the same process:
half of its memory are rows of q and k, gathered in the order of transformers (8.3 MB). Targets: 0.5 s and 15 % of the
file."""
PROFILE_NOTE = """\
Where the time of a decoded token goes: "products" are those of all linear layers and the head, one after another,
without torch; "rest of the model" is a token of the same model whose linear layers return zeros (embedding, norms,
rotation, attention and cache in torch's eager mode)."""
TARGETS = {
    "prefill": "<= transformers f32; with bf16 products <= 1.3x bf16",
    "decode": "with int8 <= 1.5x native llama.cpp (1.25x compiled), <= 0.5x transformers bf16",
}
INT8, BF16 = "cpu:activations=int8,repack=rows", "cpu:activations=bf16,repack=rows"
BACKENDS = {"ours": "", "ours, int8": INT8, "ours, bf16": BF16}
DTYPES = {"transformers f32": "float32", "transformers bf16": "bfloat16"}
LLAMA_CPP = {
    "llama.cpp": ("llama.cpp", "xllamacpp"), "llama.cpp, native": ("llama-cpp-python", "llama_cpp"),
}  # fmt: skip
"""Name -> environment, and its package."""
PROMPT = 128
TIMEOUT = 600.0


def run(quick: bool) -> str:
    """Tables of the whole model, of loading, and of a token's time."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
    from demo import fetch

    path, rounds, steps = str(fetch("smollm2")), 1 if quick else 5, 4 if quick else 16
    speed = Speed(path, rounds, compiles=not quick)
    rows = [row for threads in (1, 2) for row in speed.rows(threads, steps)] + [module_row()]
    note = NOTE.format(
        steps=steps, prompt=PROMPT, dense=", ".join(speed.dense()), compilation=" and ".join(speed.compilation) or "-"
    )
    sections = (
        markdown("Language models in PyTorch", note, rows),
        load_table(path, 1 if quick else 3),
        speed.profile(steps),
    )
    for name in (environment for environment, _ in LLAMA_CPP.values()):
        oracles.peer(name).close()
    return "\n".join(sections)


class Speed:
    """Prefill and decoding of one model in every engine.

    Parameters
    ----------
    path
        The GGUF file.
    rounds
        Interleaved rounds of each operation.
    compiles
        Whether decoding is measured as a compiled graph, too.
    """

    def __init__(self, path: str, rounds: int, *, compiles: bool) -> None:
        self.path, self.rounds, self.compiles = path, rounds, compiles
        self.compilation: list[str] = []

    def rows(self, threads: int, steps: int) -> Iterator[Row]:
        """A row for each operation and each of our backends."""
        suffix = f"{threads} thread{'s' if threads > 1 else ''}"
        for tokens in (PROMPT, 4 * PROMPT):
            yield from self._operation(f"prefill of {tokens}, {suffix}", threads, tokens, 0)
        yield from self._operation(f"decode, {suffix}", threads, PROMPT, steps)

    def _operation(self, label: str, threads: int, tokens: int, steps: int) -> Iterator[Row]:
        options: dict[str, Any] = {"path": self.path, "threads": threads, "tokens": tokens, "steps": steps}
        torch = partial(oracles.peer("squish-torch").prepare, peers.torch_call, timeout=TIMEOUT, **options)
        ours = {name: torch(kind="compressed", backend=backend) for name, backend in BACKENDS.items()}
        if steps and self.compiles:
            ours["ours, int8, compiled"] = torch(kind="compressed", backend=INT8, compiled=True)
            self.compilation.append(format_seconds(ours["ours, int8, compiled"].seconds()))
        peer_calls = {name: torch(kind=dtype, backend="") for name, dtype in DTYPES.items()}
        for name, (environment, package) in LLAMA_CPP.items():
            peer_calls[name] = oracles.peer(environment).prepare(
                peers.llama_cpp_call, timeout=TIMEOUT, package=package, **options
            )
        medians = oracles.interleave(ours | peer_calls, self.rounds)
        seconds = {name: median / max(steps, 1) for name, median in medians.items()}
        for name in ours:
            variant = name.removeprefix("ours").removeprefix(", ")
            yield Row(
                f"{label}{f': {variant}' if variant else ''}",
                seconds[name],
                {peer: seconds[peer] for peer in peer_calls},
                target=TARGETS[label.split()[0].rstrip(",")],
            )

    def dense(self) -> list[str]:
        """The tensors that a repacked backend does not take."""
        names: list[str] = oracles.peer("squish-torch").run(peers.dense_tensors, path=self.path, backend=INT8)
        return names or ["none"]

    def profile(self, steps: int) -> str:
        """The table of where a token's time goes."""
        prepare = oracles.peer("squish-torch").prepare
        lines = ["### A decoded token", "", PROFILE_NOTE, ""]
        lines += ["| backend | threads | a token | products | rest of the model | calls |", "|---|---|---|---|---|---|"]
        for threads in (1, 2):
            options: dict[str, Any] = {"path": self.path, "threads": threads}
            token = partial(prepare, peers.torch_call, timeout=TIMEOUT, tokens=PROMPT, steps=steps, **options)
            for name, backend in BACKENDS.items():
                tokens, products, others = oracles.interleave(
                    {
                        "tokens": token(kind="compressed", backend=backend),
                        "products": prepare(peers.products, backend=backend, **options),
                        "others": token(kind="without products", backend=""),
                    },
                    self.rounds,
                ).values()
                calls = max((tokens - others) / steps - products, 0.0)
                cells = map(format_seconds, (tokens / steps, products, others / steps, calls))
                lines.append(f"| {name} | {threads} | {' | '.join(cells)} |")
        return "\n".join([*lines, ""])


def module_row() -> Row:
    """A small module's call, less the kernel's own time."""
    seconds = oracles.peer("squish-torch").run(peers.module_call, timeout=TIMEOUT)
    label = f"a module's call (above its kernel: {(seconds['module'] - seconds['kernel']) * 1e6:.1f} us)"
    return Row(label, seconds["module"], {"nn.Linear": seconds["nn.Linear"]}, target="<= 4 us above the kernel")


def load_table(path: str, rounds: int) -> str:
    """CPU time and anonymous memory of loading, ours and the peers'."""
    size = Path(path).stat().st_size
    loads = {
        "ours": partial(torch_load, path, "compressed"), "ours, again": partial(torch_load, path, "compressed again"),
    }  # fmt: skip
    loads |= {name: partial(torch_load, path, dtype) for name, dtype in DTYPES.items()}
    loads |= {name: partial(llama_cpp_load, path, *environment) for name, environment in LLAMA_CPP.items()}
    lines = ["### Loading", "", LOAD_NOTE.format(size=size / 1e6, rounds=rounds), ""]
    lines += ["| | CPU time | anonymous memory | share of the file |", "|---|---|---|---|"]
    for name, load in loads.items():
        runs = [load() for _ in range(1 if name in DTYPES else rounds)]  # transformers decodes everything: slow
        seconds = min(run["seconds"] for run in runs)
        anonymous = statistics.median(run["anonymous"] for run in runs)
        lines.append(f"| {name} | {format_seconds(seconds)} | {anonymous / 1e6:.0f} MB | {anonymous / size:.0%} |")
    return "\n".join([*lines, ""])


def torch_load(path: str, kind: str) -> dict[str, float]:
    """Load in a new process with torch."""
    peer = oracles.peer("squish-torch")
    peer.close()
    measured: dict[str, float] = peer.run(peers.torch_load, timeout=TIMEOUT, path=path, kind=kind)
    peer.close()
    return measured


def llama_cpp_load(path: str, environment: str, package: str) -> dict[str, float]:
    """Load in a new process of llama.cpp."""
    peer = oracles.peer(environment)
    peer.close()
    measured: dict[str, float] = peer.run(
        peers.llama_cpp_call, timeout=TIMEOUT, path=path, package=package, threads=1, tokens=0, steps=0
    )
    return measured
