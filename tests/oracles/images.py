"""The embeddings of an image, from a vision tower in llama.cpp and in Transformers, each in its own process."""

from __future__ import annotations

from typing import Any

import numpy as np


def llama_cpp(model: str, tower: str, image: np.ndarray) -> Any:
    """Encode an image (u8 [height, width, 3]) with a tower's GGUF, beside any text model of its width.

    Returns f32 [tokens, width], through the C interface of mtmd inside xllamacpp's wheel.
    """
    import ctypes
    from ctypes import POINTER, c_bool, c_char_p, c_float, c_int32, c_size_t, c_uint32, c_void_p
    from pathlib import Path

    import xllamacpp

    class Params(ctypes.Structure):  # larger than any version's
        _fields_ = (("words", c_uint32 * 256),)

    class Text(ctypes.Structure):
        _fields_ = (("text", c_char_p), ("size", c_size_t), ("flags", c_bool * 16))

    library = ctypes.CDLL(next(map(str, Path(xllamacpp.__file__).parent.glob("*.so"))))

    def function(name: str, result: Any, *arguments: Any) -> Any:
        entry = getattr(library, name)
        entry.restype, entry.argtypes = result, arguments
        return entry

    messages: list[str] = []
    kind = ctypes.CFUNCTYPE(None, c_int32, c_char_p, c_void_p)
    log = kind(lambda level, text, _: messages.append(text.decode(errors="replace").strip()) if level >= 3 else None)
    for name in ("llama_log_set", "mtmd_helper_log_set"):
        function(name, None, kind, c_void_p)(log, None)
    function("llama_backend_init", None)()
    settings = function("llama_model_default_params", Params)()
    text_model = function("llama_model_load_from_file", c_void_p, c_char_p, Params)(model.encode(), settings)
    params = function("mtmd_context_params_default", Params)()
    threads, flash, warmup = 5, 10, 11  # words: n_threads, flash_attn_type, warmup
    if (params.words[threads], params.words[flash], params.words[warmup] & 255) != (4, 0xFFFFFFFF, 1):
        raise RuntimeError(f"mtmd's parameters have another layout: {list(params.words[:16])}")
    params.words[0], params.words[threads], params.words[flash], params.words[warmup] = 0, 1, 0, 0
    start = function("mtmd_init_from_file", c_void_p, c_char_p, c_void_p, Params)
    context = start(tower.encode(), text_model, params)
    if not context:
        raise RuntimeError(f"llama.cpp does not load the tower: {'; '.join(messages[-4:])}")
    height, width, _ = image.shape
    pixels = np.ascontiguousarray(image, np.uint8)
    bitmap = function("mtmd_bitmap_init", c_void_p, c_uint32, c_uint32, c_void_p)(width, height, pixels.ctypes.data)
    chunks = function("mtmd_input_chunks_init", c_void_p)()
    marker = function("mtmd_get_marker", c_char_p, c_void_p)(context)
    tokenize = function("mtmd_tokenize", c_int32, c_void_p, c_void_p, POINTER(Text), POINTER(c_void_p), c_size_t)
    if tokenize(context, chunks, Text(marker, len(marker)), (c_void_p * 1)(bitmap), 1):
        raise RuntimeError(f"llama.cpp does not take the image: {'; '.join(messages[-4:])}")
    embeddings = []
    for number in range(function("mtmd_input_chunks_size", c_size_t, c_void_p)(chunks)):
        chunk = function("mtmd_input_chunks_get", c_void_p, c_void_p, c_size_t)(chunks, number)
        if function("mtmd_input_chunk_get_type", c_int32, c_void_p)(chunk) != 1:
            continue
        if function("mtmd_encode_chunk", c_int32, c_void_p, c_void_p)(context, chunk):
            raise RuntimeError(f"llama.cpp does not encode the image: {'; '.join(messages[-4:])}")
        rows = function("mtmd_input_chunk_get_n_tokens", c_size_t, c_void_p)(chunk)
        columns = function("llama_model_n_embd_inp", c_int32, c_void_p)(text_model)
        output = function("mtmd_get_output_embd", POINTER(c_float), c_void_p)(context)
        embeddings.append(np.ctypeslib.as_array(output, (rows, columns)).copy())
    for name in ("llama_log_set", "mtmd_helper_log_set"):
        function(name, None, c_void_p, c_void_p)(None, None)
    function("mtmd_free", None, c_void_p)(context)
    function("llama_model_free", None, c_void_p)(text_model)
    return np.concatenate(embeddings)


def transformers(folder: str, image: np.ndarray, moved: bool = False) -> Any:
    """Encode an image (f32 [3, height, width], normalized) with the model of a folder.

    `moved`: each patch gets the position of the one before, and the class token that of the last patch.
    """
    import inspect

    import torch
    from transformers import AutoModelForImageTextToText

    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    for name, parameter in model.named_parameters():
        if moved and name.endswith("position_embeddings"):
            parameter.data = parameter.roll(1, 1)
    parameters = inspect.signature(model.model.get_image_features).parameters
    height, width = image.shape[1:]
    inputs = {"pixel_values": torch.tensor(image)[None]}
    if "image_sizes" in parameters:
        inputs["image_sizes"] = torch.tensor([[height, width]])
    size = model.config.vision_config.patch_size
    rows, columns = (side // size for side in (height, width)) if isinstance(size, int) else (0, 0)
    if {"spatial_shapes", "image_position_ids"} & {*parameters}:  # rows of pixels, their colors side by side
        patches = inputs["pixel_values"][0].reshape(3, rows, size, columns, size).permute(1, 3, 2, 4, 0)
        inputs["pixel_values"] = patches.reshape(1, rows * columns, -1)
    if "image_position_ids" in parameters:
        places = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).flip(-1)
        inputs["image_position_ids"] = places[None]
    if "spatial_shapes" in parameters:
        inputs["spatial_shapes"] = torch.tensor([[rows, columns]])
        inputs["pixel_attention_mask"] = torch.ones(1, rows * columns, dtype=torch.int64)
    if model.config.model_type == "kimi_k25":  # patches, row by row
        patches = inputs["pixel_values"][0].reshape(3, rows, size, columns, size).permute(1, 3, 0, 2, 4)
        inputs["pixel_values"] = patches.reshape(rows * columns, 3, size, size)
        inputs["image_grid_thw"] = torch.tensor([[1, rows, columns]])
    elif "image_grid_thw" in parameters:  # patches, square by square, of the image twice
        vision = model.config.vision_config
        size, side = vision.patch_size, vision.spatial_merge_size
        rows, columns = height // size, width // size
        patches = inputs["pixel_values"][0].reshape(3, rows // side, side, size, columns // side, side, size)
        twice = patches.permute(1, 4, 2, 5, 0, 3, 6)[:, :, :, :, :, None].expand(-1, -1, -1, -1, -1, 2, -1, -1)
        inputs["pixel_values"] = twice.reshape(rows * columns, -1)
        inputs["image_grid_thw"] = torch.tensor([[1, rows, columns]])
    with torch.inference_mode():
        features = model.get_image_features(**inputs)
    merged = getattr(features, "pooler_output", features)
    found = torch.cat([each.reshape(-1, each.shape[-1]) for each in merged])
    deep = [torch.cat([*each]) for each in getattr(features, "deepstack_features", None) or ()]
    return torch.cat([found, *deep], -1).float().numpy()
