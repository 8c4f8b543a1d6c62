"""Runs embedding models in llama.cpp and Transformers, in the engine's own process.

Every runner takes a model's path and texts, and returns `ids` (how the engine tokenizes the texts, with the tokens that
it adds) and `vectors` (f32 [text, size], pooled but not normalized).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from . import peer

ENGINES = ("llama.cpp", "torch")


def vectors(engine: str, model: Path, texts: list[str], *, table: bool = False) -> tuple[list[list[int]], np.ndarray]:
    """An engine's token ids and vectors of unit length for texts.

    `table`: Transformers takes GELU from a table in f16, as llama.cpp does.
    """
    runner = llama_cpp if engine == "llama.cpp" else transformers
    answer = peer(engine).run(runner, path=str(model), texts=texts, **({"table": True} if table else {}))
    lengths = np.linalg.norm(answer["vectors"], axis=1, keepdims=True)
    return answer["ids"], answer["vectors"] / lengths


def llama_cpp(path: str, texts: list[str]) -> dict[str, Any]:
    """Run a GGUF with the pooling that it states, through llama.cpp's C interface, inside xllamacpp's wheel."""
    import ctypes
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

    log = ctypes.CFUNCTYPE(None, c_int32, c_char_p, c_void_p)(lambda level, text, _: None)
    function("llama_log_set", None, type(log), c_void_p)(log, None)
    function("llama_backend_init", None)()
    load = function("llama_model_load_from_file", c_void_p, c_char_p, Params)
    model = load(path.encode(), function("llama_model_default_params", Params)())
    if not model:
        raise RuntimeError("llama.cpp does not load the file")
    settings = function("llama_context_default_params", Params)()
    length, flash, keys, values = 0, 13, 26, 27  # words: n_ctx, flash_attn_type, type_k, type_v
    if (settings.words[flash], settings.words[keys], settings.words[values]) != (0xFFFFFFFF, 1, 1):
        raise RuntimeError("llama.cpp's context parameters have another layout")
    settings.words[length] = 512
    for word in (flash, keys, values):  # attention in f32: fused, or with a cache in f16, it rounds
        settings.words[word] = 0
    context = function("llama_init_from_model", c_void_p, c_void_p, Params)(model, settings)
    if not context:
        raise RuntimeError("llama.cpp makes no context for the model")
    function("llama_set_n_threads", None, c_void_p, c_int32, c_int32)(context, 1, 1)
    function("llama_set_embeddings", None, c_void_p, c_bool)(context, True)
    pooling = function("llama_pooling_type", c_int32, c_void_p)(context)
    outputs = function("llama_model_n_cls_out" if pooling == 4 else "llama_model_n_embd_out", c_int32, c_void_p)(model)
    vocabulary = function("llama_model_get_vocab", c_void_p, c_void_p)(model)
    array = ctypes.POINTER(c_int32)
    encode = function("llama_tokenize", c_int32, c_void_p, c_char_p, c_int32, array, c_int32, c_bool, c_bool)
    batch = function("llama_batch_get_one", Batch, array, c_int32)
    has_encoder = function("llama_model_has_encoder", c_bool, c_void_p)(model)
    decode = function("llama_encode" if has_encoder else "llama_decode", c_int32, c_void_p, Batch)
    pooled = function("llama_get_embeddings_seq", ctypes.POINTER(c_float), c_void_p, c_int32)
    memory = function("llama_get_memory", c_void_p, c_void_p)(context)
    ids, rows = [], []
    for text in texts:
        if memory:
            function("llama_memory_clear", None, c_void_p, c_bool)(memory, True)
        data, out = text.encode(), (c_int32 * 512)()
        count = encode(vocabulary, data, len(data), out, len(out), True, True)
        if count < 1 or decode(context, batch(out, count)):
            raise RuntimeError("llama.cpp does not run the text")
        ids.append(list(out[:count]))
        rows.append(np.ctypeslib.as_array(pooled(context, 0), (outputs,)).copy())
    function("llama_log_set", None, c_void_p, c_void_p)(None, None)
    function("llama_free", None, c_void_p)(context)
    function("llama_model_free", None, c_void_p)(model)
    return {"ids": ids, "vectors": np.stack(rows)}


def transformers(path: str, texts: list[str], table: bool = False) -> dict[str, Any]:
    """Run a folder on the CPU in f32, with the pooling and the matrices in the files of
    sentence-transformers."""
    import json
    from pathlib import Path

    import torch
    from safetensors.torch import load_file
    from transformers import AutoModel, AutoTokenizer, T5EncoderModel, UMT5EncoderModel

    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    kind = json.loads(Path(path, "config.json").read_text())["model_type"]
    alone = {"t5": T5EncoderModel, "umt5": UMT5EncoderModel}.get(kind, AutoModel)  # without a decoder
    model = alone.from_pretrained(path, dtype=torch.float32, attn_implementation="eager", local_files_only=True)

    class Table(torch.nn.Module):
        def forward(self, values: Any) -> Any:
            return torch.nn.functional.gelu(values.half().float(), approximate="tanh").half().float()

    for module in [*model.modules()] if table else ():
        if hasattr(module, "intermediate_act_fn"):
            module.intermediate_act_fn = Table()
    stated = json.loads(Path(path, "1_Pooling", "config.json").read_text())
    modules = json.loads(Path(path, "modules.json").read_text())
    dense = [Path(path, each["path"], "model.safetensors") for each in modules if each["type"].endswith("Dense")]
    matrices = [load_file(file)["linear.weight"] for file in dense]
    ids, rows = [], []
    with torch.inference_mode():
        for text in texts:
            inputs = tokenizer(text, return_tensors="pt")
            states = model(**inputs).last_hidden_state[0]
            if stated.get("pooling_mode_lasttoken"):
                pooled = states[-1]
            else:
                pooled = states[0] if stated.get("pooling_mode_cls_token") else states.mean(0)
            for matrix in matrices:
                pooled = matrix @ pooled
            ids.append(inputs["input_ids"][0].tolist())
            rows.append(pooled.numpy())
    return {"ids": ids, "vectors": np.stack(rows)}
