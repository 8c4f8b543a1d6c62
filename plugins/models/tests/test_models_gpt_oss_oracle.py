"""MXFP4 experts of gpt-oss in the engines, from one set of codes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from oracles import engines, families

import squish_core as squish

pytestmark = [pytest.mark.oracle, pytest.mark.peers]


def test_codes_and_their_floats_give_equal_logits(tmp_path: Path) -> None:
    squish.convert(families.make("gpt_oss", tmp_path / "m"), tmp_path / "m.gguf", encode={"*_exps.weight": "mxfp4"})
    squish.convert(tmp_path / "m.gguf", tmp_path / "codes", "hf:method=mxfp4")
    squish.convert(tmp_path / "m.gguf", tmp_path / "floats", "hf", "f32")
    expected = engines.ask("transformers", tmp_path / "floats", tokens=8)
    codes = engines.ask("transformers", tmp_path / "codes", expected.ids, tokens=8)
    assert engines.difference(expected, codes, 1e-4) == ""
    blocks = engines.ask("llama.cpp", tmp_path / "m.gguf", expected.ids, tokens=8)
    assert engines.difference(expected, blocks, 0.1, exact=False) == ""  # it rounds activations to 8 bits
    assert np.isfinite(blocks.logprobs).all()
