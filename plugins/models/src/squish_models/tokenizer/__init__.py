"""Tokenizers between the files of a Hugging Face folder and GGUF's metadata."""

from .content import FILES, VOCABULARY_FILES, Content, describes_tokenizer, parse_files
from .files import EncodedFiles, generation_config, huggingface_content, huggingface_files
from .gguf import (
    HUGGINGFACE,
    TEMPLATE,
    TEMPLATES,
    gguf_keys,
    ignored_ids,
    is_mapped,
    read_gguf,
    read_special,
    splitting_notes,
    stored_keys,
    stored_tokens,
)
from .huggingface import CONFIG_KEYS, check_huggingface, read_content, read_huggingface
from .vocabulary import Kind, Normalizer, SpecialTokens, Tokenizer, Vocabulary

__all__ = [
    "CONFIG_KEYS",
    "FILES",
    "HUGGINGFACE",
    "TEMPLATE",
    "TEMPLATES",
    "VOCABULARY_FILES",
    "Content",
    "EncodedFiles",
    "Kind",
    "Normalizer",
    "SpecialTokens",
    "Tokenizer",
    "Vocabulary",
    "check_huggingface",
    "describes_tokenizer",
    "generation_config",
    "gguf_keys",
    "huggingface_content",
    "huggingface_files",
    "ignored_ids",
    "is_mapped",
    "parse_files",
    "read_content",
    "read_gguf",
    "read_huggingface",
    "read_special",
    "splitting_notes",
    "stored_keys",
    "stored_tokens",
]
