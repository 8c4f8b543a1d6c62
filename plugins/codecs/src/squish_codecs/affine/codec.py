"""Group-affine quantization: integers with a scale, and optionally a zero point or bias, per group."""

from __future__ import annotations

import numpy as np
from attrs import evolve

from squish_core.api import Codec, CodecSpec, CodeLayout, Codes, Exactness, Params, Parts, Region, TensorSpec

from . import decode, encode, repack
from .layout import affine_layout
from .middle import has_middle_zeros
from .scheme import Scheme

Array = np.ndarray


class Affine(Codec):
    """Codes `q` with `value = (q - zero) * scale` or `q * scale + bias` in float32, each operation rounded once.

    Parts: `data` (the codes), `scale`, and `offset` (zero points or biases). Parameters:

    bits           1..8       width of a code; required
    group_size     0          codes per scale along `axis`; 0: the whole axis (per row, per channel, per tensor)
    axis           -1         -1 or -2: the axis of the groups, which divide it; "flat": codes and groups cover the
                              flattened row-major tensor, the last group may be short; data and scales are 1-D
    pack_axis      axis       -1 or -2: the axis of codes within a word; each line starts at a new word
    transposed     false      the stored tensor is the transpose (last two axes); all other parameters describe the
                              stored tensor
    signed         see right  two's complement; default: true if offset is none and zero is 0
    word           u8         u8 i8 u16 i16 u32 i32 u64 i64
    order          lsb        lsb: bit stream, first code lowest, codes may span words; msb: first code highest;
                              padded: whole codes only, first code lowest, remaining bits unused;
                              planes: bit planes of 32 codes, their lowest 4 (or 2) bits first;
                              list: the code at bits i*bits of a word is number order[i]
    offset         none       none: `(q - zero) * scale` with the constant `zero`; zero_point: `(q - zero - offset) *
                              scale`; bias: `q * scale + offset`
    zero           0          constant zero point; GPTQ v1 stores zero points minus 1: zero=1
    scale_dtype    f32        f32 f16 bf16 f8_e4m3 f8_e5m2 f8_e8m0; converted to f32 first
    offset_dtype   see right  integer or float; zero points may be "packed": like the codes, across the groups (with
                              axis "flat": along them). Default: scale_dtype for a bias, u8 or i8 for zero points
    symmetric      false      every stored zero point (or bias / -scale) is the middle of the codes (8 of 0 to 15): a
                              format may state this instead of storing them, and the encoder fits none
    search         none       encoding only. none: a group's range is its minimum to its maximum; mse: the range, or a
                              narrower one, with the least squared error; activations: the same with errors
                              weighted by the activations of their columns (AWQ's objective)

    Sources: SQUIZD P3; MLX quantize; zTensor zt.quant_group/1; GPTQ, AWQ, compressed-tensors checkpoints.
    """

    encoder_only_params = ("search",)
    data_params = ("symmetric",)

    def bind(self) -> None:
        self.scheme = Scheme.of(self.params)

    def parts(self, spec: TensorSpec) -> dict[str, tuple[str, tuple[int, ...]]]:
        return self.scheme.parts(spec.shape)

    def grain(self, spec: TensorSpec) -> tuple[int | None, ...]:
        return self._fitting(spec).grain(spec.shape)

    def encode_grain(self, spec: TensorSpec) -> tuple[int | None, ...]:
        return self._fitting(spec).grain(spec.shape, encoding=True)

    @classmethod
    def params_for(cls, spec: TensorSpec, options: Params) -> Params:
        scheme = cls.from_params(options)._fitting(spec)
        encode.check_encodable(scheme)
        return scheme.params()

    @property
    def canonical(self) -> Params:
        """Without `symmetric`, which is about the data, not about their layout."""
        return evolve(self.scheme, symmetric=False).params()

    def decode(self, parts: Parts, spec: TensorSpec, *, region: Region, out: Array) -> None:
        decode.decode_affine(self.scheme, parts, spec.shape, region, out)

    def encode(self, panel: Array, *, activations: Array | None = None) -> dict[str, Array]:
        return encode.encode(self.scheme, panel, activations)

    @classmethod
    def needs_activations(cls, options: Params) -> bool:
        return Scheme.of(options).search == "activations"

    def code_layout(self, spec: TensorSpec) -> CodeLayout | None:
        return affine_layout(self._fitting(spec), spec.shape)

    def examine(self, parts: Parts, spec: TensorSpec) -> CodecSpec:
        """Adds `symmetric` if all zero points are the middle of the codes, or biases say so."""
        if not has_middle_zeros(self._fitting(spec), parts, spec.shape):
            return self.specification
        return CodecSpec(self.id, {**self.params, "symmetric": True})

    def codes(self, parts: Parts, spec: TensorSpec, region: Region) -> Codes | None:
        return repack.affine_codes(self.scheme, parts, spec.shape, region)

    def from_codes(self, codes: Codes, spec: TensorSpec) -> tuple[dict[str, Array], Exactness] | None:
        parts = repack.affine_parts(self.scheme, codes)
        return None if parts is None else (parts, Exactness("values", "f32"))

    def holds(self, codes: Codes, spec: TensorSpec) -> Exactness | None:
        return Exactness("values", "f32") if repack.affine_holds(self.scheme, codes) else None

    def _fitting(self, spec: TensorSpec) -> Scheme:
        """Return the scheme; CodecError if it does not divide the shape."""
        self.scheme.parts(spec.shape)
        return self.scheme
