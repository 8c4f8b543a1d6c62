"""GGML's block sizes: what formats store agrees with the table of the core."""

from __future__ import annotations

import pytest
from squish_gguf.types import BLOCK_CODES, SCALED_NVFP4, TYPES
from squish_uqff.tables import GGML_BLOCKS

import squish_core as squish
from squish_core.api import BLOCK_TYPES, CodecSpec, TensorSpec


@pytest.mark.parametrize("name", BLOCK_TYPES)
def test_the_codec_declares_parts_of_the_size_in_the_table(name: str) -> None:
    block = BLOCK_TYPES[name]
    codec = squish.registry().codec(CodecSpec(f"ggml.{name}"))
    spec = TensorSpec(name="w", shape=(3, 2 * block.elements), dtype="f32")
    assert codec.from_params({}).parts(spec) == {"data": ("u8", (3, 2 * block.nbytes))}


def test_gguf_reads_every_block_type_by_its_code() -> None:
    codes = {f"ggml.{name}": block.code for name, block in BLOCK_TYPES.items()}
    assert {**codes, SCALED_NVFP4: codes["ggml.nvfp4"]} == BLOCK_CODES
    assert all(TYPES[block.code][1:3] == block[2:] for block in BLOCK_TYPES.values())


def test_uqff_stores_types_under_the_codes_of_ggml() -> None:
    assert all(BLOCK_TYPES[name].code == code for code, name in GGML_BLOCKS.items())
