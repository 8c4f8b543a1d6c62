"""The codec of GGML blocks: one part `data`, each row a sequence of blocks."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from attrs import evolve
from squish_codecs.api import mx_params

from squish_core.api import (
    Codec,
    CodecError,
    CodeLayout,
    Codes,
    ErrorCode,
    Exactness,
    Params,
    Parts,
    Region,
    TensorSpec,
    dtypes,
    install_command,
)

from . import float4, libggml, nested, repack
from .blocks import BLOCKS, LONG_TAIL, Block

SCALED_NVFP4 = "ggml.scaled_nvfp4"
"""The codec of NVFP4 blocks with a global scale, which GGUF stores as a tensor of its own."""
_SCALED = {"ggml.nvfp4": SCALED_NVFP4}
_REPACKERS = {**dict.fromkeys(repack.FORMS, repack), **dict.fromkeys(float4.FORMS, float4)}
"""Block type -> the module that repacks codes of other formats into it."""
COMPILED = ("iq4_nl", "iq4_xs", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k")
"""Types that only squish-cpu encodes."""
BY_ROW = ("q4_0", "q4_1", "q5_0", "q5_1")
"""Types whose errors, weighed by activations, are relative to the mean square of a row, as in llama.cpp."""
_CODES = {**_REPACKERS, **dict.fromkeys(nested.FORMS, nested)}
"""Block type -> the module that extracts its codes for other formats."""
_AFFINE = {
    (4, False): "ggml.q4_0", (4, True): "ggml.q4_1", (5, False): "ggml.q5_0", (5, True): "ggml.q5_1",
    (8, False): "ggml.q8_0", (8, True): "ggml.q8_0",  # MLX stores codes from Q8_0 with a bias; they repack to Q8_0
}  # fmt: skip
"""(bits, has bias) of integer codes -> the block codec that may hold them."""


def blocks_for(layout: CodeLayout) -> str | None:
    """Return the block codec that may hold codes of this layout (the data decide), or None.

    Parameters
    ----------
    layout : CodeLayout
        The layout of the codes to repack.

    Returns
    -------
    str or None
        A codec id such as ``"ggml.q4_0"``.

    Examples
    --------
    >>> from squish_core.api import CodeLayout
    >>> blocks_for(CodeLayout(bits=4, group=(1, 32), signed=True, scale_dtype="f16"))
    'ggml.q4_0'
    """
    if layout.table is None:
        return _AFFINE.get((layout.bits, layout.offset_kind == "bias"))
    unscaled = evolve(layout, global_scale=None)
    params = mx_params(unscaled)
    name = next((name for name, form in float4.FORMS.items() if form == params), None)
    return name if layout == unscaled else _SCALED.get(name or "")


class GgmlBlocks(Codec):
    """Blocks along the last axis; `data` is u8 of shape (*leading, blocks per row * block bytes).

    Values are f32. Source: the block layouts of ggml (ggml-common.h), bit for bit as gguf-py decodes them.
    """

    encoder_only_params = ("search",)  # an option of other plugins' encoders

    @classmethod
    def block_type(cls) -> Block:
        """Return the block type named by the codec id."""
        name = cls.id.removeprefix("ggml.")
        return BLOCKS.get(name) or LONG_TAIL[name]

    @cached_property
    def block(self) -> Block:
        """The block type named by the codec id."""
        return self.block_type()

    def parts(self, spec: TensorSpec) -> dict[str, tuple[str, tuple[int, ...]]]:
        block = self.block
        if not spec.shape or spec.shape[-1] % block.elements:
            raise CodecError(
                f"rows do not divide into {block.name.upper()} blocks",
                tensor=spec.name,
                code="shape",
                expected=f"a last dimension that is a multiple of {block.elements}",
                found=f"shape {list(spec.shape)}",
                hint="Use a type with smaller blocks (q8_0, q4_0), or keep the tensor.",
            )
        return {"data": ("u8", (*spec.shape[:-1], spec.shape[-1] // block.elements * block.nbytes))}

    def grain(self, spec: TensorSpec) -> tuple[int | None, ...]:
        return (*(1,) * (len(spec.shape) - 1), self.block.elements)

    def encode_grain(self, spec: TensorSpec) -> tuple[int | None, ...]:
        """Whole rows where error weights depend on the row."""
        grain = self.grain(spec)
        return (*grain[:-1], None) if self.needs_activations(self.params) and self.block.name in BY_ROW else grain

    def decode(self, parts: Parts, spec: TensorSpec, *, region: Region, out: np.ndarray) -> None:
        block, columns, width = self.block, region[-1], out.shape[-1]
        first, last = columns.start // block.elements, columns.stop // block.elements
        data = parts["data"][(*region[:-1], slice(first * block.nbytes, last * block.nbytes))]
        rows = out.size // max(width, 1)
        block.decode(data.reshape(rows, last - first, block.nbytes), out.reshape(rows, width))

    def encode(self, panel: np.ndarray, *, activations: np.ndarray | None = None) -> dict[str, np.ndarray]:
        block, is_external = self.block, self.block.name in libggml.NAMES
        if block.encode is None and not is_external:
            raise self._cannot_encode()
        values = np.ascontiguousarray(panel, np.float32).reshape(dtypes.count(panel.shape[:-1]), panel.shape[-1])
        blocks = values.shape[1] // block.elements
        out = np.empty((len(values), blocks, block.nbytes), np.uint8)
        if block.encode is not None:
            block.encode(values, out)
        else:
            libggml.encode(block.name, values, activations if self.params else None, out.reshape(len(values), -1))
        return {"data": out.reshape(*panel.shape[:-1], blocks * block.nbytes)}

    @classmethod
    def params_for(cls, spec: TensorSpec, options: Params) -> Params:
        block, codec = cls.block_type(), cls.from_params({})
        if block.name in libggml.NAMES:
            codec.parts(spec)
            return libggml.check_params(block.name, options)
        if block.encode is None:
            raise cls._cannot_encode()
        if options:
            raise CodecError(f"{cls.id} takes no parameters", found=", ".join(options), code=ErrorCode.PARAMS)
        codec.parts(spec)
        return options

    @classmethod
    def needs_activations(cls, options: Params) -> bool:
        return options.get("search") == "activations"

    def code_layout(self, spec: TensorSpec) -> CodeLayout | None:
        repacker = _CODES.get(self.id)
        return repacker.layout(self.id, spec.shape) if repacker else None

    def codes(self, parts: Parts, spec: TensorSpec, region: Region) -> Codes | None:
        repacker = _CODES.get(self.id)
        if repacker is None:
            return None
        size, nbytes = self.block.elements, self.block.nbytes
        blocks = slice(region[-1].start // size * nbytes, region[-1].stop // size * nbytes)
        return repacker.codes(self.id, parts["data"][(*region[:-1], blocks)])

    def from_codes(self, codes: Codes, spec: TensorSpec) -> tuple[dict[str, np.ndarray], Exactness] | None:
        repacker = _REPACKERS.get(self.id)
        data = repacker.blocks(self.id, codes) if repacker else None
        return None if data is None else ({"data": data}, Exactness("values", "f32"))

    def holds(self, codes: Codes, spec: TensorSpec) -> Exactness | None:
        repacker = _REPACKERS.get(self.id)
        return Exactness("values", "f32") if repacker and repacker.holds(self.id, codes) else None

    @classmethod
    def _cannot_encode(cls) -> CodecError:
        others = (*(name for name, block in BLOCKS.items() if block.encode), *COMPILED, *libggml.NAMES)
        hint = f"Types with an encoder: {', '.join(others)}."
        if cls.block_type().name in COMPILED:
            hint = f"Run `{install_command('squish-cpu')}`."
        return CodecError(f"{cls.id} has no encoder", code=ErrorCode.ENCODE, hint=hint)
