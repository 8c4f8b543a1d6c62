"""A quantized codec that no package knows repacks into every format by what it declares of its codes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from squish_testing import CodecSuite
from squish_testing.sources import memory_file

import squish_core as squish
from squish_core import api
from squish_core.api import CodecSpec, CodeLayout, Codes, Exactness, SquishError, TensorSpec, dtypes
from squish_core.plugins.registry import Registry

NAME, SHAPE = "model.layers.0.mlp.up_proj.weight", (64, 128)
LAYOUTS = {
    "biases": CodeLayout(bits=4, group=(1, 32), scale_dtype="f16", offset_kind="bias", offset_dtype="f16"),
    "symmetric": CodeLayout(bits=4, group=(1, 32), scale_dtype="f16", zero=8),
    "zero points": CodeLayout(bits=4, group=(1, 64), scale_dtype="f16", offset_kind="zero_point", offset_dtype="u8"),
    "int8": CodeLayout(bits=8, signed=True, group=(1, 32), scale_dtype="f16"),
    "rows": CodeLayout(bits=8, signed=True, group=(1, 0), scale_dtype="f32"),
    "boxes": CodeLayout(bits=4, signed=True, group=(4, 32), scale_dtype="f16"),
    "float4": CodeLayout(
        bits=4, group=(1, 32), scale_dtype="f8_e8m0",
        table=(0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6),
    ),
    "float8": CodeLayout(bits=8, group=(1, 32), scale_dtype="f8_e8m0", table="f8_e4m3"),
    "columns": CodeLayout(bits=4, group=(32, 1), scale_dtype="f16", zero=8),
}  # fmt: skip


class Plainest(api.Codec):
    """Codes one a byte in one of `LAYOUTS`, which the parameter `form` names. It declares its codes and no more."""

    def code_layout(self, spec: TensorSpec) -> CodeLayout:
        return LAYOUTS[self.params["form"]]

    def parts(self, spec: TensorSpec) -> dict[str, tuple[str, tuple[int, ...]]]:
        layout = self.code_layout(spec)
        grid = tuple(size // step for size, step in zip(spec.shape, layout.group_sizes(spec.shape)))
        parts = {"q": ("i8" if layout.signed else "u8", spec.shape), "s": (layout.scale_dtype, grid)}
        return parts if layout.offset_dtype is None else {**parts, "o": (layout.offset_dtype, grid)}

    def grain(self, spec: TensorSpec) -> tuple[int | None, ...]:
        return self.code_layout(spec).group_sizes(spec.shape)

    def codes(self, parts: api.Parts, spec: TensorSpec, region: api.Region) -> Codes:
        layout = self.code_layout(spec)
        steps = layout.group_sizes(spec.shape)
        cells = tuple(slice(cut.start // step, cut.stop // step) for cut, step in zip(region, steps))
        shape = tuple(cut.stop - cut.start for cut in region)
        offset = parts["o"][cells] if "o" in parts else None
        return Codes(
            layout=layout, shape=shape, scale=parts["s"][cells], offset=offset, unpack=lambda: parts["q"][region]
        )

    def decode(self, parts: api.Parts, spec: TensorSpec, *, region: api.Region, out: np.ndarray) -> None:
        codes = self.codes(parts, spec, region)
        out[...] = codes.values if codes.table is None else codes.table[codes.values]
        biased = codes.layout.offset_kind == "bias"
        if codes.offsets is not None and not biased:
            out -= spread(codes.offsets, codes)
        out *= spread(codes.scale, codes)
        if codes.offsets is not None and biased:
            out += spread(codes.offsets, codes)


def spread(grid: np.ndarray, codes: Codes) -> np.ndarray:
    """One f32 for each element from one for each group."""
    for axis, size in enumerate(codes.group):
        grid = np.repeat(grid, size, axis=axis)
    return grid.astype(np.float32)


@api.hookimpl
def squish_codecs() -> list[api.CodecInfo]:
    """The codec of this module."""
    return [api.CodecInfo(id="third.plainest", title="codes one a byte", factory=f"{__name__}:Plainest")]


PLUGIN = SimpleNamespace(__name__="third_party", squish_codecs=squish_codecs)
SPEC = TensorSpec(name=NAME, shape=SHAPE, dtype="f32")


def stored(form: str) -> dict[str, np.ndarray]:
    """Random codes; scales are powers of two, and biases whole multiples of them."""
    rng, layout = np.random.default_rng(7), LAYOUTS[form]
    parts: dict[str, np.ndarray] = {}
    for role, (dtype, shape) in Plainest.from_params({"form": form}).parts(SPEC).items():
        if role == "q":
            parts[role] = rng.integers(layout.low, layout.high + 1, shape).astype(dtypes.to_numpy(dtype))
        elif role == "s":
            parts[role] = (2.0 ** rng.integers(-6, 0, shape)).astype(np.float32).astype(dtypes.to_numpy(dtype))
        else:
            zeros = rng.integers(0, 16, shape)
            parts[role] = (zeros if layout.offset_kind == "zero_point" else -zeros * parts["s"]).astype(
                dtypes.to_numpy(dtype)
            )
    return parts


class TestPlainest(CodecSuite):
    codec = "third.plainest"
    plugin = __name__
    test_registering_imports_no_implementation = None  # it is declared in the same module

    def cases(self) -> dict[str, Any]:
        return {form: (SPEC, {"form": form}, stored(form)) for form in LAYOUTS}


@pytest.mark.parametrize(
    ("form", "to", "codec"),
    [
        ("biases", "gguf", "ggml.q4_1"), ("biases", "mlx", "affine"), ("biases", "ztensor:wire=2", "affine"),
        ("biases", "ztensor:wire=1.1", "affine"), ("biases", "squizd", "squizd.int4"), ("biases", "npydir", "affine"),
        ("biases", "uqff", "affine"), ("biases", "hf:method=gptq_v2", "hf.act_order"),
        ("symmetric", "gguf", "ggml.q4_0"), ("symmetric", "hf:method=gptq", "hf.act_order"),
        ("symmetric", "hf:method=compressed-tensors", "affine"), ("symmetric", "hf:method=awq", "affine"),
        ("symmetric", "mlpackage", "affine"), ("symmetric", "squizd", "squizd.int4"), ("symmetric", "mlx", "affine"),
        ("zero points", "hf:method=gptq_v2", "hf.act_order"), ("zero points", "mlx", "affine"),
        ("zero points", "ztensor:wire=2", "affine"), ("int8", "gguf", "ggml.q8_0"), ("int8", "npydir", "affine"),
        ("rows", "npydir", "affine"), ("rows", "hf:method=gptq", "hf.act_order"), ("boxes", "squizd", "squizd.int4"),
        ("boxes", "mlx", "affine"), ("float4", "gguf", "ggml.mxfp4"), ("float4", "mlx", "mx"),
        ("float4", "hf:method=compressed-tensors", "mx"), ("float4", "uqff", "mx"),
        ("float4", "ztensor:wire=2", "zt.mx"), ("float8", "mlx", "mx"), ("float8", "ztensor:wire=2", "zt.mx"),
        ("float8", "hf:method=compressed-tensors", "mx"), ("columns", "ztensor:wire=2", "affine"),
    ],
)  # fmt: skip
def test_codes_of_a_codec_that_nobody_knows_are_repacked(tmp_path: Path, form: str, to: str, codec: str) -> None:
    file, _ = memory_file(
        Registry(extra=[PLUGIN]), {NAME: (SPEC, CodecSpec("third.plainest", {"form": form}), stored(form))}
    )
    (step,) = squish.convert(file, tmp_path / "target", to).steps
    assert (step.action, step.exactness) == ("repack", Exactness("values", "f32"))
    with squish.open(tmp_path / "target") as target:
        (tensor,) = target.values()
        assert tensor.spec.encodings[0].codec.id == codec
        np.testing.assert_array_equal(tensor.numpy(), file[NAME].numpy())


@pytest.mark.parametrize(
    ("form", "to"),
    [("float8", "uqff"), ("float8", "gguf"), ("float8", "npydir"), ("float8", "squizd"), ("float4", "npydir"),
     ("float4", "hf:method=gptq"), ("rows", "squizd"), ("columns", "mlx"), ("columns", "npydir"),
     ("columns", "hf:method=awq"), ("columns", "uqff"), ("zero points", "safetensors"), ("rows", "uqff")],
)  # fmt: skip
def test_codes_without_a_form_in_the_target_are_refused(tmp_path: Path, form: str, to: str) -> None:
    file, _ = memory_file(
        Registry(extra=[PLUGIN]), {NAME: (SPEC, CodecSpec("third.plainest", {"form": form}), stored(form))}
    )
    with pytest.raises(SquishError) as error:
        squish.convert(file, tmp_path / "target", to)
    assert (error.value.code, error.value.tensor) == ("refused", NAME)
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize(
    ("group", "run", "shape", "sizes", "length", "columns"),
    [
        ((1, 32), 0, (4, 64), (1, 32), 32, 32), ((1, 0), 0, (4, 64), (1, 64), 64, 0),
        ((0, 0), 0, (4, 64), (4, 64), 256, 0), ((2, 64), 0, (4, 64), (2, 64), 128, 64),
        ((2, 32), 0, (4, 64), (2, 32), None, 32),
        ((32, 1), 0, (64, 4), (32, 1), None, None), ((1, 8), 24, (4, 64), (1, 8), 24, None), ((), 0, (), (), 1, 0),
        ((1, 0), 0, (4, 0), (1, 1), 1, 0),
    ],
)  # fmt: skip
def test_groups_of_a_layout(
    group: tuple[int, ...],
    run: int,
    shape: tuple[int, ...],
    sizes: tuple[int, ...],
    length: int | None,
    columns: int | None,
) -> None:
    layout = CodeLayout(bits=4, group=group, run=run, scale_dtype="f32")
    assert (layout.group_sizes(shape), layout.run_length(shape), layout.row_group) == (sizes, length, columns)


@pytest.mark.parametrize(
    "wrong",
    [{"bits": 9}, {"bits": 0}, {"offset_kind": "zeros"}, {"offset_kind": "bias"}, {"offset_dtype": "f32"},
     {"offset_kind": "bias", "offset_dtype": "f32", "zero": 8}, {"table": "nf4"}],
)  # fmt: skip
def test_a_layout_that_contradicts_itself_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(
        ValueError, match=next(iter(wrong)) if len(wrong) == 1 and "offset_kind" not in wrong else "must be"
    ):
        CodeLayout(**{"bits": 4, "group": (1, 32), "scale_dtype": "f32", **wrong})


@st.composite
def layouts_and_shapes(draw: st.DrawFn) -> tuple[CodeLayout, tuple[int, ...]]:
    """A layout and a shape that its groups divide."""
    cells = draw(st.lists(st.integers(0, 3), max_size=5))
    group = tuple(draw(st.sampled_from([0, 1, 1, 2, 16, 32, 64, 128])) for _ in cells)
    shape = tuple(count * (step or 32) for count, step in zip(cells, group))
    kind = draw(st.sampled_from(["none", "zero_point", "bias"]))
    bits = draw(st.integers(1, 8))
    tables = [None, None, "stored", LAYOUTS["float4"].table, tuple(range(1 << bits))]
    layout = CodeLayout(
        bits=bits,
        signed=draw(st.booleans()),
        group=group,
        run=draw(st.sampled_from([0, 0, 0, 24])),
        scale_dtype=draw(st.sampled_from(["f16", "f32", "bf16", "f8_e8m0", "f8_e4m3"])),
        offset_kind=kind,
        offset_dtype=None if kind == "none" else draw(st.sampled_from(["u4", "u8", "i8", "f16", "f32", "bf16"])),
        zero=0 if kind == "bias" else draw(st.sampled_from([0, 1, 8, 128])),
        table=draw(st.sampled_from(tables)),
    )
    return layout, shape


@pytest.mark.parametrize(
    ("container", "options"),
    [("gguf", {}), ("mlx", {}), ("uqff", {}), ("uqff", {"version": "0.1.3"}), ("squizd", {}), ("npydir", {}),
     ("squizd", {"sparsity": "0.5"}), ("ztensor", {"wire": "2"}), ("ztensor", {"wire": "1.1"}), ("mlpackage", {}),
     ("mlpackage", {"target": "iOS16"}), ("hf", {"method": "gptq"}), ("hf", {"method": "awq"}),
     ("hf", {"method": "compressed-tensors"}), ("hf", {"method": "mxfp4"})],
    ids=str,
)  # fmt: skip
@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_a_format_answers_every_layout_with_parts_of_its_codec(
    container: str, options: dict[str, str], data: st.DataObject
) -> None:
    layout, shape = data.draw(layouts_and_shapes())
    spec = TensorSpec(name=NAME, shape=shape, dtype="f32")
    answer = squish.registry().container(container).accepts_codes(spec, layout, options)
    if isinstance(answer, api.Encoding):
        codec = squish.registry().codec(answer.codec)
        declared = {role: (dtype, tuple(size)) for role, (dtype, size) in codec.parts(spec).items()}
        assert {role: (part.dtype, part.shape) for role, part in answer.parts.items()} == declared
    else:
        assert answer is None or answer.why
