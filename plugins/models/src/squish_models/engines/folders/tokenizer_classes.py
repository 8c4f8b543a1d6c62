"""The class of Transformers that reads a folder's tokenizer; mlx-lm uses it as well."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FILE = "TokenizersBackend"
"""The class that loads tokenizer.json unchanged."""
REGISTERED: Mapping[str, str] = {
    **dict.fromkeys(("mistral", "mixtral", "granite", "phi3", "olmo2", "glm4"), FILE),
    **dict.fromkeys(("qwen2", "qwen3", "qwen3_moe", "qwen2_vl", "qwen2_5_vl"), "Qwen2Tokenizer"),
    **dict.fromkeys(("gemma2", "gemma3_text", "gemma3"), "GemmaTokenizer"),
    **dict.fromkeys(("gpt2", "starcoder2"), "GPT2Tokenizer"),
}
"""`model_type` -> class that Transformers registers for it."""
REBUILT = ("LlamaTokenizer", "Qwen2Tokenizer", "GemmaTokenizer", "GPT2Tokenizer")
"""Classes that rebuild the tokenizer from the vocabulary, merges and added tokens of tokenizer.json."""
MISDECLARED = ("phi3", "qwen2")
"""Model types for which Transformers ignores the class in tokenizer_config.json."""


def tokenizer_class(model_type: str, declared: Any, is_byte_level: bool) -> str:
    """Return the class that reads a tokenizer: one of REBUILT, or FILE for all others."""
    registered = REGISTERED.get(model_type)
    name = declared.removesuffix("Fast") if isinstance(declared, str) else ""
    if not name:
        name = registered or FILE if declared is None else FILE
    elif name == "LlamaTokenizer" and is_byte_level and model_type not in MISDECLARED:
        name = FILE
    elif registered is not None and registered != name and (registered == FILE or model_type in MISDECLARED):
        name = registered
    return name if name in REBUILT else FILE
