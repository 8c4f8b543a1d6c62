"""Families of text models: their settings, and what surrounds the tensors in a target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from squish_convert.api import Carried, Family, Model

from squish_core.api import Options

from .adapters import Adapter
from .layouts import carry_gguf, carry_to_folder, carry_to_gguf
from .settings import TextSettings


class TextModel(TextSettings):
    """A family of text models; subclasses state what `TextSettings` lists."""

    def adapter(self) -> Family | None:
        return Adapter(self)

    def carry(self, model: Model, settings: Mapping[str, Any], layout: str, options: Options) -> Carried:
        if layout != "gguf":
            return carry_to_folder(self, model, settings, layout, options)
        if model.layout == "gguf":
            return carry_gguf(self, model, settings)
        return carry_to_gguf(self, model, settings, layout, options)
