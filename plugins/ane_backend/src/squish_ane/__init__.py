"""Declares the Neural Engine backend, Core ML packages, and the whole-model encoding in SQUIZD's appendix."""

from __future__ import annotations

from typing import Any

from squish_core.api import BackendInfo, CodecInfo, ContainerInfo, Signature, hookimpl

COMPRESSION: dict[str, tuple[str, dict[str, Any]]] = {
    "constexpr_affine_dequantize": (
        "affine",
        {"bits": 8, "group_size": 256, "axis": "flat", "signed": True, "scale_dtype": "f16", "offset": "zero_point",
         "offset_dtype": "i8"},
    ),
    "constexpr_blockwise_shift_scale": (
        "affine", {"bits": 4, "group_size": 32, "axis": "flat", "signed": True, "scale_dtype": "f16"}
    ),
    "constexpr_lut_to_dense": ("palette", {"bits": 4, "axis": "flat", "codebook_dtype": "f16"}),
    "constexpr_sparse_to_dense": ("bitmask", {"dtype": "f16", "kept": "run"}),
    "constexpr_lut_to_sparse": ("bitmask", {"dtype": "f16", "kept": "run", "bits": 4}),
    "constexpr_sparse_blockwise_shift_scale": ("bitmask", {"dtype": "i8", "kept": "run", "scale": "f16"}),
}  # fmt: skip
"""Core ML operation -> the codec and parameters of coremltools' default output."""


@hookimpl
def squish_backends() -> list[BackendInfo]:
    """The backend of this plugin."""
    title = "Apple Neural Engine, through Core ML"
    return [
        BackendInfo(
            id="ane", title=title, factory="squish_ane.ane.backend:Ane", preference=20,
            unverified="not yet tried on a Mac",
        )
    ]  # fmt: skip


@hookimpl
def squish_containers() -> list[ContainerInfo]:
    """Core ML packages."""
    return [
        ContainerInfo(
            id="mlpackage",
            title="Core ML package",
            factory="squish_ane.coreml.container:Mlpackage",
            suffixes=(".mlpackage",),
            signatures=(Signature(b"Manifest.json", where="member"),),
            can_write=True,
            options={"target": "iOS18 (default) or iOS16"},
            features={"compression": tuple(COMPRESSION)},
            aliases={
                "int8": "affine:bits=8,scale_dtype=f16",
                "int4": "affine:bits=4,group_size=32,scale_dtype=f16",
                "f16": "dense:dtype=f16",
                "sparse": "bitmask:dtype=f16,sparsity=0.5",
                "sparse_lut4": "bitmask:dtype=f16,bits=4,sparsity=0.5",
                "sparse_int8": "bitmask:dtype=i8,scale=f16,sparsity=0.5",
                **{f"lut{bits}": f"palette:bits={bits},axis=flat,codebook_dtype=f16" for bits in (1, 2, 3, 4, 6, 8)},
            },
            codecs=("affine", "bitmask", "boxes", "palette"),
        )
    ]


@hookimpl
def squish_codecs() -> list[CodecInfo]:
    """A Core ML package inside another file, which does not decode to tensors."""
    return [
        CodecInfo(
            id="ane.mlpackage",
            title="a whole Core ML package",
            factory="squish_ane.coreml.archive:Archive",
            kind="whole",
        )
    ]
