"""Tokenizers between the files of a Hugging Face folder and GGUF's metadata."""

from .base import Kind, SpecialTokens, Tokenizer
from .files import generation_config, huggingface_files
from .gguf import gguf_keys, read_gguf, read_special
from .huggingface import FILES, TEMPLATE_FOLDER, read_huggingface

__all__ = [
    "FILES", "TEMPLATE_FOLDER", "Kind", "SpecialTokens", "Tokenizer", "generation_config", "gguf_keys",
    "huggingface_files", "read_gguf", "read_huggingface", "read_special",
]  # fmt: skip
