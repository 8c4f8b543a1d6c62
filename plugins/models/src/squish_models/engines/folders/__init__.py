"""Folders of Hugging Face's kind, as Transformers and mlx-lm open them."""
