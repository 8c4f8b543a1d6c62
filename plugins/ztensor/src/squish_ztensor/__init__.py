"""Declares the zTensor container; imports no implementation."""

from __future__ import annotations

from squish_core.api import CodecInfo, ContainerInfo, Signature, hookimpl

from .names import BLOCKS, DTYPES, FORMATS


@hookimpl
def squish_containers() -> list[ContainerInfo]:
    """Return the containers of this plugin."""
    return [
        ContainerInfo(
            id="ztensor",
            title="zTensor 0.1 to 2",
            factory="squish_ztensor.container:Ztensor",
            suffixes=(".zt",),
            signatures=(
                Signature(b"ZTEN1000"),
                Signature(b"ZTEN1000", where="tail", offset=-8),
                Signature(b"ZTEN0001"),
                Signature(b"\x89ZT2\r\n\x1a\n"),
                Signature(b"\x89ZT2\r\n\x1a\n", where="tail", offset=-8),
            ),
            can_write=True,
            features={
                "dtype": (*DTYPES, *(f"gguf.{name}" for name in BLOCKS)),
                "format": FORMATS,
                "encoding": ("raw", "zstd", "zt.zstd-seekable"),
            },
            options={
                "wire": "version to write: 1.1 (default) or 2",
                "flavor": "1.1: literal (default) or compatible (with ztensor 1.x); 2: canonical (default) or aligned",
                "encoding": "raw (default) or zstd",
                "level": "zstd level, 3 by default",
                "digest": "none, sha256, crc32c (1.1) or xxh3 (2, default there)",
                "alignment": "alignment of the tensors, a power of two (1.1: 64; 2: 65536, or 4096 if aligned)",
            },
            codecs=(
                "dense",
                "zstd",
                "zt.zstd-seekable",
                "affine",
                "zt.sparse_csr",
                "zt.sparse_coo",
                "zt.mx",
                *(f"ggml.{name}" for name in BLOCKS),
            ),
        )
    ]


@hookimpl
def squish_codecs() -> list[CodecInfo]:
    """Return the codecs of this plugin."""
    return [
        CodecInfo(
            id="zt.zstd-seekable",
            title="zstd frames with a seek table",
            kind="bytes",
            lossless=True,
            needs=("zstd",),
            factory="squish_ztensor.codecs.seekable:ZstdSeekable",
        ),
        CodecInfo(
            id="zt.sparse_csr",
            title="sparse rows (CSR)",
            lossless=True,
            factory="squish_ztensor.codecs.sparse:Csr",
            aliases={"sparse_csr": "zt.sparse_csr"},
        ),
        CodecInfo(
            id="zt.sparse_coo",
            title="sparse coordinates",
            lossless=True,
            factory="squish_ztensor.codecs.sparse:Coo",
            aliases={"sparse_coo": "zt.sparse_coo"},
        ),
        CodecInfo(
            id="zt.mx", title="microscaling with one power of two per block", factory="squish_ztensor.codecs.mx:AxisMx"
        ),
    ]
