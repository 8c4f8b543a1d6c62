"""The conformance kit on one checkpoint of each way of storing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from squish_testing import Fingerprint, RefinementSuite

pytestmark = pytest.mark.alone

DATA = Path(__file__).with_name("data")
EXPECTED = json.loads((DATA / "expected.json").read_text())


class Checkpoints(RefinementSuite):
    """Folders. Writing asks for a method, and is in test_hf_writing."""

    container = "hf"
    mutations = 40

    @property
    def not_rewritten(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(self.samples())

    def values(self) -> Mapping[str, Mapping[str, Fingerprint]]:
        """What the package that defines the method decodes."""
        return {
            sample: {name: Fingerprint(tuple(shape), digest) for name, (shape, digest) in EXPECTED[sample].items()}
            for sample in self.samples()
        }

    def damaged(self) -> Mapping[str, Path]:
        names = ("h02_no_scale_ct", "h02_no_scale_gptq", "h06_scale_shape_fp8", "h07_shard_lacks_scales")
        return {name: DATA / "malformed" / name for name in names}

    def undeclared(self) -> Mapping[str, bytes]:
        return {"the tensors without their config": (DATA / "gptq-v1_w4_g128_sym" / "model.safetensors").read_bytes()}


class TestHuggingFace(Checkpoints):
    """What lies in the tensors' own headers: nothing is read of their data."""

    def samples(self) -> dict[str, Path]:
        names = (
            "compressed-tensors-fp8_block128", "compressed-tensors-nvfp4a16", "fp8-block-b64x32",
            "mxfp4-gptoss-experts2",
        )  # fmt: skip
        return {name: DATA / name for name in names}


class TestTransposed(Checkpoints):
    """Stored [in, out]: a row of the tensor lies all over the part."""

    def samples(self) -> dict[str, Path]:
        names = ("awq-gemm_w4_g128", "gptq-planar_w6_g64")
        return {name: DATA / name for name in names}

    @pytest.mark.skip(reason="a row is a column of what is stored")
    def test_a_row_reads_only_its_bytes(self, sample: str) -> None:
        """Not for this layout."""


class TestSymmetric(TestTransposed):
    """A word of the first zero points is read at open: it shows whether they are stored as version 1 says."""

    read_ahead = 4

    def samples(self) -> dict[str, Path]:
        return {name: DATA / name for name in ("gptq-v1_w4_g128_sym_actorder",)}


class TestDescribed(Checkpoints):
    """Shapes that are stored as tensors are read at open, a few bytes a layer."""

    read_ahead = 256
    lost = tuple(f"model.layers.0.self_attn.{name}_proj.weight_shape" for name in "qkvo")  # became the shapes

    def samples(self) -> dict[str, Path]:
        names = (
            "bitsandbytes-nf4_double", "compressed-tensors-legacy_sparse24_bitmask",
            "compressed-tensors-legacy_w4_g32_actorder", "compressed-tensors-w3_g64_asym_dense",
        )  # fmt: skip
        return {name: DATA / name for name in names}
