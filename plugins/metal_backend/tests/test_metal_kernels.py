"""The Metal kernels, run on the CPU by a C++ shim, compared with the NumPy decoders: bit-identical without sums.

On a Mac the conformance kit runs the same kernels on the GPU (`test_metal_conformance.py`).
"""

import math
import struct
import subprocess
import sys

import mlx.core as mx
import numpy as np
import pytest
from attrs import evolve
from squish_metal import device
from squish_metal.ggml_blocks import GGML
from squish_metal.kernels import Kernels
from squish_metal.layouts import HELPERS, layout_of
from squish_testing import expect_error
from squish_testing.sources import memory_file

import squish_core as squish
from squish_core.api import CodecSpec, SquishError, TensorSpec

SHAPES = [(1, 1), (5, 3), (33, 2)]
"""Rows, and blocks of a row: one, fewer than a simdgroup has lanes, and more rows than lanes."""


def loaded(codec_id, shape, chance):
    """A tensor of random blocks with finite f16 fields."""
    codec = squish.registry().codec(CodecSpec(codec_id))
    spec = TensorSpec(name="w", shape=shape, dtype="f32")
    ((_, size),) = codec.parts(spec).values()
    nbytes = codec.block.nbytes
    blocks = chance.integers(0, 256, size, np.uint8).reshape(-1, nbytes)
    for at in HALVES[codec_id]:
        blocks[:, at : at + 2] = chance.standard_normal((len(blocks), 1)).astype("<f2").view(np.uint8)
    return weights_of(spec, CodecSpec(codec_id), {"data": blocks.reshape(size)})


def same(result, expected):
    """Assert bit equality; on a GPU, fused multiply-add is allowed."""
    if device.has_gpu() and mx.metal.is_available():
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)
    else:
        np.testing.assert_array_equal(result, expected)


def weights_of(spec, codec, parts):
    file, _ = memory_file(squish.registry(), {"w": (spec, codec, parts)})
    return file["w"]


OTHERS = {
    **{f"palette {bits}": ("palette", {"bits": bits, "codebook_dtype": "f16"}) for bits in (1, 3, 4, 6, 8)},
    "palette flat": ("palette", {"bits": 3, "axis": "flat"}),
    "palette by rows": ("palette", {"bits": 4, "axis": "flat", "codebook_size": "two rows"}),
    "palette across rows": ("palette", {"bits": 4, "codebook_size": 8}),
    "palette scaled": ("palette", {"bits": 4, "scale_dtype": "f16", "group_size": 8}),
    "palette scaled flat": ("palette", {"bits": 2, "axis": "flat", "scale_dtype": "f32", "group_size": 16}),
    "palette scaled rows": ("palette", {"bits": 4, "scale_dtype": "bf16"}),
    "palette nf4": ("palette", {"bits": 4, "table": "nf4", "scale_dtype": "f32", "group_size": 8}),
    "palette of bitsandbytes": ("palette", {
        "bits": 4, "axis": "flat", "order": "msb", "scale_dtype": "f32", "group_size": 8, "nested": 4}),
    "palette of vectors": ("palette", {"bits": 4, "vector": 2, "codebook_dtype": "f16"}),
    "palette of vectors down": ("palette", {"bits": 3, "axis": "flat", "vector": 2, "vector_axis": -2}),
    "palette of vectors by rows": ("palette", {
        "bits": 4, "axis": "flat", "vector": 2, "vector_axis": -2, "codebook_size": "two rows"}),
    "bitmask": ("bitmask", {"dtype": "f16", "kept": "run"}),
    "bitmask bf16": ("bitmask", {"dtype": "bf16", "kept": "run"}),
    "tca_tbe": ("tca_tbe", {}),
    **{f"hqq {bits} axis {axis}": ("hqq", {"bits": bits, "group_size": 8, "axis": axis})
       for bits in (1, 2, 3, 4, 8) for axis in (0, 1)},
}  # fmt: skip


def another(name, shape, chance):
    """A random tensor of another codec, with a consistent mask."""
    codec_id, params = OTHERS[name]
    codec, spec = squish.registry().codec_type(codec_id), TensorSpec(name="w", shape=shape, dtype="f32")
    if codec_id in ("bitmask", "tca_tbe"):
        values = (chance.standard_normal(shape) * (chance.random(shape) > 0.6)).astype(np.float32)
        spec = evolve(spec, dtype="bf16" if codec_id == "tca_tbe" else "f32")
        params = codec.from_params(params).fit_params(lambda: iter([values]), spec)
        return weights_of(spec, CodecSpec(codec_id, params), codec.from_params(params).encode(values))
    if params.get("codebook_size") == "two rows":
        params = {**params, "codebook_size": 2 * shape[-1]}
    parts = {}
    for role, (dtype, size) in codec.from_params(params).parts(spec).items():
        kind = squish.api.dtypes.to_numpy(dtype)
        if kind.kind in "iu":
            parts[role] = np.frombuffer(chance.bytes(math.prod(size) * kind.itemsize), kind).reshape(size)
        else:
            parts[role] = chance.standard_normal(size).astype(kind)
    return weights_of(spec, CodecSpec(codec_id, params), parts)


TYPES = {"uint8_t": "uint8_t", "uint": "uint32_t"}  # MLX's names
HALVES = {
    "ggml.q4_0": (0,), "ggml.q4_1": (0, 2), "ggml.q8_0": (0,),
    "ggml.q4_k": (0, 2), "ggml.q5_k": (0, 2), "ggml.q6_k": (208,),
}  # fmt: skip


@pytest.fixture(params=list(HALVES))
def codec_id(request):
    return request.param


@pytest.fixture(params=SHAPES, ids=str)
def shape(request, codec_id):
    rows, blocks = request.param
    return rows, blocks * squish.registry().codec_type(codec_id).block_type().elements


@pytest.mark.usefixtures("metal_on_cpu")
class TestOnTheCpu:
    def test_values_match_the_decoder(self, codec_id, shape):
        tensor = loaded(codec_id, shape, np.random.default_rng(0))
        weight = tensor.load("metal")
        assert weight.chain.chosen.mode == "stream"
        assert weight.chain.chosen.cost.moved == tensor.nbytes
        same(weight.dense(), tensor.numpy())

    def test_products(self, codec_id, shape):
        tensor = loaded(codec_id, shape, np.random.default_rng(1))
        x = np.random.default_rng(2).standard_normal((3, shape[1]), np.float32)
        expected = x.astype(float) @ tensor.numpy().T.astype(float)
        result = tensor.load("metal").linear(x)
        assert np.abs(result - expected).max() <= 1e-6 * np.abs(x).sum(1).max() * np.abs(tensor.numpy()).max()

    def test_experts(self, codec_id):
        elements = squish.registry().codec_type(codec_id).block_type().elements
        tensor = loaded(codec_id, (3, 2, elements), np.random.default_rng(3))
        x, ids = np.random.default_rng(4).standard_normal((4, elements), np.float32), np.array([2, 0, 2, 1])
        expected = np.stack([row @ tensor.numpy()[at].T for row, at in zip(x, ids)])
        result = tensor.load("metal", op="experts").experts(x, ids)
        np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())
        same(tensor.load("metal", op="dense").dense(), tensor.numpy())

    @pytest.mark.parametrize("shape", [(8, 8), (40, 264)], ids=str)
    @pytest.mark.parametrize("name", OTHERS)
    def test_other_codecs(self, name, shape):
        tensor = another(name, shape, np.random.default_rng(5))
        weight = tensor.load("metal")
        assert weight.chain.chosen.mode == "stream"
        same(weight.dense(), tensor.numpy().astype(np.float32))
        ids = np.array([[shape[0] - 1, 0], [1, 1]])
        same(weight.embed(ids), tensor.numpy()[ids].astype(np.float32))
        x = np.random.default_rng(6).standard_normal((2, shape[1]), np.float32)
        expected = x.astype(float) @ tensor.numpy().T.astype(float)
        np.testing.assert_allclose(weight.linear(x), expected, rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize("name", [
        "palette 3", "palette flat", "palette of vectors down", "tca_tbe", "hqq 3 axis 0", "hqq 4 axis 1"])  # fmt: skip
    @pytest.mark.parametrize("columns", [13, 65, 127])
    def test_rows_that_end_within_eight_values(self, name, columns):
        tensor = another(name, (16, columns), np.random.default_rng(7))
        assert tensor.load("metal").chain.chosen.mode == "stream"
        same(tensor.load("metal").dense(), tensor.numpy())

    @pytest.mark.parametrize("name", ["palette 4", "palette of vectors by rows", "bitmask", "tca_tbe", "hqq 4 axis 0"])
    def test_experts_of_other_codecs(self, name):
        tensor = another(name, (3, 4, 24), np.random.default_rng(8))
        weight = tensor.load("metal", op="experts")
        same(tensor.load("metal", op="dense").dense(), tensor.numpy().astype(np.float32))
        x, ids = np.random.default_rng(4).standard_normal((4, 24), np.float32), np.array([2, 0, 2, 1])
        expected = np.stack([row @ tensor.numpy()[at].astype(np.float32).T for row, at in zip(x, ids)])
        np.testing.assert_allclose(weight.experts(x, ids), expected, rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize("name", ["bitmask", "tca_tbe"])
    def test_bitmaps_inconsistent_with_the_values_are_refused(self, name):
        """A kernel would read out of bounds."""
        tensor = another(name, (8, 128), np.random.default_rng(1))
        (encoding,) = tensor.spec.encodings
        parts = {role: np.array(part[...]) for role, part in tensor.bound.parts.items()}
        for role in set(parts) & {"mask", "plane0", "plane1", "plane2"}:
            parts[role][...] = np.iinfo(parts[role].dtype).max
        with expect_error(SquishError, code="mask", tensor="w", part="mask", found="1024 bits set"):
            weights_of(tensor.spec, encoding.codec, parts).load("metal")

    def test_padding_of_a_bitmap_must_be_zero(self):
        tensor = another("tca_tbe", (8, 70), np.random.default_rng(1))
        (encoding,) = tensor.spec.encodings
        parts = {role: np.array(part[...]) for role, part in tensor.bound.parts.items()}
        parts["plane2"][3, 1] |= np.uint64(1 << 6)
        with expect_error(SquishError, code="P5", tensor="w", part="plane0"):
            weights_of(tensor.spec, encoding.codec, parts).load("metal")

    @pytest.mark.parametrize("name", OTHERS)
    def test_resident_memory_matches_the_offer(self, name):
        """Except for arrays below eight elements, which are padded."""
        tensor = another(name, (16, 512), np.random.default_rng(3))
        weight = tensor.load("metal")
        arrays = weight._handle.weight._arrays.values()
        assert 0 <= sum(array.nbytes for array in arrays) - weight.chain.chosen.cost.resident <= 28

    def test_small_arrays_are_padded(self):
        """MLX passes fewer than eight elements in the constant address space, which the kernels do not accept."""
        for name in OTHERS:
            weight = another(name, (8, 16), np.random.default_rng(9)).load("metal")
            assert min(array.size for array in weight._handle.weight._arrays.values()) >= 8


def test_every_ggml_kernel_is_tested():
    assert set(GGML) == set(HALVES)


of_the_shim = pytest.mark.skipif(sys.platform == "darwin", reason="there the kernels are compiled for real")


@of_the_shim
def test_the_shim_reports_errors(metal_on_cpu, tmp_path):
    kernel = metal_on_cpu(tmp_path, name="bad", input_names=["x"], output_names=["y"], source="y[0] = nobody(x[0]);")
    with pytest.raises(AssertionError, match="nobody"):
        kernel(
            inputs=[mx.zeros(8)],
            grid=(1, 1, 1),
            threadgroup=(1, 1, 1),
            output_shapes=[(1,)],
            output_dtypes=[mx.float32],
        )


@of_the_shim
def test_the_shim_has_barriers_and_simdgroups(metal_on_cpu, tmp_path):
    """A reduction over a threadgroup of 64 needs a barrier."""
    source = """
        threadgroup float shared[64];
        uint lane = thread_index_in_threadgroup;
        shared[lane] = x[thread_position_in_grid.x];
        threadgroup_barrier(mem_flags::mem_threadgroup);
        float mine = shared[63 - lane];
        float sum = simd_sum(mine);
        uint place = threadgroup_position_in_grid.x * 2 + simdgroup_index_in_threadgroup;
        if (thread_index_in_simdgroup == 0) y[place] = sum;
    """
    kernel = metal_on_cpu(tmp_path, name="sums", input_names=["x"], output_names=["y"], source=source)
    x = np.arange(256, dtype=np.float32)
    (sums,) = kernel(
        inputs=[mx.array(x)], grid=(256, 1, 1), threadgroup=(64, 1, 1), output_shapes=[(8,)], output_dtypes=[mx.float32]
    )
    np.testing.assert_array_equal(np.array(sums), x.reshape(4, 2, 32).sum(2)[:, ::-1].reshape(-1))


@of_the_shim
@pytest.mark.parametrize("name", [*HALVES, *OTHERS])
def test_generated_metal_source_compiles(name, shim, tmp_path):
    """MLX's generated source of each kernel (recorded without a GPU) compiles with the shim."""
    chance, shape = np.random.default_rng(0), (16, 512)
    tensor = loaded(name, shape, chance) if name in HALVES else another(name, shape, chance)
    (encoding,) = tensor.spec.encodings
    layout = layout_of(encoding, tensor.spec)
    kernels, ids = Kernels(layout), mx.zeros((16,), mx.uint32)
    kinds = {"uint8_t": mx.uint8, "float": mx.float32, "uint": mx.uint32}
    inputs = [mx.zeros((512,), kinds[kind]) for _, kind in layout.arrays]
    names, (_, first) = [each for each, _ in layout.arrays], layout.arrays[0]
    calls = {
        "rows": lambda ids, *arrays: kernels.rows(dict(zip(names, arrays)), ids, 512),
        "products": lambda ids, *arrays: kernels.products(dict(zip(names, arrays)), mx.zeros((16, 512)), ids, 16),
    }
    for kind, call in calls.items():
        path = tmp_path / f"{kind}.mlxfn"
        mx.export_function(str(path), call, ids, *inputs)
        text = exported_source(path.read_bytes())
        assert text.startswith(layout.header)
        assert all(f"const device {metal} " in text for metal in ("uint32_t* ids", f"{TYPES[first]}* {names[0]}"))
        command = [shim.compiler, "-std=c++17", "-w", "-fsyntax-only", "-x", "c++", "-"]
        done = subprocess.run(command, input=shim.prelude + text, text=True, capture_output=True)
        assert done.returncode == 0, done.stderr[:2000]


def exported_source(data: bytes) -> str:
    """The Metal source in an exported function, from our header on."""
    start = data.index(HELPERS.encode())
    (length,) = struct.unpack_from("<Q", data, start - 8)
    return data[start : start + length].decode()


def test_kernels_need_a_gpu():
    """Without a GPU the tensor is decoded instead."""
    if device.has_gpu():
        return
    tensor = loaded("ggml.q6_k", (4, 256), np.random.default_rng(0))
    assert tensor.plan("metal").chosen.mode == "fold"
    kernels = Kernels(layout_of(tensor.spec.encodings[0], tensor.spec))
    data, ids = mx.zeros((840,), mx.uint8), mx.zeros((4,), mx.uint32)
    with pytest.raises(RuntimeError, match="Metal"):
        kernels.rows({"data": data}, ids, 256)
