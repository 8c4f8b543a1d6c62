"""genai_config.json, the configuration of onnxruntime-genai."""

from __future__ import annotations

import json

from .config import Decoder

TYPES = {
    "mixtral": "mistral", "qwen3_moe": "qwen3", "olmo2": "olmo", "glm4": "llama", "starcoder2": "llama",
    **dict.fromkeys(("qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"), "qwen2"),
}  # fmt: skip
"""Family that onnxruntime-genai does not support -> a type that it runs in the same way."""


def genai_config(decoder: Decoder, filename: str) -> bytes:
    """Return the configuration of a decoder in the file `filename`."""
    tokens = {key: value for key, value in decoder.tokens.items() if value is not None}
    eos = tokens.get("eos_token_id", 0)
    tokens.setdefault("pad_token_id", eos[0] if isinstance(eos, list) else eos)
    names = {"past_key_names": "past_key_values.%d.key", "past_value_names": "past_key_values.%d.value"}
    inputs = {name: name for name in ("input_ids", "attention_mask", "position_ids")}
    outputs = {
        "logits": "logits", "present_key_names": "present.%d.key", "present_value_names": "present.%d.value"
    }  # fmt: skip
    more: dict[str, object] = {}
    if decoder.kinds:
        inputs["past_conv_names"], outputs["present_conv_names"] = "past.%d.conv", "present.%d.conv"
        more = {"layer_types": list(decoder.kinds), "conv_cache_size": decoder.taps - 1}
    model = {
        "type": TYPES.get(decoder.family, decoder.family),
        **tokens,
        "context_length": decoder.context,
        "vocab_size": decoder.vocabulary,
        "decoder": {
            "filename": filename, "head_size": decoder.head_size, "hidden_size": decoder.hidden,
            "num_attention_heads": decoder.heads, "num_key_value_heads": decoder.kv_heads,
            "num_hidden_layers": decoder.layers, "inputs": {**inputs, **names}, "outputs": outputs,
            "session_options": {"provider_options": []}, **more,
        },
    }  # fmt: skip
    search = {
        "do_sample": False, "max_length": decoder.context, "min_length": 0, "num_beams": 1,
        "past_present_share_buffer": False, "top_k": 1, "top_p": 1.0, "temperature": 1.0, "repetition_penalty": 1.0,
    }  # fmt: skip
    return json.dumps({"model": model, "search": search}, indent=2).encode() + b"\n"
