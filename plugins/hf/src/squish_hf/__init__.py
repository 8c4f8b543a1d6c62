"""Declares quantized Hugging Face checkpoints, a refinement of safetensors, and their codecs."""

from __future__ import annotations

from squish_core.api import CodecInfo, ContainerInfo, hookimpl


@hookimpl
def squish_containers() -> list[ContainerInfo]:
    """Return the containers of this plugin."""
    return [
        ContainerInfo(
            id="hf",
            title="quantized Hugging Face checkpoints (GPTQ, AWQ, compressed-tensors, FP8, NVFP4, ...)",
            factory="squish_hf.container:HuggingFace",
            refines="safetensors",
            can_write=True,
            options={
                "method": "gptq, gptq_v2, awq, compressed-tensors, fp8, fbgemm_fp8, modelopt or mxfp4 (gpt-oss)",
                "max_shard_size": "maximum tensor bytes per shard (5GB)",
            },
            reading={
                "method": "what nothing in the checkpoint declares: fp8, gptq, awq, compressed-tensors, comfyui, ...",
                "bits": "bits of integer codes (4)",
                "group_size": "columns of a group of integer codes (128; -1: a row)",
                "quant_algo": "modelopt: FP8, NVFP4, ...",
            },
            features={
                "method": ("gptq", "gptq_v2", "awq", "compressed-tensors", "fp8", "fbgemm_fp8", "modelopt", "mxfp4"),
                "bits": ("2", "3", "4", "5", "6", "7", "8"),
            },
            aliases={
                "fp8": "float8",
                "fp8_row": "float8:block=1x0",
                "fp8_block": "float8:block=128x128",
                "nvfp4": "mx:block_size=16,scale_dtype=f8_e4m3",
            },
            codecs=(
                "dense",
                "affine",
                "mx",
                "float8",
                "bitmask",
                "palette",
                "hf.act_order",
                "hf.awq_gemv",
                "hf.awq_fast",
                "hf.bnb8",
                "hf.column_scales",
                "hf.convrot",
                "hqq",
            ),
        )
    ]


@hookimpl
def squish_codecs() -> list[CodecInfo]:
    """Return the codecs of this plugin."""
    return [
        CodecInfo(id="hf.act_order", title="groups in any order", factory="squish_hf.methods.act_order:ActOrder"),
        CodecInfo(id="hf.awq_gemv", title="AWQ for GEMV", factory="squish_hf.methods.awq_gemv:AwqGemv"),
        CodecInfo(id="hf.awq_fast", title="AWQ for GEMV, fast", factory="squish_hf.methods.awq_gemv:AwqFast"),
        CodecInfo(
            id="hf.column_scales",
            title="scales of inputs (AWQ, SmoothQuant)",
            factory="squish_hf.methods.column_scales:ColumnScales",
            lossless=True,
        ),
        CodecInfo(id="hf.convrot", title="ConvRot (rotated columns)", factory="squish_hf.methods.convrot:ConvRot"),
        CodecInfo(id="hf.bnb8", title="bitsandbytes int8", factory="squish_hf.methods.bitsandbytes:EightBit"),
    ]
