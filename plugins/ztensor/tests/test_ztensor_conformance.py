"""The conformance kit on zTensor files."""

from __future__ import annotations

from pathlib import Path

import cbor2
import numpy as np

from squish_core.formats.metadata import dump_meta
from squish_core.model import Typed
from squish_core.testing import ContainerSuite

DATA = Path(__file__).with_name("data")


def everything() -> bytes:
    """A file put together by hand: GGML blocks, tied weights, an empty tensor, attributes, digests, `squish.meta`."""
    meta = {"general.alignment": Typed("u32", 32), "scores": Typed("array:f32", np.ones(3, np.float32)), "name": "x"}
    blobs = {
        "blocks": ("u8", [2, 64], bytes(range(72)), "gguf.q4_0"),
        "weight": ("f32", [4], np.arange(4, dtype="<f4").tobytes(), "dense"),
        "empty": ("i64", [0, 3], b"", "dense"),
        "flag": ("bool", [], b"\1", "dense"),
        "squish.meta": ("u8", None, dump_meta(meta, {"tokenizer.json": b"{}" * 40}), "dense"),
    }
    body, objects = b"ZTEN1000", {}
    for name, (dtype, shape, blob, layout) in blobs.items():
        body += bytes(-len(body) % 64)
        data = {"dtype": dtype, "offset": len(body), "length": len(blob)}
        if name == "weight":
            data["digest"] = "crc32c:0x515DC834"
        objects[name] = {
            "shape": [len(blob)] if shape is None else shape, "format": layout,
            **({"attributes": {"bits": 4}} if name == "blocks" else {}), "components": {"data": data},
        }  # fmt: skip
        body += blob
    objects["weight.tied"] = objects["weight"]
    manifest = cbor2.dumps({"version": "1.1.0", "objects": objects})
    return body + manifest + len(manifest).to_bytes(8, "little") + b"ZTEN1000"


class TestZtensor(ContainerSuite):
    """Files of the references of every wire, one with the dtypes that only the 1.1 text has, and one by hand."""

    container = "ztensor"
    header = 1 << 20  # the manifest lies at the end
    not_rewritten = ("v12_logical_types",)  # 1.1 has no f8_e4m3fnuz and f8_e5m2fnuz

    def samples(self) -> dict[str, Path | bytes]:
        names = (
            "v01_dense_all_dtypes", "v11_dense_all_dtypes", "h11_f8_complex_dtype",
            "v11_sparse_csr", "v12_digest_sha256", "v12_logical_types", "v12_quantized_group",
            "v2_zstd_seekable",
        )  # fmt: skip
        return {**{name: DATA / f"{name}.zt" for name in names}, "everything": everything()}
