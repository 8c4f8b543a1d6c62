"""The conformance kit on MLX checkpoints."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from squish_testing import Fingerprint, RefinementSuite

pytestmark = pytest.mark.alone

DATA = Path(__file__).with_name("data")
EXPECTED = json.loads((DATA / "expected.json").read_text())


class TestMlx(RefinementSuite):
    """Folders; damage of headers is safetensors' own matter."""

    container = "mlx"
    mutations = 150

    def samples(self) -> dict[str, Path]:
        names = ("quantization_only_key", "nvfp4")
        return {name: DATA / f"mlx-{name}" for name in names}

    def values(self) -> Mapping[str, Mapping[str, Fingerprint]]:
        """What mlx itself decodes."""
        return {
            sample: {name: Fingerprint(tuple(shape), digest) for name, (shape, digest) in EXPECTED[folder.name].items()}
            for sample, folder in self.samples().items()
        }

    def damaged(self) -> Mapping[str, Path]:
        return {name: DATA / "malformed" / name for name in ("h01_bits_width_mlx", "h04_group_24_mlx")}

    def undeclared(self) -> Mapping[str, bytes]:
        return {"the tensors without their config": (DATA / "mlx-nvfp4" / "model.safetensors").read_bytes()}

    @pytest.mark.skip(reason="writing renames shards and states modes in full")
    def test_converting_to_itself_keeps_everything(self, sample: str, tmp_path: Path) -> None:
        """See test_mlx_writing."""
