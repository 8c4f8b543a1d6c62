"""`python -m benchmarks.cuda`: on a CUDA device, run the tests that need one and write the tables of its page.

It takes less than six minutes, and stops measuring when they are over. Times are of the device alone: a CUDA graph of
calls on copies that exceed the cache, by median; x is prepared in each call. "Read" is the time in which a kernel reads
the same number of bytes once.

Without a device, `TRITON_INTERPRET=1 python -m benchmarks.cuda` tries it all in Triton's interpreter on tiny sizes, and
prints the page: what it measures then means nothing.
"""

from __future__ import annotations

import argparse
import importlib
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import torch
import triton
import triton.language as tl
from attrs import frozen

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "backends" / "cuda.md"
TESTS = ROOT / "plugins" / "cuda_backend" / "tests"
TORCH_TESTS = ROOT / "plugins" / "torch" / "tests" / "test_torch_cuda.py"
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "helpers"), str(TESTS)]
BEGIN, END = "<!-- measured -->", "<!-- end of measured -->"
IS_TRIAL = os.environ.get("TRITON_INTERPRET") == "1"
SECONDS = math.inf if IS_TRIAL else 345.0
TEST_SECONDS = 1200.0 if IS_TRIAL else 110.0
CACHE = 160 << 20
"""Bytes of copies that a cache does not hold."""
TOKENS = 64
"""Tokens that are timed, after as many that are not."""
DEVICE = torch.device("cpu" if IS_TRIAL else "cuda")
_start = time.monotonic()


@frozen
class Sizes:
    """What is measured.

    Attributes
    ----------
    names
        Layouts of `stored_tensors`, the most used first.
    heads, layers, width, inner, words
        The model, of 1.1 billion parameters.
    tests
        Options of pytest: each kernel takes a second or two to compile, so not all layouts are tested.
    """

    shapes: tuple[tuple[int, int], ...] = ((14336, 4096), (4096, 14336))
    rows: tuple[int, ...] = (1, 8, 64, 512)
    names: tuple[str, ...] = (
        *("q4_0", "q4_k", "GPTQ", "MLX", "MXFP4", "iq4_nl", "q6_k", "q8_0", "q5_k", "AWQ", "act-order", "NVFP4"),
        *("NF4", "FP8", "q2_k", "q3_k", "iq4_xs", "HQQ", "palette", "iq2_xxs", "iq3_s", "iq1_s", "tq2_0", "tq1_0"),
    )
    heads: tuple[int, int] = (32, 8)
    layers: int = 16
    width: int = 2048
    inner: int = 8192
    words: int = 32000
    tokens: int = TOKENS
    tests: tuple[str, ...] = (
        "-k",
        "experts or module or graph or q4_k or act-order or NVFP4 or NF4 or FP8 or iq3_s or tq1_0 or operations",
    )


TINY = Sizes(((4, 256),), (1, 8), ("q4_0", "iq3_s"), (2, 1), 1, 32, 32, 32, 1, ("-k", "rows_that_do_not_exist"))
"""For a trial."""


def is_late(margin: float = 0.0) -> bool:
    """Whether there is no time left."""
    return time.monotonic() - _start > SECONDS - margin


def device_us(calls: Sequence[Callable[[], Any]]) -> float:
    """Microseconds of a call on the device, by a graph that goes round the calls."""
    if IS_TRIAL:
        return 1e6 * median(_seconds(call) for call in calls)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls[:2]:
            call()
    torch.cuda.synchronize()
    graph, count = torch.cuda.CUDAGraph(), max(len(calls), 24)
    with torch.cuda.graph(graph):
        for number in range(count):
            calls[number % len(calls)]()
    graph.replay()
    return median(_elapsed(graph.replay) / count for _ in range(9))


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _elapsed(run: Callable[[], Any]) -> float:
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    first.record()
    run()
    last.record()
    last.synchronize()
    return first.elapsed_time(last) * 1e3


@triton.jit
def _read(data: Any, sums: Any, size: Any, BLOCK: tl.constexpr) -> None:  # noqa: N803
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.sum(tl.load(data + at, mask=at < size, other=0))
    if total == 123456789:  # never: but the loads must not be left out
        tl.store(sums, total)


def read_us(nbytes: int) -> float:
    """Microseconds in which so many bytes are read once: the best of some shapes."""
    size = nbytes // 4
    copies = [torch.ones(size, dtype=torch.int32, device=DEVICE) for _ in range(copies_of(nbytes))]
    sums = torch.empty(1, dtype=torch.int32, device=DEVICE)

    def calls(block: int, warps: int) -> list[Callable[[], Any]]:
        run: Any = _read[(triton.cdiv(size, block),)]
        return [partial(run, data, sums, size, BLOCK=block, num_warps=warps) for data in copies]

    return min(device_us(calls(block, warps)) for block, warps in ((1024, 4), (2048, 4), (4096, 8), (8192, 8)))


def copies_of(nbytes: int) -> int:
    """Copies to go round."""
    return 2 if IS_TRIAL else max(2, min(40, math.ceil(CACHE / nbytes)))


def _stored(name: str, shape: tuple[int, ...]) -> Any:
    """A tensor of a layout, with random parts, as the tests of the backend make it."""
    tensors: Any = importlib.import_module("stored_tensors")
    return tensors.stored(tensors.every_layout()[name], shape)


def weights_of(name: str, shape: tuple[int, int]) -> list[Any]:
    """Copies of a weight of a layout, on the device."""
    from attrs import evolve
    from squish_cuda import weights

    first = weights.load(_stored(name, shape).bound, DEVICE)

    def copy() -> Any:
        return evolve(first, **{role: array.clone() for role, array in first.arrays.items()})

    return [first, *(copy() for _ in range(copies_of(first.nbytes) - 1))]


def tests(sizes: Sizes) -> str:
    """The tests that need a device."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not oracle", *sizes.tests]
    command += ["--ignore", str(TESTS / "test_cuda_machine_code.py")]
    command += ["-n", "8"] if find_spec("xdist") and not IS_TRIAL else []
    try:
        done = subprocess.run(
            [*command, str(TESTS), str(TORCH_TESTS)], cwd=ROOT, capture_output=True, text=True, timeout=TEST_SECONDS
        )
    except subprocess.TimeoutExpired:
        return f"The tests did not end within {TEST_SECONDS:.0f} s."
    lines = done.stdout.strip().splitlines()
    print(done.stdout[-4000:] + done.stderr[-2000:])
    return f"Tests on the device: {lines[-1].strip('= ') if lines else 'none ran'}."


def products(sizes: Sizes) -> Iterator[list[str]]:
    """For each layout and shape: the share of the read of one row, and microseconds for more."""
    from squish_cuda import products
    from torch.nn.functional import linear

    for shape in sizes.shapes:
        dense = [torch.randn(shape, device=DEVICE).to(torch.bfloat16) for _ in range(2)]
        x = {rows: torch.randn(rows, shape[1], device=DEVICE).to(torch.bfloat16) for rows in sizes.rows}
        times = [device_us([partial(linear, x[rows], w) for w in dense]) for rows in sizes.rows]
        yield [f"torch bf16 {shape[0]}x{shape[1]}", "16", "", *(f"{us:.1f}" for us in times)]
        del dense
        for name in sizes.names:
            if is_late(130):
                return
            copies = weights_of(name, shape)
            nbytes = copies[0].nbytes
            times = [device_us([partial(products.linear, w, x[rows]) for w in copies]) for rows in sizes.rows]
            share, bits = read_us(nbytes) / times[0], 8 * nbytes / math.prod(shape)
            yield [f"{name} {shape[0]}x{shape[1]}", f"{bits:.2f}", f"{share:.2f}", *(f"{us:.1f}" for us in times)]
            del copies
            _release()


def _release() -> None:
    if not IS_TRIAL:
        torch.cuda.empty_cache()


def models(sizes: Sizes) -> Iterator[list[str]]:
    """Tokens a second of a model of random weights: dense in bf16, and compressed."""
    for name in ("torch bf16", "q4_0", "q8_0" if IS_TRIAL else "q4_k"):  # rows of q4_k have at least 256 columns
        if is_late(45):
            return
        model = model_of(name, sizes)
        size = sum(tensor.numel() * tensor.element_size() for tensor in (*model.parameters(), *model.buffers()))
        eager = tokens_per_second(model, model, sizes.tokens)
        torch._dynamo.reset()
        how: dict[str, Any] = {"backend": "aot_eager"} if IS_TRIAL else {"mode": "reduce-overhead"}
        compiled = tokens_per_second(model, torch.compile(model, fullgraph=True, **how), sizes.tokens)
        yield [name, f"{size / 1e6:.0f}", f"{eager:.0f}", f"{compiled:.0f}"]
        del model
        _release()


def model_of(name: str, sizes: Sizes) -> Any:
    """A Llama on the device, whose linear modules have random weights of a layout."""
    import transformers
    from squish_torch import CompressedLinear

    config = transformers.LlamaConfig(
        hidden_size=sizes.width,
        intermediate_size=sizes.inner,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads[0],
        num_key_value_heads=sizes.heads[1],
        vocab_size=sizes.words,
        dtype=torch.bfloat16,
    )
    with DEVICE:
        model = transformers.LlamaForCausalLM(config).to(torch.bfloat16).eval()
    if name == "torch bf16":
        return model
    tensors: dict[tuple[int, ...], Any] = {}
    for path, module in list(model.named_modules()):
        if type(module) is torch.nn.Linear:
            shape = tuple(module.weight.shape)
            tensor = tensors.setdefault(shape, _stored(name, shape))
            model.set_submodule(path, CompressedLinear.of(tensor).to(DEVICE))
    return model


def tokens_per_second(model: Any, run: Any, tokens: int) -> float:
    """Of steps of one token."""
    from transformers import StaticCache

    cache = StaticCache(config=model.config, max_cache_len=2 * tokens)
    ids, start = torch.zeros(1, 1, dtype=torch.int64, device=DEVICE), 0.0
    with torch.no_grad():
        for step in range(2 * tokens):
            if step == tokens:
                _wait()
                start = time.perf_counter()
            position = torch.full((1, 1), step, device=DEVICE)
            ids = run(ids, past_key_values=cache, position_ids=position, use_cache=True).logits.argmax(-1).clone()
    _wait()
    return tokens / (time.perf_counter() - start)


def _wait() -> None:
    if not IS_TRIAL:
        torch.cuda.synchronize()


def card() -> str:
    """The card, the driver and the versions."""
    if IS_TRIAL:
        return f"no card at all, torch {torch.__version__}, Triton {triton.__version__}"
    ask = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    name, driver = subprocess.run(ask, capture_output=True, text=True, check=True).stdout.splitlines()[0].split(", ")
    return f"{name}, driver {driver}, torch {torch.__version__}, Triton {triton.__version__}"


def table(head: Sequence[str], rows: Iterator[list[str]]) -> str:
    """A table of rows, printed as they come."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in rows:
        lines.append("| " + " | ".join(row) + " |")
        print(lines[-1], flush=True)
    return "\n".join(lines)


def page(sizes: Sizes) -> str:
    """The page with the tables of this run."""
    passed = tests(sizes)
    many = [f"{rows} rows" if rows > 1 else "1 row" for rows in sizes.rows]
    parts = [
        BEGIN,
        f"Measured on {card()}. {passed} Microseconds of the device, caches cold, x in bf16 and prepared in each call.",
        table(("layout", "bits", "share of read, 1 row", *many), products(sizes)),
        f"A Llama of {sizes.layers} layers and random weights, one token at a time, tokens a second:",
        table(("linear weights", "MB", "eager", "compiled with CUDA graphs"), models(sizes)),
        END,
    ]
    block = re.compile(f"{re.escape(BEGIN)}.*{re.escape(END)}", re.DOTALL)
    return block.sub(lambda _: "\n\n".join(parts), PAGE.read_text())


def main() -> None:
    """Run all, and write the page unless told otherwise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=PAGE, help="where the page is written")
    options = parser.parse_args()
    if IS_TRIAL:
        from squish_torch.device_forms import BACKENDS

        BACKENDS[DEVICE.type] = "cuda"
        print(page(TINY))
    elif torch.cuda.is_available():
        options.out.write_text(page(Sizes()))
    else:
        sys.exit("there is no CUDA device; TRITON_INTERPRET=1 tries the script without one")


if __name__ == "__main__":
    main()
