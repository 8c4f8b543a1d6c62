"""ConvRot: codes of weights whose columns were rotated in groups by a Hadamard matrix."""

from __future__ import annotations

from math import lcm

import numpy as np

from squish_core.api import Codec, CodecError, ErrorCode, Exactness, Params, Parts, Region, TensorSpec

H4 = np.array([[1, 1, 1, -1], [1, 1, -1, 1], [1, -1, 1, 1], [-1, 1, 1, 1]], np.float32)
"""The regular Hadamard matrix of order 4: symmetric, and its own inverse but for a factor of 4."""
LARGEST = 4**8


class ConvRot(Codec):
    """The inner codec's values, each group of `group_size` columns (a power of 4) times the Kronecker power of `H4`,
    divided by the root of its order; the same rotation undoes itself.

    Source: comfy_kitchen, tensor/int8_utils.py and `dequantize_int8_convrot_weight`.
    """

    def wrap(self, inner: Codec, params: Params) -> Codec:
        return _Bound(inner, params)


class _Bound(Codec):
    """`ConvRot` around one codec."""

    id = "hf.convrot"

    def __init__(self, inner: Codec, params: Params) -> None:
        self.inner, self.own, self.unsliced_parts = inner, params, inner.unsliced_parts

    def parts(self, spec: TensorSpec, params: Params) -> dict[str, tuple[str, tuple[int, ...]]]:
        group = _group(params)
        if not spec.shape or spec.shape[-1] % group:
            raise CodecError(
                "the rotation does not divide the columns", expected=f"a multiple of {group}",
                found=f"shape {list(spec.shape)}", code="shape",
            )  # fmt: skip
        return self.inner.parts(spec, self.own)

    def grain(self, spec: TensorSpec, params: Params) -> tuple[int | None, ...]:
        *lead, last = self.inner.grain(spec, self.own)
        return (*lead, None if last is None else lcm(last, _group(params)))

    def value_dtype(self, spec: TensorSpec, params: Params) -> str:
        return "f32"

    def error_bound(self, params: Params) -> Exactness:
        return Exactness("bounded")

    def check_parts(self, parts: Parts, spec: TensorSpec, params: Params) -> None:
        self.inner.check_parts(parts, spec, self.own)

    def decode(self, parts: Parts, spec: TensorSpec, params: Params, *, region: Region, out: np.ndarray) -> None:
        self.inner.decode(parts, spec, self.own, region=region, out=out)
        group = _group(params)
        with np.errstate(all="ignore"):
            out[...] = rotated(out.reshape(-1, group)).reshape(out.shape)


def rotated(rows: np.ndarray) -> np.ndarray:
    """Rows [n, 4**k] times the normalized regular Hadamard matrix."""
    group = rows.shape[-1]
    values, step = rows, 1
    while step < group:  # a factor of the Kronecker product for each base-4 digit of the column
        values = np.matmul(H4, values.reshape(-1, 4, step)).reshape(rows.shape)
        step *= 4
    return np.asarray(values / np.float32(np.sqrt(group)), np.float32)


def _group(params: Params) -> int:
    group = params.get("group_size")
    if type(group) is not int or not 4 <= group <= LARGEST or group & (group - 1) or group.bit_length() % 2 == 0:
        raise CodecError(
            "invalid group size of a rotation", expected=f"a power of 4 up to {LARGEST}", found=repr(group)[:40],
            code=ErrorCode.PARAMS,
        )  # fmt: skip
    return group
