"""Runs a model in each engine, in the engine's own process: log-probabilities and greedy continuations.

Every runner takes a model's path, texts, token ids and the number of tokens to generate, and returns `ids` (how the
engine tokenizes the texts), `logprobs` (f32 [prompt, vocabulary], after each prompt's last token) and `greedy` (the
ids generated after each prompt); those that compute in one thread also the `seconds` of a generated token. Where `ids`
is None, the engine runs on its own tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Prompts = list[list[int]] | None


def llama_cpp(path: str, texts: list[str], ids: Prompts, tokens: int, adapter: str = "") -> dict[str, Any]:
    """Run a GGUF, with an adapter if one is named, through llama.cpp's C interface, inside xllamacpp's wheel."""
    import ctypes
    import time
    from ctypes import c_bool, c_char_p, c_float, c_int32, c_void_p
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

    messages: list[str] = []
    log = ctypes.CFUNCTYPE(None, c_int32, c_char_p, c_void_p)(
        lambda level, text, _: messages.append(text.decode(errors="replace").strip()) if level >= 4 else None
    )
    function("llama_log_set", None, type(log), c_void_p)(log, None)
    function("llama_backend_init", None)()
    load = function("llama_model_load_from_file", c_void_p, c_char_p, Params)
    model = load(path.encode(), function("llama_model_default_params", Params)())
    if not model:
        raise RuntimeError(f"llama.cpp does not load the file: {'; '.join(messages[:2])}")
    settings = function("llama_context_default_params", Params)()
    length, flash, keys, values = 0, 13, 26, 27  # words: n_ctx, flash_attn_type, type_k, type_v
    if (settings.words[flash], settings.words[keys], settings.words[values]) != (0xFFFFFFFF, 1, 1):
        raise RuntimeError("llama.cpp's context parameters have another layout")
    settings.words[length] = 1024
    for word in (flash, keys, values):  # attention in f32: fused, or with a cache in f16, it rounds
        settings.words[word] = 0
    context = function("llama_init_from_model", c_void_p, c_void_p, Params)(model, settings)
    if not context:
        raise RuntimeError("llama.cpp makes no context for the model")
    function("llama_set_n_threads", None, c_void_p, c_int32, c_int32)(context, 1, 1)
    if adapter:
        loaded = function("llama_adapter_lora_init", c_void_p, c_void_p, c_char_p)(model, adapter.encode())
        if not loaded:
            raise RuntimeError(f"llama.cpp does not load the adapter: {'; '.join(messages[:2])}")
        scales, adapters = (c_float * 1)(1.0), (c_void_p * 1)(loaded)
        apply = function(
            "llama_set_adapters_lora",
            c_int32,
            c_void_p,
            ctypes.POINTER(c_void_p),
            ctypes.c_size_t,
            ctypes.POINTER(c_float),
        )
        if apply(context, adapters, 1, scales):
            raise RuntimeError("llama.cpp does not apply the adapter")
    vocabulary = function("llama_model_get_vocab", c_void_p, c_void_p)(model)
    size = function("llama_vocab_n_tokens", c_int32, c_void_p)(vocabulary)
    array = ctypes.POINTER(c_int32)
    encode = function("llama_tokenize", c_int32, c_void_p, c_char_p, c_int32, array, c_int32, c_bool, c_bool)
    batch = function("llama_batch_get_one", Batch, array, c_int32)
    decode = function("llama_decode", c_int32, c_void_p, Batch)
    logits = function("llama_get_logits_ith", ctypes.POINTER(c_float), c_void_p, c_int32)
    memory = function("llama_get_memory", c_void_p, c_void_p)(context)
    clear = function("llama_memory_clear", None, c_void_p, c_bool)

    def tokenize(text: str) -> list[int]:
        data, out = text.encode(), (c_int32 * 4096)()
        count = encode(vocabulary, data, len(data), out, len(out), True, True)
        if count < 0:
            raise RuntimeError("llama.cpp does not tokenize the text")
        return list(out[:count])

    def after(row: list[int]) -> np.ndarray:
        numbers = (c_int32 * len(row))(*row)
        if decode(context, batch(numbers, len(row))):
            raise RuntimeError("llama.cpp does not decode the tokens")
        scores = np.ctypeslib.as_array(logits(context, -1), (size,)).astype(np.float64)
        scores -= scores.max()
        return (scores - np.log(np.exp(scores).sum())).astype(np.float32)

    own = [tokenize(text) for text in texts]
    logprobs, greedy, seconds = [], [], 0.0
    for row in ids or own:
        clear(memory, True)
        last = after(row)
        logprobs.append(last)
        generated: list[int] = []
        start = time.perf_counter()
        for _ in range(tokens):
            generated.append(int(last.argmax()))
            last = after(generated[-1:])
        seconds += time.perf_counter() - start
        greedy.append(generated)
    function("llama_log_set", None, c_void_p, c_void_p)(None, None)
    function("llama_free", None, c_void_p)(context)
    function("llama_model_free", None, c_void_p)(model)
    seconds /= max(len(greedy) * tokens, 1)
    return {"ids": own, "logprobs": np.stack(logprobs), "greedy": greedy, "seconds": seconds}


def transformers(path: str, texts: list[str], ids: Prompts, tokens: int) -> dict[str, Any]:
    """Run a checkpoint folder through Transformers on the CPU, in f32."""
    import time

    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer

    torch.set_num_threads(1)  # more than idle cores make it several times slower
    tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    own = [tokenizer.encode(text) for text in texts]
    config = AutoConfig.from_pretrained(path, local_files_only=True)
    # its tables have Mistral 4, a text model, only among those of images
    images = hasattr(config, "vision_config") or type(config) not in AutoModelForCausalLM._model_mapping
    model, loading = (AutoModelForImageTextToText if images else AutoModelForCausalLM).from_pretrained(
        path, dtype=torch.float32, local_files_only=True, output_loading_info=True, attn_implementation="eager"
    )
    left = {kind: sorted(map(str, keys))[:3] for kind, keys in loading.items() if keys and kind.endswith("_keys")}
    if left:
        raise RuntimeError(f"Transformers leaves {left}")
    logprobs, greedy, seconds = [], [], 0.0
    with torch.inference_mode():
        for row in ids or own:
            outputs = model(torch.tensor([row]), use_cache=True)
            scores = torch.log_softmax(outputs.logits[0, -1].double(), -1)
            logprobs.append(scores.float().numpy())
            generated: list[int] = []
            start = time.perf_counter()
            for _ in range(tokens):
                generated.append(int(scores.argmax()))
                kind = "past_key_values" if "past_key_values" in outputs else "cache_params"  # of Mamba
                outputs = model(torch.tensor([generated[-1:]]), use_cache=True, **{kind: outputs[kind]})
                scores = outputs.logits[0, -1]
            seconds += time.perf_counter() - start
            greedy.append(generated)
    seconds /= max(len(greedy) * tokens, 1)
    return {"ids": own, "logprobs": np.stack(logprobs), "greedy": greedy, "seconds": seconds}


def mlx(path: str, texts: list[str], ids: Prompts, tokens: int) -> dict[str, Any]:
    """Run a folder through mlx-lm on the CPU, in f32."""
    from pathlib import Path

    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache
    from mlx_lm.utils import load_model, load_tokenizer

    mx.set_default_device(mx.cpu)
    tokenizer = load_tokenizer(Path(path))
    own = [tokenizer.encode(text) for text in texts]
    model, _ = load_model(Path(path))
    model.set_dtype(mx.float32)  # f16 and bf16 experts do not run on the CPU; the values are the same
    logprobs, greedy = [], []
    for row in ids or own:
        cache = make_prompt_cache(model)
        scores = np.array(model(mx.array([row]), cache=cache)[0, -1].astype(mx.float32)).astype(np.float64)
        scores -= scores.max()
        logprobs.append((scores - np.log(np.exp(scores).sum())).astype(np.float32))
        generated: list[int] = []
        for _ in range(tokens):
            generated.append(int(scores.argmax()))
            scores = np.array(model(mx.array([generated[-1:]]), cache=cache)[0, -1].astype(mx.float32))
        greedy.append(generated)
    return {"ids": own, "logprobs": np.stack(logprobs), "greedy": greedy}


def mistralrs(path: str, texts: list[str], ids: Prompts, tokens: int, file: str, vocabulary: int) -> dict[str, Any]:
    """Run a folder, its UQFF or a GGUF through mistral.rs, which takes texts; `ids` say whether bos is missing."""
    import os
    import tempfile
    from pathlib import Path

    # more threads than idle cores make it many times slower, and are where it hangs
    os.environ |= {"HF_HUB_OFFLINE": "1", "MISTRALRS_CPU_KV_F32": "1", "RAYON_NUM_THREADS": "1"}
    from mistralrs import ChatCompletionRequest, ModelDType, Runner, Which

    if file.endswith(".gguf"):
        which = Which.GGUF(quantized_model_id=path, quantized_filename=file, dtype=ModelDType.F32)
    else:
        stated = Path(path, "config.json").read_text()
        text_only_gemma = any(f"Gemma{kind}ForCausalLM" in stated for kind in ("3", "4", "4Unified"))
        kind = Which.MultimodalPlain if text_only_gemma else Which.Plain  # these are refused as plain models
        which = kind(model_id=path, dtype=ModelDType.F32, **({"from_uqff": file} if file else {}))
    with tempfile.TemporaryDirectory() as folder:
        template = Path(folder, "contents.jinja")
        template.write_text("{% for m in messages %}{{ m['content'] }}{% endfor %}")
        runner = Runner(which=which, jinja_explicit=str(template))
    own = [runner.tokenize_text(text, True, None) for text in texts]
    if ids and own == [row[1:] for row in ids]:  # of a GGUF, where bos is left to the chat template
        texts = [runner.detokenize_text(ids[0][:1], False) + text for text in texts]
        own = [runner.tokenize_text(text, True, None) for text in texts]
    logprobs, greedy = [], []

    def generated(text: str, tokens: int, top: int) -> list[dict[int, float]]:
        request = ChatCompletionRequest(
            model="m",
            messages=[{"role": "user", "content": text}],
            logprobs=True,
            top_logprobs=top,
            temperature=0,
            max_tokens=tokens,
            ignore_eos=True,
        )
        content = runner.send_chat_completion_request(request).choices[0].logprobs.content
        return [{int(top.token): top.logprob for top in token.top_logprobs} for token in content]

    for text in texts:
        row = np.full(vocabulary, np.nan, np.float32)
        for token, logprob in generated(text, 1, vocabulary)[0].items():
            row[token] = logprob
        logprobs.append(row)
        greedy.append([max(scores, key=scores.__getitem__) for scores in generated(text, tokens, 1)])
    return {"ids": own, "logprobs": np.stack(logprobs), "greedy": greedy}


def onnxruntime(path: str, texts: list[str], ids: Prompts, tokens: int) -> dict[str, Any]:
    """Run a model through onnxruntime on the CPU, in f32, on the ids that it is given."""
    import time

    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    states = [state for state in session.get_inputs() if state.name.startswith("past")]
    sizes = {"batch_size": 1, "past_sequence_length": 0}
    empty = [np.zeros([sizes.get(size, size) for size in state.shape], np.float32) for state in states]

    def step(row: list[int], seen: int, past: list[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray]]:
        feeds = {
            "input_ids": np.array([row], np.int64),
            "position_ids": np.arange(seen, seen + len(row), dtype=np.int64)[None],
            "attention_mask": np.ones((1, seen + len(row)), np.int64),
            **{state.name: values for state, values in zip(states, past)},
        }
        logits, *present = session.run(None, feeds)
        scores = logits[0, -1].astype(np.float64)
        scores -= scores.max()
        return (scores - np.log(np.exp(scores).sum())).astype(np.float32), present

    logprobs, greedy, seconds = [], [], 0.0
    for row in ids or []:
        last, past = step(list(row), 0, empty)
        logprobs.append(last)
        generated: list[int] = []
        start = time.perf_counter()
        for _ in range(tokens):
            generated.append(int(last.argmax()))
            last, past = step(generated[-1:], len(row) + len(generated) - 1, past)
        seconds += time.perf_counter() - start
        greedy.append(generated)
    seconds /= max(len(greedy) * tokens, 1)
    return {"ids": ids, "logprobs": np.stack(logprobs), "greedy": greedy, "seconds": seconds}


def squish_torch(path: str, texts: list[str], ids: Prompts, tokens: int) -> dict[str, Any]:
    """Run a file of any format from its compressed weights, through squish-torch, in f32."""
    import time

    import squish_torch
    import torch

    torch.set_num_threads(1)
    model, tokenizer = squish_torch.from_pretrained(path), squish_torch.tokenizer_of(path)
    own = [tokenizer.encode(text) for text in texts]
    logprobs, greedy, seconds = [], [], 0.0
    with torch.inference_mode():
        for row in ids or own:
            outputs = model(torch.tensor([row]), use_cache=True)
            logprobs.append(torch.log_softmax(outputs.logits[0, -1].double(), -1).float().numpy())
            generated: list[int] = []
            start = time.perf_counter()
            for _ in range(tokens):
                generated.append(int(outputs.logits[0, -1].argmax()))
                kind = "past_key_values" if "past_key_values" in outputs else "cache_params"  # of Mamba
                outputs = model(torch.tensor([generated[-1:]]), use_cache=True, **{kind: outputs[kind]})
            seconds += time.perf_counter() - start
            greedy.append(generated)
    seconds /= max(len(greedy) * tokens, 1)
    return {"ids": own, "logprobs": np.stack(logprobs), "greedy": greedy, "seconds": seconds}
