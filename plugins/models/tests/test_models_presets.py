"""Presets give the small model of each family the types of llama.cpp's own quantizer (data/make_family_presets.py)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from every_family import FAMILIES
from family_presets import REQUESTS, preset_model
from preset_models import in_runs, matrices, title
from squish_gguf.quantize import LlamaQuantize

from squish_core.api import CodecSpec, ModelFacts, TensorSpec
from squish_core.formats.metadata import untyped

DATA = Path(__file__).parent / "data" / "family_presets.json"
EXPECTED: dict[str, dict[str, str | None] | None] = json.loads(DATA.read_text())


def codec_of(name: str) -> CodecSpec:
    return CodecSpec("dense", {"dtype": name}) if name in ("f32", "f16", "bf16") else CodecSpec(f"ggml.{name}")


def type_of(chosen: CodecSpec | str) -> str:
    if isinstance(chosen, str):
        return "f16"
    return str(chosen.params["dtype"]) if chosen.id == "dense" else chosen.id.removeprefix("ggml.")


def test_every_family_is_compared() -> None:
    assert EXPECTED.keys() == {*FAMILIES}, "run data/make_family_presets.py for the families that are missing"


@pytest.mark.parametrize("family", FAMILIES)
def test_presets_match_llama_cpp(family: str) -> None:
    expected = EXPECTED.get(family)
    if expected is None:
        pytest.skip("llama.cpp v0.5.0 does not quantize it")
    shapes, metadata = preset_model(family)
    specs = [TensorSpec(name=name, shape=shape, dtype="f16") for name, shape in shapes.items()]
    settings = {key: untyped(value) for key, value in metadata.items()}
    types = {}
    for request in REQUESTS:
        preset, params, statistics = request
        allocator = LlamaQuantize()
        allocator.id = "llama-quantize"
        facts = ModelFacts(tuple(shapes), settings, frozenset(shapes) if statistics else None)
        chosen = allocator.choose(specs, {"type": preset, **params}, lambda spec: iter(()), codec_of, facts)
        types[title(request)] = in_runs([type_of(chosen[name]) for name in matrices(shapes)])
    assert types == expected
