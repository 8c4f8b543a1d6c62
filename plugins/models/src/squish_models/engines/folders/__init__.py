"""Hugging Face folders, as Transformers and mlx-lm open them."""
