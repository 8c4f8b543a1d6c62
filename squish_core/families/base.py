"""The interface of a family of models."""

from __future__ import annotations


class Family:
    """A family of models: what each engine calls their tensors and settings."""

    id: str = ""
