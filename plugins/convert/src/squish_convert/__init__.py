"""Conversion between formats: plans, encodings, names of model families, jobs, and the comparison of files."""

from __future__ import annotations

from squish_core.api import CodecInfo, hookimpl


@hookimpl
def squish_codecs() -> list[CodecInfo]:
    """Return the codecs that permute, multiply, cut, stack, interleave, transpose and add to another one's rows."""
    return [
        CodecInfo(
            id="deinterleave",
            title="rows that alternate with those of others in a tensor of another codec",
            factory="squish_convert.mapping.codecs.interleave:Deinterleave",
            lossless=True,
        ),
        CodecInfo(
            id="interleave",
            title="tensors of another codec whose rows alternate",
            factory="squish_convert.mapping.codecs.interleave:Interleave",
            lossless=True,
        ),
        CodecInfo(
            id="heads",
            title="another codec with the rows or columns of heads permuted",
            factory="squish_convert.mapping.codecs.heads:Heads",
            lossless=True,
        ),
        CodecInfo(
            id="lora",
            title="another codec with products of small matrices added to its values",
            factory="squish_convert.mapping.codecs.lora:Lora",
            lossless=True,
        ),
        CodecInfo(
            id="scale",
            title="another codec with its rows multiplied by numbers",
            factory="squish_convert.mapping.codecs.scale:Scale",
            lossless=True,
        ),
        CodecInfo(
            id="slice",
            title="rows of a tensor of another codec, or one tensor of a stack",
            factory="squish_convert.mapping.codecs.slice:Slice",
            lossless=True,
        ),
        CodecInfo(
            id="stack",
            title="tensors of another codec, stacked along a new first axis",
            factory="squish_convert.mapping.codecs.stack:Stack",
            lossless=True,
        ),
        CodecInfo(
            id="transpose",
            title="another codec with the last two axes swapped",
            factory="squish_convert.mapping.codecs.transpose:Transpose",
            lossless=True,
        ),
    ]
