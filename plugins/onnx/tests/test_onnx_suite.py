"""The conformance kit on files that onnx wrote (tests/data/README.md)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from squish_testing import ContainerSuite

from squish_core.formats.protobuf import message, number

pytestmark = pytest.mark.alone

DATA = Path(__file__).parent / "data"
LARGE = np.arange(4096, dtype=np.float32).reshape(64, 64)


class TestOnnx(ContainerSuite):
    container = "onnx"
    # The fields of a message are found one by one; other sources than mappings are read in windows of 4 KiB.
    read_ahead = 4096
    mutations = 500
    not_rewritten = ("types", "nested", "codes")  # bytes in memory, without a config.json: writing needs graph=

    def samples(self):
        inline = {name: (DATA / f"{name}.onnx").read_bytes() for name in ("types", "nested", "codes")}
        on_disk = {f"{name} on disk": DATA / f"{name}.onnx" for name in ("types", "nested", "codes")}
        return {**inline, **on_disk, "external": DATA / "external.onnx"}

    def values(self):
        nested = {
            "w": np.zeros(2, np.float32), "choice/then_branch/w": np.ones(2, np.float32),
            "choice/else_branch/w": np.full(2, 2, np.float32),
        }  # fmt: skip
        return {"external": {"large": LARGE, "negative": -LARGE}, "nested": nested, "nested on disk": nested}

    def damaged(self):
        whole = (DATA / "types.onnx").read_bytes()
        return {
            "cut in the values": whole[:-400],
            "no graph": number(1, 10),
            "values that do not fill the shape": number(1, 10)
            + message(7, message(5, number(1, 9), number(2, 1), message(9, b"1234"))),
        }
