"""Folders of Hugging Face's kind, as Transformers, mlx-lm and mistral.rs open them."""
