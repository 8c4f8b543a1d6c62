"""ConvRot: codes of weights whose columns were rotated in groups by a Hadamard matrix."""

from __future__ import annotations

from math import lcm

import numpy as np

from squish_core.api import CodecError, ErrorCode, Exactness, Params, Parts, Region, TensorSpec, Wrapper

H4 = np.array([[1, 1, 1, -1], [1, 1, -1, 1], [1, -1, 1, 1], [-1, 1, 1, 1]], np.float32)
"""The regular Hadamard matrix of order 4: symmetric, and its own inverse except for a factor of 4."""
LARGEST = 4**8


class ConvRot(Wrapper):
    """The inner codec's values, each group of `group_size` columns (a power of 4) times the Kronecker power of `H4`,
    divided by the root of its order; the same rotation undoes itself.

    Source: comfy_kitchen, tensor/int8_utils.py and `dequantize_int8_convrot_weight`.
    """

    def bind(self) -> None:
        self.group = _group(self.params)

    def parts(self, spec: TensorSpec) -> dict[str, tuple[str, tuple[int, ...]]]:
        group = self.group
        if not spec.shape or spec.shape[-1] % group:
            raise CodecError(
                "the rotation does not divide the columns",
                expected=f"a multiple of {group}",
                found=f"shape {list(spec.shape)}",
                code="shape",
            )
        return self.inner.parts(spec)

    def grain(self, spec: TensorSpec) -> tuple[int | None, ...]:
        *lead, last = self.inner.grain(spec)
        return (*lead, None if last is None else lcm(last, self.group))

    def value_dtype(self, spec: TensorSpec) -> str:
        return "f32"

    @property
    def error_bound(self) -> Exactness:
        return Exactness("bounded")

    def decode(self, parts: Parts, spec: TensorSpec, *, region: Region, out: np.ndarray) -> None:
        self.inner.decode(parts, spec, region=region, out=out)
        group = self.group
        with np.errstate(all="ignore"):
            out[...] = rotated(out.reshape(-1, group)).reshape(out.shape)


def rotated(rows: np.ndarray) -> np.ndarray:
    """Multiply rows [n, 4**k] by the normalized regular Hadamard matrix."""
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
            "invalid group size of a rotation",
            expected=f"a power of 4 up to {LARGEST}",
            found=repr(group)[:40],
            code=ErrorCode.PARAMS,
        )
    return group
