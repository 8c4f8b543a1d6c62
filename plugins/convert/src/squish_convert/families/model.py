"""A family's view of a model: metadata, files, and names and shapes of its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from squish_core.errors import FormatError
from squish_core.formats.json import load_json
from squish_core.formats.metadata import untyped
from squish_core.guard import guarded
from squish_core.limits import Limits, default
from squish_core.model import TensorSpec

CONFIG_FILE = "config.json"
MAX_JSON_ENTRY = 4 << 20


@frozen(kw_only=True)
class Model:
    """A model before mapping. `layout` is the layout of its names, `vectors` holds values of vectors as f32."""

    name: str
    layout: str
    meta: Mapping[str, Any]
    assets: Mapping[str, bytes]
    tensors: Mapping[str, TensorSpec]
    vectors: Mapping[str, Any]
    limits: Limits | None = None

    def value(self, key: str, default: Any = None) -> Any:
        """A metadata value without its stored type."""
        return untyped(self.meta[key]) if key in self.meta else default

    def config(self, name: str = CONFIG_FILE) -> dict[str, Any]:
        """One of the model's JSON files, empty if missing; FormatError if it cannot be read."""
        if name not in self.assets:
            return {}
        with guarded(FormatError, "reading a JSON file", part=name):
            return load_json(self.assets[name], "file", self.limits or default(), piece=MAX_JSON_ENTRY, constants=True)
