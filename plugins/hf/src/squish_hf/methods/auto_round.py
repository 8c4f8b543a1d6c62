"""AutoRound: layers packed as GPTQ or AWQ stores them, with settings for single layers in `extra_config`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from attrs import evolve
from squish_safetensors.api import CheckpointFiles, StoredParts

from squish_core.api import ErrorCode, FormatError, TensorSpec
from squish_hf.declaration import Declared, Patterns, refuse
from squish_hf.methods.awq import build_gemm
from squish_hf.methods.gptq import build_layer, group_size
from squish_hf.methods.method import CACHE, Method

SUFFIXES = (".qweight", ".qzeros", ".scales", ".g_idx")
BITS = range(2, 9)
AWQ = "auto_round:auto_awq"
SUBTRACTED = {
    "auto_round": 0, "auto_round:gptqmodel": 0,
    "auto_round:auto_gptq": 1, "auto_round:gptq": 1, "auto_round:gptq:exllamav2": 1,
}  # fmt: skip
"""`packing_format` -> amount subtracted from the stored zero points, as in GPTQ's versions 2 and 1."""
UNQUANTIZED = 16
"""`bits` of a layer that is stored dense."""


def read(declared: Declared, files: CheckpointFiles) -> Method:
    """Read `packing_format` (`backend` before 0.5) and the settings of layers; only integer codes are supported."""
    packing = declared.get("packing_format", str) or declared.get("backend", str, "")
    if packing != AWQ and packing not in SUBTRACTED:
        legal = " or ".join((*SUBTRACTED, AWQ))
        error = refuse("packing_format", legal, packing, part=declared.where)
        error.hint = "Export it again with AutoRound's format auto_round, auto_gptq or auto_awq."
        raise error
    settings = Settings(declared)

    def make(layer: str, parts: StoredParts) -> TensorSpec:
        own = settings.of(layer)
        if own.get("data_type", str, "int") != "int":
            raise refuse("data_type", "int", own.fields["data_type"], part=own.where)
        if packing == AWQ:
            own.number("bits", (4,))
            return build_gemm(layer, parts, group_size(own))
        return build_layer(layer, parts, own, SUBTRACTED[packing], BITS, planar=False)

    return Method(dialect=packing, suffixes=SUFFIXES, beside=CACHE, make=make, idle=settings.idle)


class Settings:
    """The declared settings; `extra_config` has others for layers, by name or pattern."""

    def __init__(self, declared: Declared) -> None:
        self.declared = declared
        self.extra: Mapping[str, Any] = declared.get("extra_config", dict, {})
        self.patterns = Patterns(declared.where)

    def of(self, layer: str) -> Declared:
        """Return the settings of a layer; its own name before patterns."""
        matches = (key for key in self.extra if self.patterns.matches(key, layer))
        key = layer if layer in self.extra else next(matches, None)
        if key is None:
            return self.declared
        changes = self.extra[key]
        if not isinstance(changes, dict):
            raise refuse(f"extra_config {key[:80]!r}", "an object", changes, part=self.declared.where)
        own = evolve(self.declared, fields={**self.declared.fields, **changes})
        if own.get("bits", int, 0) >= UNQUANTIZED:
            raise FormatError(
                f"quantized, although {key[:80]!r} declares {own.fields['bits']} bits",
                part=own.where,
                code=ErrorCode.CONTRADICTION,
            )
        return own

    def idle(self, layers: Collection[str]) -> list[str]:
        """Return settings without a matching layer, except those of unquantized layers."""
        quantized = (
            key
            for key, changes in self.extra.items()
            if not (isinstance(changes, dict) and changes.get("bits") == UNQUANTIZED)
        )
        others = (key for key in quantized if key not in layers)
        return [key for key in others if not any(self.patterns.matches(key, layer) for layer in layers)]
