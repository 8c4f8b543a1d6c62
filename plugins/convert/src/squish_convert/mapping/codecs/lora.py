"""Adds products of two small matrices to the values of another codec: what a LoRA adapter adds to a weight."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from attrs import astuple, frozen

from squish_core import dtypes
from squish_core.codecs.base import PartArray, Parts, Region, Wrapper
from squish_core.codecs.regions import sizes
from squish_core.codes import ErrorCode
from squish_core.errors import CodecError
from squish_core.model import CodecSpec, TensorSpec

if TYPE_CHECKING:
    import numpy as np

LORA = "lora"
"""Id of the codec."""


@frozen
class Product:
    """A product of two matrices, [rows, rank] and [rank, columns], that is added to some rows of a tensor.

    Attributes
    ----------
    scale
        Number by which it is multiplied.
    rank, rows
        Columns and rows of the first matrix.
    first
        Row of the tensor to which its first row is added.
    member
        Number of the matrix in a stack of matrices; 0 for a single one.
    left, right
        Dtypes of the two matrices.
    left_turned, right_turned
        Whether they are stored transposed.
    """

    scale: float
    rank: int
    rows: int
    first: int
    member: int
    left: str
    left_turned: bool
    right: str
    right_turned: bool

    @property
    def params(self) -> tuple[Any, ...]:
        """Plain data, as in the codec's parameters."""
        return astuple(self)

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Return whether the fields are valid and the product lies inside a tensor of a shape."""
        counts = (self.rank, self.rows, self.first, self.member)
        if not all(type(count) is int and count >= 0 for count in counts) or len(shape) not in (2, 3):
            return False
        is_scale = isinstance(self.scale, float) and math.isfinite(self.scale)
        kinds = (self.left, self.right)
        are_floats = all(isinstance(kind, str) and kind in dtypes.FLOATS and dtypes.bits(kind) >= 8 for kind in kinds)
        are_flags = all(type(turned) is bool for turned in (self.left_turned, self.right_turned))
        members = shape[0] if len(shape) == 3 else 1
        return is_scale and are_floats and are_flags and self.first + self.rows <= shape[-2] and self.member < members

    def shapes(self, columns: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Shapes of the two matrices as they are stored."""
        left, right = (self.rows, self.rank), (self.rank, columns)
        return left[::-1] if self.left_turned else left, right[::-1] if self.right_turned else right

    def add(self, values: np.ndarray, rows: slice, columns: slice, left: PartArray, right: PartArray) -> None:
        """Add the product to the values of a region of the matrix."""
        start, stop = max(rows.start, self.first), min(rows.stop, self.first + self.rows)
        if start >= stop:
            return
        own = slice(start - self.first, stop - self.first)
        first = left[:, own].T if self.left_turned else left[own]
        second = right[columns].T if self.right_turned else right[:, columns]
        product = first.astype(values.dtype) @ second.astype(values.dtype)
        values[start - rows.start : stop - rows.start] += values.dtype.type(self.scale) * product


class Lora(Wrapper):
    """A wrapping codec that only decodes. `products`: the fields of each `Product`; `0.left` and `0.right` are its
    matrices."""

    def bind(self) -> None:
        """Read the products; CodecError unless each has all fields."""
        stated = self.params.get("products")
        try:
            self.products = tuple(Product(*fields) for fields in stated)  # type: ignore[union-attr]
        except TypeError:
            raise self._invalid() from None

    def _invalid(self, shape: tuple[int, ...] | None = None) -> CodecError:
        return CodecError(
            "does not describe products of matrices",
            code=ErrorCode.PARAMS,
            expected=f"products inside shape {list(shape)}" if shape else "products=((scale, rank, rows, ...), ...)",
            found=str(dict(self.params))[:120],
        )

    def wrapped(self, spec: TensorSpec) -> TensorSpec:
        """Return the wrapped tensor, which is the same; CodecError unless every product fits it."""
        if not all(product.fits(spec.shape) for product in self.products):
            raise self._invalid(spec.shape)
        return spec

    def parts(self, spec: TensorSpec) -> dict[str, tuple[str, tuple[int, ...]]]:
        declared = self.inner.parts(self.wrapped(spec))
        for number, product in enumerate(self.products):
            left, right = product.shapes(spec.shape[-1])
            declared |= {f"{number}.left": (product.left, left), f"{number}.right": (product.right, right)}
        return declared

    def value_dtype(self, spec: TensorSpec) -> str:
        """Values of f32, or of f64 where the wrapped codec has them."""
        return "f64" if self.inner.value_dtype(self.wrapped(spec)) == "f64" else "f32"

    def decode(self, parts: Parts, spec: TensorSpec, *, region: Region, out: np.ndarray) -> None:
        import numpy as np

        wrapped = self.wrapped(spec)
        dtype = dtypes.to_numpy(self.inner.value_dtype(wrapped))
        values = out if out.dtype == dtype else np.empty(sizes(region), dtype)
        self.inner.decode(parts, wrapped, region=region, out=values)
        if values is not out:
            out[...] = values
        *stack, rows, columns = region
        start = stack[0].start if stack else 0
        matrices = out if stack else out[None]
        for number, product in enumerate(self.products):
            if start <= product.member < start + len(matrices):
                left, right = parts[f"{number}.left"], parts[f"{number}.right"]
                product.add(matrices[product.member - start], rows, columns, left, right)


def codec_below_lora(codec: CodecSpec) -> CodecSpec | None:
    """Return the codec of the stored bytes to whose values products are added; None if there are none."""
    wrapper: CodecSpec | None = codec
    while wrapper is not None and wrapper.id != LORA:
        wrapper = wrapper.inner
    return None if wrapper is None else wrapper.inner
