"""Makes `packages.zip` and `weights.npz` with coremltools 9.0: small packages, and the weights that it decodes.

pip install coremltools==9.0 && python make_golden.py
"""

import logging
import os
import tempfile
import zipfile
from pathlib import Path

import coremltools as ct
import numpy as np
from coremltools.converters.mil import Builder
from coremltools.converters.mil.mil import types

ROWS, COLUMNS = 16, 64
HERE = Path(__file__).parent
OLD, NEW = ct.target.iOS16, ct.target.iOS18


def as_type(values, name):
    return values.astype(types.nptype_from_builtin(getattr(types, name)))


def bits(codes, width):
    stream = (codes.reshape(-1, 1) >> np.arange(width)) & 1
    return np.packbits(stream.reshape(-1).astype(np.uint8), bitorder="little")


def weights(chance):
    """Name -> (target, function that makes the weight)."""
    shape = (ROWS, COLUMNS)

    def floats(*size):
        return chance.standard_normal(size).astype(np.float16)

    def codes(width, size=shape):
        return chance.integers(0, 1 << width, size).astype(np.uint8)

    def old_lut(width):
        return lambda: Builder.constexpr_lut_to_dense(
            indices=bits(codes(width), width), lut=floats(1 << width), shape=np.uint32(shape)
        )

    def lut(width, size=shape, groups=1, vector=1, axis=None):
        options = {} if axis is None else {"vector_axis": np.int32(axis)}
        return lambda: Builder.constexpr_lut_to_dense(
            indices=as_type(codes(width, size), f"uint{width}"), lut=floats(groups, 1, 1 << width, vector), **options
        )

    def blocks(dtype, low, high, scales, offset=False, size=shape):
        options = {}
        if offset:
            options["offset"] = as_type(chance.integers(low, high, scales), dtype)
        return lambda: Builder.constexpr_blockwise_shift_scale(
            data=as_type(chance.integers(low, high, size), dtype), scale=floats(*scales), **options
        )

    affine = Builder.constexpr_affine_dequantize
    kept = chance.random(shape) > 0.63
    sparse = {"nonzero_data": floats(int(kept.sum())), "mask": np.packbits(kept.reshape(-1), bitorder="little")}

    def joint():
        kept = as_type(chance.random(shape) > 0.5, "uint1")
        mask, values = Builder.constexpr_lut_to_sparse(
            indices_mask=kept,
            indices_nonzero_data=as_type(codes(4, (int(kept.sum()),)), "uint4"),
            lut=floats(1, 1, 16, 1),
        )
        return Builder.constexpr_sparse_to_dense(nonzero_data=values, mask=mask)

    def joint_int8():
        kept = chance.random(shape) > 0.5
        mask, values = Builder.constexpr_sparse_blockwise_shift_scale(
            data_mask=as_type(kept, "uint1"),
            scale=floats(ROWS, 1),
            nonzero_data=chance.integers(-128, 128, int(kept.sum())).astype(np.int8),
        )
        return Builder.constexpr_sparse_to_dense(nonzero_data=values, mask=mask)

    return {
        "dense": (OLD, lambda: floats(*shape)),
        "old_int8": (
            OLD,
            lambda: affine(
                quantized_data=chance.integers(-128, 128, shape).astype(np.int8),
                scale=floats(ROWS),
                axis=np.int32(0),
                zero_point=np.zeros(ROWS, np.int8),
            ),
        ),
        "old_uint8_tensor": (
            OLD,
            lambda: affine(quantized_data=codes(8), zero_point=np.uint8(128), scale=np.float16(0.01), axis=np.int32(0)),
        ),
        "old_uint8_zero_points": (
            OLD,
            lambda: affine(quantized_data=codes(8), scale=floats(ROWS), axis=np.int32(0), zero_point=codes(8, (ROWS,))),
        ),
        **{f"old_lut{width}": (OLD, old_lut(width)) for width in (1, 2, 4, 6, 8)},
        "old_sparse": (OLD, lambda: Builder.constexpr_sparse_to_dense(shape=np.uint32(shape), **sparse)),
        **{f"lut{width}": (NEW, lut(width)) for width in (1, 2, 3, 4, 6, 8)},
        "lut4_groups": (NEW, lut(4, groups=4)),
        "lut4_vectors": (NEW, lut(4, size=(ROWS // 2, COLUMNS), vector=2, axis=0)),
        "lut2_vectors_across": (NEW, lut(2, size=(ROWS, COLUMNS // 4), vector=4, axis=1)),
        "lut4_groups_of_vectors": (NEW, lut(4, size=(ROWS // 2, COLUMNS), groups=2, vector=2, axis=0)),
        "int4_blocks": (NEW, blocks("int4", -8, 8, (ROWS, 2))),
        "uint4_blocks_offset": (NEW, blocks("uint4", 0, 16, (ROWS, 2), offset=True)),
        "int4_odd": (NEW, blocks("int4", -8, 8, (15, 1), size=(15, 7))),
        "sparse": (
            NEW,
            lambda: Builder.constexpr_sparse_to_dense(nonzero_data=sparse["nonzero_data"], mask=as_type(kept, "uint1")),
        ),
        "joint": (NEW, joint),
        "sparse_int8": (NEW, joint_int8),
        "int8_channel": (NEW, blocks("int8", -128, 128, (ROWS, 1))),
        "int8_tensor": (NEW, blocks("int8", -128, 128, (1, 1))),
        "uint8_blocks_of_rows": (NEW, blocks("uint8", 0, 256, (4, 1), offset=True)),
    }


def layer(make):
    return lambda x: Builder.linear(x=x, weight=make(), name="y")


def main() -> None:
    logging.disable(logging.CRITICAL)
    decoded = {}
    with (
        tempfile.TemporaryDirectory() as work,
        zipfile.ZipFile(HERE / "packages.zip", "w", zipfile.ZIP_DEFLATED) as out,
    ):
        for name, (target, make) in weights(np.random.default_rng(0)).items():
            columns = 7 if name == "int4_odd" else COLUMNS
            inputs = [Builder.TensorSpec(shape=(1, columns), dtype=types.fp16)]
            program = Builder.program(input_specs=inputs, opset_version=target)(layer(make))
            model = ct.convert(
                program,
                source="milinternal",
                convert_to="mlprogram",
                minimum_deployment_target=target,
                skip_model_load=True,
            )
            folder = Path(work) / f"{name}.mlpackage"
            model.save(str(folder))
            decompressed = ct.optimize.coreml.decompress_weights(model) if name != "dense" else model
            (linear,) = (op for op in decompressed._mil_program.functions["main"].operations if op.op_type == "linear")
            decoded[name] = linear.weight.val
            for path in sorted(folder.rglob("*")):
                if path.is_file():
                    entry = zipfile.ZipInfo(str(path.relative_to(work)), (1980, 1, 1, 0, 0, 0))
                    out.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
    np.savez_compressed(HERE / "weights.npz", **decoded)


if __name__ == "__main__":
    os.environ.setdefault("TQDM_DISABLE", "1")
    main()
