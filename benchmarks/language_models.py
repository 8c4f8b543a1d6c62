"""A language model in PyTorch: load, prefill, decoding and a module's call, against transformers and llama.cpp."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import oracles

from benchmarks.table import Row, markdown

NOTE = """\
SmolLM2-135M-Instruct, Q4_1 with a Q8_0 embedding and head, in processes of their own, interleaved. A prefill is 128
tokens with the logits of the last; decoding is a token after them, the mean of {steps}. `ours` decodes codes to f32;
int8 is `cpu:activations=int8,repack=rows`, bf16 `cpu:activations=bf16,repack=rows`. transformers has the decoded
weights, and llama.cpp is the prebuilt wheel of xllamacpp, which rounds activations to 8 bits. The compiled graph is
`torch.compile(fullgraph=True, dynamic=False)` of all layers with a static cache. A module is a `CompressedLinear` of
32 x 64, Q4_0, for one row of f32, against `nn.Linear`. Loading starts after `import transformers`."""
TARGETS = {
    "prefill": "<= transformers f32; with bf16 products <= 1.3x bf16",
    "decode": "<= 1.5x llama.cpp (1.25x compiled) with int8, <= 0.5x transformers bf16",
}
INT8, BF16 = "cpu:activations=int8,repack=rows", "cpu:activations=bf16,repack=rows"
BACKENDS = {"ours": "", "ours, int8": INT8, "ours, bf16": BF16}
PEERS = {"transformers f32": "float32", "transformers bf16": "bfloat16"}
TIMEOUT = 1800.0


def run(quick: bool) -> str:
    """Rows for one thread and two."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
    from demo import fetch

    path, rounds, steps = str(fetch("smollm2")), 2 if quick else 7, 4 if quick else 16
    rows: list[Row] = []
    for threads in (1, 2):
        for operation in ("prefill", "decode"):
            rows += whole_model(path, operation, threads, steps, rounds, compiled=not quick)
    rows += [module_call(), load(path)]
    return markdown("Language models in PyTorch", NOTE.format(steps=steps), rows)


def whole_model(path: str, operation: str, threads: int, steps: int, rounds: int, compiled: bool) -> list[Row]:
    """A row for each of our ways to compute."""
    torch = oracles.peer("squish-torch")
    options: dict[str, Any] = {"path": path, "threads": threads, "steps": steps if operation == "decode" else 0}
    calls: dict[str, Any] = {
        name: torch.prepare(torch_model, timeout=TIMEOUT, backend=backend, dtype="", compiled=False, **options)
        for name, backend in BACKENDS.items()
    }
    if compiled and operation == "decode":
        calls["ours, int8, compiled"] = torch.prepare(
            torch_model, timeout=TIMEOUT, backend=INT8, dtype="", compiled=True, **options
        )
    peers = {
        name: torch.prepare(torch_model, timeout=TIMEOUT, backend="", dtype=dtype, compiled=False, **options)
        for name, dtype in PEERS.items()
    }
    peers["llama.cpp"] = oracles.peer("llama.cpp").prepare(llama_cpp, timeout=TIMEOUT, **options)
    medians = oracles.interleave(calls | peers, rounds)
    seconds = {name: each / max(options["steps"], 1) for name, each in medians.items()}
    torch.close()
    label = f"{operation}, {threads} thread{'s' if threads > 1 else ''}"
    others = {name: seconds[name] for name in peers}
    return [
        Row(f"{label}: {name.removeprefix('ours, ')}", seconds[name], others, target=TARGETS[operation])
        for name in calls
    ]


def module_call() -> Row:
    """A small module's call, less the kernel's own time."""
    peer = oracles.peer("squish-torch")
    seconds = peer.run(small_module, timeout=TIMEOUT)
    label = f"a module's call (above its kernel: {(seconds['module'] - seconds['kernel']) * 1e6:.1f} us)"
    return Row(label, seconds["module"], {"nn.Linear": seconds["nn.Linear"]}, target="<= 4 us above the kernel")


def load(path: str) -> Row:
    """CPU seconds of `from_pretrained`, and the anonymous memory that it adds."""
    peer = oracles.peer("squish-torch")
    first = peer.run(load_model, timeout=TIMEOUT, path=path)
    peer.close()
    size = Path(path).stat().st_size
    share = f"{first['anonymous'] / size:.0%} of the file in anonymous memory"
    return Row(f"load, CPU time ({share})", first["seconds"], {}, size, target="<= 0.5 s, <= 15 % of the file")


def torch_model(path: str, backend: str, dtype: str, compiled: bool, threads: int, steps: int) -> Any:
    """Runs in the environment with torch."""
    import squish_torch
    import torch
    from transformers import DynamicCache, StaticCache

    torch.set_num_threads(threads)
    model = squish_torch.from_pretrained(path, backend=backend or None)
    if dtype:
        model = model.dequantize().to(getattr(torch, dtype))
    ids = torch.arange(1, 129)[None] * 7 % 40000
    forward = torch.compile(model.forward, fullgraph=True, dynamic=False) if compiled else model.forward

    def prefill(cache: Any) -> Any:
        return model(ids, past_key_values=cache, use_cache=True, cache_position=torch.arange(128), logits_to_keep=1)

    if not steps:

        def call() -> None:
            with torch.inference_mode():
                prefill(DynamicCache())

        return call
    caches = []
    with torch.inference_mode():
        cache = StaticCache(model.config, max_cache_len=256) if compiled else DynamicCache()
        prefill(cache)
        caches.append(cache)

    def decode() -> None:
        with torch.inference_mode():
            for step in range(steps):
                place = torch.tensor([128 + step])
                forward(ids[:, :1], past_key_values=caches[0], use_cache=True, cache_position=place,
                        position_ids=place[None])  # fmt: skip
            if not compiled:
                caches[0].crop(128)

    return decode


def small_module() -> dict[str, float]:
    """Seconds of a call: of the least of many rounds."""
    import tempfile
    import time

    import squish_torch
    import torch

    import squish_core as squish

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        squish.save(
            f"{folder}/m.gguf", {"w": np.random.default_rng(0).standard_normal((32, 64), np.float32)}, encode="q4_0"
        )
        module = squish_torch.CompressedLinear.of(squish.open(f"{folder}/m.gguf")["w"], backend="cpu:threads=1")
        weight = squish.open(f"{folder}/m.gguf", mmap=False)["w"].load("cpu:threads=1")
    linear, x, y = torch.nn.Linear(64, 32, bias=False), torch.randn(1, 64), torch.empty(1, 32)
    kernel, pointers = weight.linear_pointers(), (x.data_ptr(), y.data_ptr())
    assert kernel is not None

    def least(call: Any) -> float:
        best = float("inf")
        for _ in range(100):
            start = time.perf_counter()
            for _ in range(1000):
                call()
            best = min(best, (time.perf_counter() - start) / 1000)
        return best

    with torch.inference_mode():
        return {
            "module": least(lambda: module(x)), "nn.Linear": least(lambda: linear(x)),
            "kernel": least(lambda: kernel(pointers[0], 1, pointers[1])),
        }  # fmt: skip


def load_model(path: str) -> dict[str, float]:
    """CPU seconds and anonymous bytes of a load."""
    import gc
    import re
    import time
    from pathlib import Path

    import squish_torch
    import transformers.models.llama.modeling_llama  # noqa: F401 - the import is not what is measured

    def anonymous() -> int:
        gc.collect()
        found = re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())
        assert found
        return int(found[1]) * 1024

    squish_torch.from_pretrained  # noqa: B018 - imports
    before, start = anonymous(), time.process_time()
    model = squish_torch.from_pretrained(path)
    seconds = time.process_time() - start
    return {
        "seconds": seconds,
        "anonymous": float(anonymous() - before),
        "tensors": float(len(list(model.parameters()))),
    }


def llama_cpp(path: str, threads: int, steps: int) -> Any:
    """Runs where xllamacpp is, through llama.cpp's C interface."""
    import ctypes
    from ctypes import c_bool, c_char_p, c_int32, c_void_p
    from pathlib import Path

    import xllamacpp

    class Params(ctypes.Structure):  # larger than any version's
        _fields_ = (("words", ctypes.c_uint32 * 256),)

    class Batch(ctypes.Structure):
        _fields_ = (("count", c_int32), ("arrays", c_void_p * 6))

    library = ctypes.CDLL(next(map(str, Path(xllamacpp.__file__).parent.glob("*.so"))))

    def function(name: str, result: Any, *arguments: Any) -> Any:
        entry = getattr(library, name)
        entry.restype, entry.argtypes = result, arguments
        return entry

    function("llama_log_set", None, c_void_p, c_void_p)(ctypes.CFUNCTYPE(None, c_int32, c_char_p, c_void_p)(0), None)
    function("llama_backend_init", None)()
    load = function("llama_model_load_from_file", c_void_p, c_char_p, Params)
    model = load(path.encode(), function("llama_model_default_params", Params)())
    settings = function("llama_context_default_params", Params)()
    settings.words[0] = 1024
    context = function("llama_init_from_model", c_void_p, c_void_p, Params)(model, settings)
    function("llama_set_n_threads", None, c_void_p, c_int32, c_int32)(context, threads, threads)
    batch = function("llama_batch_get_one", Batch, ctypes.POINTER(c_int32), c_int32)
    decode = function("llama_decode", c_int32, c_void_p, Batch)
    memory = function("llama_get_memory", c_void_p, c_void_p)(context)
    clear = function("llama_memory_clear", None, c_void_p, c_bool)
    remove = function("llama_memory_seq_rm", c_bool, c_void_p, c_int32, c_int32, c_int32)
    prompt, token = (c_int32 * 128)(*(7 * place % 40000 for place in range(1, 129))), (c_int32 * 1)(7)

    def prefill() -> None:
        clear(memory, True)
        if decode(context, batch(prompt, 128)):
            raise RuntimeError("llama.cpp does not decode the tokens")

    def tokens() -> None:
        remove(memory, 0, 128, -1)
        for _ in range(steps):
            if decode(context, batch(token, 1)):
                raise RuntimeError("llama.cpp does not decode a token")

    prefill()
    return tokens if steps else prefill
