"""What `language_models` runs in other environments; these functions use no outer name."""

from __future__ import annotations

from typing import Any


def torch_call(
    path: str, kind: str, backend: str, threads: int, tokens: int, steps: int, compiled: bool = False
) -> Any:
    """A prefill of `tokens`, or `steps` tokens after it, in a model of this kind: "compressed", "without products" or a
    dtype of transformers. The process keeps its models."""
    import warnings

    import squish_torch
    import torch
    from transformers import DynamicCache, StaticCache

    warnings.simplefilter("ignore")
    models = globals().setdefault("models", {})
    if (kind, backend) not in models:
        model = squish_torch.from_pretrained(path, backend=backend or None, on_unsupported="dense")
        if kind == "without products":
            layers: list[Any] = [
                module for module in model.modules() if isinstance(module, squish_torch.CompressedLinear)
            ]
            for layer in layers:
                layer.forward = lambda x, rows=layer.out_features: x.new_zeros(*x.shape[:-1], rows)
        elif kind != "compressed":
            model = model.dequantize().to(getattr(torch, kind))
        models[kind, backend] = model
    model = models[kind, backend]
    forward = torch.compile(model.forward, fullgraph=True, dynamic=False) if compiled else model.forward
    ids = torch.arange(1, tokens + 1)[None] * 7 % 40000
    torch.set_num_threads(threads)

    def prefill(cache: Any) -> Any:
        with torch.inference_mode():
            model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        return cache

    if not steps:
        return lambda: prefill(DynamicCache())
    cache = prefill(StaticCache(model.config, max_cache_len=2 * tokens) if compiled else DynamicCache())

    def decode() -> None:
        with torch.inference_mode():
            for step in range(steps):
                position = torch.tensor([[tokens + step]])
                forward(ids[:, :1], past_key_values=cache, use_cache=True, position_ids=position)
            if compiled:
                for cached in cache.layers:
                    cached.cumulative_length.fill_(tokens)
            else:
                cache.crop(-steps)

    return decode


def torch_load(path: str, kind: str) -> dict[str, float]:
    """CPU seconds and anonymous bytes of a load: "compressed", "compressed again" for the second in a process, or
    transformers' own in a dtype."""
    import gc
    import re
    import time
    from pathlib import Path

    import squish_torch
    import torch
    import transformers.models.llama.modeling_llama  # noqa: F401 - the import is not what is measured
    from transformers import AutoModelForCausalLM

    def anonymous() -> int:
        gc.collect()
        line = re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())
        assert line
        return int(line[1]) * 1024

    squish_torch.from_pretrained  # noqa: B018 - imports
    models = [squish_torch.from_pretrained(path)] if kind == "compressed again" else []
    before, start = anonymous(), time.process_time()
    if kind.startswith("compressed"):
        model = squish_torch.from_pretrained(path)
    else:
        file = Path(path)
        model = AutoModelForCausalLM.from_pretrained(str(file.parent), gguf_file=file.name, dtype=getattr(torch, kind))
    seconds, after = time.process_time() - start, anonymous()
    models.append(model)
    return {"seconds": seconds, "anonymous": float(after - before), "models": float(len(models))}


def module_call() -> dict[str, float]:
    """Seconds of a call of a small module, of its product alone, and of `nn.Linear`: the minimum of many rounds."""
    import tempfile
    import time

    import numpy as np
    import squish_torch
    import torch

    import squish_core as squish

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        values = np.random.default_rng(0).standard_normal((32, 64), np.float32)
        squish.save(f"{folder}/m.gguf", {"w": values}, encode="q4_0")
        module = squish_torch.CompressedLinear.of(squish.open(f"{folder}/m.gguf")["w"], backend="cpu:threads=1")
        weight = squish.open(f"{folder}/m.gguf", mmap=False)["w"].load("cpu:threads=1")
    linear, x, y = torch.nn.Linear(64, 32, bias=False), torch.randn(1, 64), torch.empty(1, 32)
    kernel, pointers = weight.linear_pointers(), (x.data_ptr(), y.data_ptr())
    assert kernel is not None
    calls = {
        "module": lambda: module(x), "nn.Linear": lambda: linear(x),
        "kernel": lambda: kernel(pointers[0], 1, pointers[1]),
    }  # fmt: skip
    seconds = dict.fromkeys(calls, float("inf"))
    with torch.inference_mode():
        for _ in range(1000):  # short rounds, so that some run without interruption
            for name, call in calls.items():
                start = time.perf_counter()
                for _ in range(100):
                    call()
                seconds[name] = min(seconds[name], (time.perf_counter() - start) / 100)
    return seconds


def products(path: str, backend: str, threads: int) -> Any:
    """The products of a token: each linear layer's, one after another, without torch."""
    import warnings

    import squish_torch
    import torch
    from squish_torch.weights import entry_of

    warnings.simplefilter("ignore")
    torch.set_num_threads(threads)
    model = squish_torch.from_pretrained(path, backend=backend or None, on_unsupported="dense")
    calls = []
    for module in model.modules():
        if isinstance(module, squish_torch.CompressedLinear):
            entry = entry_of(module.parts, module.description, module.backend)
            x, y = torch.randn(module.in_features), torch.empty(module.out_features)
            calls.append((entry.products[torch.float32], x, y, module))

    def run() -> None:
        for product, x, y, _ in calls:
            product(x.data_ptr(), 1, y.data_ptr())

    return run


def dense_tensors(path: str, backend: str) -> list[str]:
    """The matrices that a backend does not run."""
    import squish_core as squish

    names = []
    with squish.open(path) as file:
        for name, tensor in file.items():
            if len(tensor.shape) == 2:
                try:
                    tensor.plan(backend)
                except squish.SquishError:
                    names.append(name)
    return names


def llama_cpp_call(path: str, package: str, threads: int, tokens: int, steps: int) -> Any:
    """The same in llama.cpp, through its C interface; without tokens, the CPU seconds and anonymous bytes of a load."""
    import ctypes
    import importlib
    import re
    import time
    from ctypes import c_bool, c_char_p, c_int32, c_void_p
    from pathlib import Path

    class Params(ctypes.Structure):  # larger than any version's
        _fields_ = (("words", ctypes.c_uint32 * 256),)

    class Batch(ctypes.Structure):
        _fields_ = (("count", c_int32), ("arrays", c_void_p * 6))

    home = Path(importlib.import_module(package).__file__ or "").parent
    library = ctypes.CDLL(str([*home.glob("lib/libllama.*"), *home.glob("*.so")][0]))

    def function(name: str, result: Any, *arguments: Any) -> Any:
        entry = getattr(library, name)
        entry.restype, entry.argtypes = result, arguments
        return entry

    def anonymous() -> int:
        line = re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())
        assert line
        return int(line[1]) * 1024

    models = globals().setdefault("models", {})
    if path not in models:
        silent = ctypes.CFUNCTYPE(None, c_int32, c_char_p, c_void_p)(0)
        function("llama_log_set", None, c_void_p, c_void_p)(silent, None)
        function("llama_backend_init", None)()
        load = function("llama_model_load_from_file", c_void_p, c_char_p, Params)
        before, start = anonymous(), time.process_time()
        model = load(path.encode(), function("llama_model_default_params", Params)())
        loaded = {"seconds": time.process_time() - start, "anonymous": float(anonymous() - before)}
        settings = function("llama_context_default_params", Params)()
        settings.words[0] = 1024  # n_ctx
        models[path] = function("llama_init_from_model", c_void_p, c_void_p, Params)(model, settings), loaded
    context, loaded = models[path]
    if not tokens:
        return loaded
    batch = function("llama_batch_get_one", Batch, ctypes.POINTER(c_int32), c_int32)
    decode = function("llama_decode", c_int32, c_void_p, Batch)
    memory = function("llama_get_memory", c_void_p, c_void_p)(context)
    clear = function("llama_memory_clear", None, c_void_p, c_bool)
    remove = function("llama_memory_seq_rm", c_bool, c_void_p, c_int32, c_int32, c_int32)
    set_threads = function("llama_set_n_threads", None, c_void_p, c_int32, c_int32)
    prompt, token = (c_int32 * tokens)(*(7 * position % 40000 for position in range(1, tokens + 1))), (c_int32 * 1)(7)

    def prefill() -> None:
        set_threads(context, threads, threads)
        clear(memory, True)
        if decode(context, batch(prompt, tokens)):
            raise RuntimeError("llama.cpp does not decode the tokens")

    def decode_tokens() -> None:
        remove(memory, 0, tokens, -1)
        for _ in range(steps):
            if decode(context, batch(token, 1)):
                raise RuntimeError("llama.cpp does not decode a token")

    prefill()
    return decode_tokens if steps else prefill
