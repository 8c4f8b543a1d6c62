"""Tokenizers of Hugging Face and of GGUF, each made from the other."""
