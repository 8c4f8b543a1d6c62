"""Tokenizers between the files of a Hugging Face folder and GGUF's metadata."""

from .base import Kind, SpecialTokens, Tokenizer, Vocabulary
from .content import FILES, Content, describes_tokenizer, parse_files
from .files import EncodedFiles, generation_config, huggingface_content, huggingface_files
from .gguf import gguf_keys, ignored_ids, is_mapped, read_gguf, read_special, stored_keys, stored_tokens
from .huggingface import CONFIG_KEYS, check_huggingface, read_content, read_huggingface

__all__ = [
    "CONFIG_KEYS", "FILES", "Content", "EncodedFiles", "Kind", "SpecialTokens", "Tokenizer", "Vocabulary",
    "check_huggingface", "describes_tokenizer", "generation_config", "gguf_keys", "huggingface_content",
    "huggingface_files", "ignored_ids", "is_mapped", "parse_files", "read_content", "read_gguf", "read_huggingface",
    "read_special", "stored_keys", "stored_tokens",
]  # fmt: skip
