"""The conformance kit on zTensor files."""

from __future__ import annotations

import struct
from pathlib import Path

import cbor2
import numpy as np
import pytest
import zstandard
from squish_testing import ByteCodecSuite, ContainerSuite

from squish_core.formats.metadata import dump_meta
from squish_core.model import Typed

pytestmark = pytest.mark.alone

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

    def written_with(self) -> dict[str, dict[str, str]]:
        return {wire: {"wire": wire} for wire in ("1.1", "2")}

    def samples(self) -> dict[str, Path | bytes]:
        names = (
            "v01_dense_all_dtypes", "v11_dense_all_dtypes", "h11_f8_complex_dtype",
            "v11_sparse_csr", "v12_digest_sha256", "v12_logical_types", "v12_quantized_group",
            "v2_zstd_seekable",
        )  # fmt: skip
        return {**{name: DATA / f"{name}.zt" for name in names}, "everything": everything()}

    def values(self) -> dict[str, dict[str, np.ndarray]]:
        raw = np.arange(72, dtype=np.uint8).reshape(2, 2, 18)  # Q4_0: an f16 scale, 32 codes of 4 bits less 8
        codes = np.concatenate([raw[..., 2:] & 15, raw[..., 2:] >> 4], axis=-1).astype(np.float32) - 8
        blocks = (codes * raw[..., :2].copy().view("<f2").astype(np.float32)).reshape(2, 64)
        weight = np.arange(4, dtype=np.float32)
        empty, flag = np.zeros((0, 3), np.int64), np.array(True)
        blocks = {"blocks": blocks} if "ggml.q4_0" in self.registry.codecs else {}  # squish-ggml decodes them
        return {
            "everything": {
                **blocks,
                "weight": weight,
                "weight.tied": weight,
                "empty": empty,
                "flag": flag,
            }
        }

    def damaged(self) -> dict[str, bytes]:
        whole, weight = everything(), np.arange(4, dtype="<f4").tobytes()
        return {
            "a flipped value": whole.replace(weight, weight[::-1]),
            "cut at the end": whole[:-8],
            "another magic": b"ZTEN9999" + whole[8:],
            "a manifest of another length": whole[:-16] + (1 << 40).to_bytes(8, "little") + whole[-8:],
        }


class TestZstdSeekable(ByteCodecSuite):
    codec = "zt.zstd-seekable"

    def cases(self) -> dict[str, tuple[bytes, dict[str, int]]]:
        noise = np.random.default_rng(0).bytes(3000)
        cases = {"text": b"weights " * 500, "noise": noise, "three frames": noise[:250], "empty": b""}
        return {name: (content, {}) for name, content in cases.items()}

    def stored(self, case: str) -> bytes:
        """Squish writes frames of 4 MiB; those of 100 bytes are put together by hand."""
        if case != "three frames":
            return super().stored(case)
        content, _ = self.cases()[case]
        pieces = [content[at : at + 100] for at in range(0, len(content), 100)]
        frames = [zstandard.ZstdCompressor(write_checksum=True).compress(piece) for piece in pieces]
        table = b"".join(struct.pack("<II", len(frame), len(piece)) for frame, piece in zip(frames, pieces))
        head = struct.pack("<II", 0x184D2A5E, len(table) + 9)
        return b"".join(frames) + head + table + struct.pack("<IBI", len(frames), 0, 0x8F92EAB1)
