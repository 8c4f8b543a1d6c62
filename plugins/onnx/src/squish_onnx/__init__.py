"""Declares the ONNX container; imports no implementation."""

from __future__ import annotations

from squish_core.api import CodecInfo, ContainerInfo, Signature, hookimpl

IR_VERSION = b"\x08"
"""Key of the first field of a model, its IR version."""
MODEL = "model.onnx"
"""Name of the model file in a folder."""
CONFIG, GENAI = "config.json", "genai_config.json"
"""Configuration files of transformers and of onnxruntime-genai."""
ASSETS = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "vocab.json", "merges.txt", "tokenizer.model", "chat_template.jinja",
)  # fmt: skip
"""Files beside a model that onnxruntime-genai and transformers read."""


@hookimpl
def squish_containers() -> list[ContainerInfo]:
    """Return the containers of this plugin."""
    return [
        ContainerInfo(
            id="onnx",
            title="ONNX",
            factory="squish_onnx.container:Onnx",
            suffixes=(".onnx",),
            signatures=(Signature(IR_VERSION), Signature(MODEL.encode(), where="member")),
            sniffs=True,
            can_write=True,
            options={
                "graph": "path of a model that provides the graph (an ONNX source by default); the tensors replace its "
                "initializers",
                "names": "path of a JSON object that maps tensors to initializers of graph=",
            },
            codecs=("dense", "affine", "onnx.blocks"),
        )
    ]


@hookimpl
def squish_codecs() -> list[CodecInfo]:
    """Return the codecs of this plugin."""
    return [CodecInfo(id="onnx.blocks", title="ONNX integers and floats", factory="squish_onnx.blocks:Blocks")]
