"""Tokenizers between the files of a Hugging Face folder and GGUF's metadata."""

from .base import Kind, Tokenizer
from .files import huggingface_files
from .gguf import gguf_keys, read_gguf
from .huggingface import FILES, read_huggingface

__all__ = ["FILES", "Kind", "Tokenizer", "gguf_keys", "huggingface_files", "read_gguf", "read_huggingface"]
