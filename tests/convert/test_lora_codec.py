"""The codec `lora`: any region of a tensor has the products of the matrices added, whatever codec it wraps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from squish_convert.arrays import in_memory
from squish_convert.mapping.codecs.lora import LORA, Lora, Product
from squish_convert.mapping.tensors import dense
from squish_testing import expect_error

import squish_core as squish
from squish_core.file import File
from squish_core.model import CodecSpec, TensorSpec

ROWS, COLUMNS, MEMBERS = 6, 8, 3
FIELDS: dict[str, Any] = {
    "scale": 0.5, "rank": 2, "rows": 3, "first": 2, "member": 1, "left": "f32", "left_turned": False, "right": "f16",
    "right_turned": True,
}  # fmt: skip


def with_products(file: File, name: str, products: list[tuple[Product, np.ndarray, np.ndarray]]) -> TensorSpec:
    """A tensor with products added."""
    spec = file.index.tensors[name]
    parts = dict(spec.encodings[0].parts)
    for number, (product, left, right) in enumerate(products):
        for role, array, turned, dtype in (
            ("left", left, product.left_turned, product.left),
            ("right", right, product.right_turned, product.right),
        ):
            stored = dense(role, np.ascontiguousarray(array.T if turned else array), dtype)
            parts[f"{number}.{role}"] = stored.encodings[0].parts["data"]
    codec = CodecSpec(LORA, {"products": tuple(product.params for product, _, _ in products)}, spec.encodings[0].codec)
    return evolve(spec, encodings=(evolve(spec.encodings[0], codec=codec, parts=parts),))


@given(data=st.data())
@settings(max_examples=40)
def test_a_region_has_its_part_of_the_products(data: st.DataObject) -> None:
    generator = np.random.default_rng(data.draw(st.integers(0, 9)))
    dtype = data.draw(st.sampled_from(["f4", "f2", "f8"]))
    values = generator.integers(-8, 8, (MEMBERS, ROWS, COLUMNS)).astype(dtype)
    expected, products = values.astype(np.float64), []
    for _ in range(data.draw(st.integers(1, 3))):
        rows = data.draw(st.integers(1, ROWS))
        product = Product(
            scale=data.draw(st.sampled_from([1.0, -0.5, 2.0])),
            rank=data.draw(st.integers(1, 3)),
            rows=rows,
            first=data.draw(st.integers(0, ROWS - rows)),
            member=data.draw(st.integers(0, MEMBERS - 1)),
            left=data.draw(st.sampled_from(["f32", "bf16"])),
            left_turned=data.draw(st.booleans()),
            right=data.draw(st.sampled_from(["f32", "f16"])),
            right_turned=data.draw(st.booleans()),
        )
        left, right = (
            generator.integers(-3, 4, shape) * 1.0 for shape in ((rows, product.rank), (product.rank, COLUMNS))
        )
        expected[product.member, product.first : product.first + rows] += product.scale * left @ right
        products.append((product, left, right))
    file = in_memory({"w": values})
    spec = with_products(file, "w", products)
    region = tuple(
        slice(start, data.draw(st.integers(start + 1, size)))
        for size in spec.shape
        for start in [data.draw(st.integers(0, size - 1))]
    )
    found = file.bind(spec, spec.encodings[0]).read(region)
    assert found.dtype == np.dtype("f8" if dtype == "f8" else "f4")
    np.testing.assert_array_equal(found, expected[region])


@pytest.mark.parametrize(
    "change",
    [
        {"rank": -1}, {"first": 4}, {"member": 3}, {"rows": "3"}, {"scale": float("nan")}, {"scale": 1}, {"left": "i8"},
        {"left_turned": 1}, {"right": []},
    ],
)  # fmt: skip
def test_products_outside_of_the_tensor_are_refused(change: dict[str, Any]) -> None:
    spec = TensorSpec(name="w", shape=(MEMBERS, ROWS, COLUMNS), dtype="f32")
    registry = squish.registry()
    params = {"products": (Product(**FIELDS).params,)}
    assert "0.left" in registry.codec(CodecSpec(LORA, params, CodecSpec("dense"))).parts(spec)
    wrong = {"products": (Product(**{**FIELDS, **change}).params,)}
    with expect_error(squish.CodecError, code="params"):
        registry.codec(CodecSpec(LORA, wrong, CodecSpec("dense"))).parts(spec)


@pytest.mark.parametrize("products", [None, 3, ((1.0, 2),), "ab"])
def test_products_without_all_fields_are_refused(products: Any) -> None:
    with expect_error(squish.CodecError, code="params"):
        Lora.from_params({"products": products}, squish.registry().codec(CodecSpec("dense")))
