"""The conformance kit on the zstd byte codec."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from squish_testing import ByteCodecSuite

pytestmark = pytest.mark.alone


class TestZstd(ByteCodecSuite):
    codec = "zstd"

    def cases(self) -> dict[str, Any]:
        noise = np.random.default_rng(0).bytes(3000)
        return {
            "text": (b"weights " * 500, {}),
            "noise": (noise, {"level": 1}),
            "best level": (noise[:100] * 40, {"level": 19}),
            "one byte": (b"x", {}),
            "empty": (b"", {}),
        }
