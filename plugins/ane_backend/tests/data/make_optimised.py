"""Makes `optimised.zip` and `optimised.npz` with coremltools 9.0: packages that its optimisers write (blocks that are
boxes, palettes with scales, palettes along columns, pruned weights in blocks), and the weights that it decodes.

pip install coremltools==9.0 scikit-learn && python make_optimised.py
"""

import logging
import os
import tempfile
import zipfile
from pathlib import Path

import coremltools as ct
import coremltools.optimize.coreml as cto
import numpy as np
from coremltools.converters.mil import Builder
from coremltools.converters.mil.mil import types

ROWS, COLUMNS = 16, 32
HERE = Path(__file__).parent
SMALL = {"weight_threshold": 16}


def program(make, shape):
    """A model of one layer: linear for a matrix, a convolution for a weight of rank 4."""
    input_shape = (1, shape[1]) if len(shape) == 2 else (1, shape[1], 8, 8)
    layer = Builder.linear if len(shape) == 2 else Builder.conv

    @Builder.program(
        input_specs=[Builder.TensorSpec(shape=input_shape, dtype=types.fp16)], opset_version=ct.target.iOS18
    )
    def built(x):
        return layer(x=x, weight=make(), name="y")

    return ct.convert(
        built,
        source="milinternal",
        convert_to="mlprogram",
        minimum_deployment_target=ct.target.iOS18,
        skip_model_load=True,
    )


def models(chance):
    """Name -> (model, shape of its weight)."""
    shape, kernel = (ROWS, COLUMNS), (8, 16, 3, 3)

    def floats(*size):
        return chance.standard_normal(size).astype(np.float16)

    def dense(size=shape):
        values = floats(*size)
        return program(lambda: values, size)

    def quantized(model, mode, dtype, *, block=0, granularity="per_block", joint=False):
        config = cto.OpLinearQuantizerConfig(mode=mode, dtype=dtype, granularity=granularity, block_size=block, **SMALL)
        return cto.linear_quantize_weights(model, cto.OptimizationConfig(global_config=config), joint_compression=joint)

    def palettized(model, *, joint=False, **more):
        config = cto.OpPalettizerConfig(mode="uniform", nbits=4, **more, **SMALL)
        return cto.palettize_weights(model, cto.OptimizationConfig(global_config=config), joint_compression=joint)

    def pruned():
        config = cto.OpMagnitudePrunerConfig(target_sparsity=0.5, **SMALL)
        return cto.prune_weights(dense(), cto.OptimizationConfig(global_config=config))

    def scaled_after():
        """As coremltools converts a torch model that was palettized with a scale for each channel."""
        indices = chance.integers(0, 16, shape).astype(types.nptype_from_builtin(types.uint4))
        weight = Builder.constexpr_lut_to_dense(indices=indices, lut=floats(4, 1, 16, 1))
        return Builder.constexpr_blockwise_shift_scale(data=weight, scale=floats(ROWS, 1))

    groups = {"granularity": "per_grouped_channel", "group_size": 4}
    whole, linear = "linear_symmetric", "linear"
    compressed = {
        "box_int4": quantized(dense(), whole, "int4", block=[4, 16]),
        "box_int4_columns": quantized(dense(), whole, "int4", block=[0, 16]),
        "box_uint4_offsets": quantized(dense(), linear, "uint4", block=[4, 16]),
        "box_int8_offsets": quantized(dense(), linear, "int8", block=[8, 4]),
        "box_int4_kernel": quantized(dense(kernel), linear, "int4", block=[4, 8, 0, 0]),
        "lut_channel_scale": palettized(dense(), enable_per_channel_scale=True),
        "lut_groups_channel_scale": palettized(dense(), enable_per_channel_scale=True, **groups),
        "lut_groups_of_columns": palettized(dense(), channel_axis=1, **groups),
        "lut_int8": quantized(palettized(dense()), whole, "int8", granularity="per_tensor", joint=True),
        "lut_groups_int8": quantized(
            palettized(dense(), **groups), linear, "int8", granularity="per_tensor", joint=True
        ),
        "lut_scaled_after": program(scaled_after, shape),
        "sparse_int4_blocks": quantized(pruned(), whole, "int4", block=16, joint=True),
        "sparse_uint4_blocks": quantized(pruned(), linear, "uint4", block=16, joint=True),
        "sparse_int4_boxes": quantized(pruned(), whole, "int4", block=[4, 16], joint=True),
        "sparse_int8_offsets": quantized(pruned(), linear, "int8", granularity="per_channel", joint=True),
        "sparse_int8_tensor": quantized(pruned(), whole, "int8", granularity="per_tensor", joint=True),
        "sparse_lut_groups": palettized(pruned(), joint=True, **groups),
        "sparse_lut_int8": quantized(
            palettized(pruned(), joint=True), whole, "int8", granularity="per_tensor", joint=True
        ),
    }
    return {name: (model, kernel if name == "box_int4_kernel" else shape) for name, model in compressed.items()}


def main() -> None:
    logging.disable(logging.CRITICAL)
    decoded = {}
    with (
        tempfile.TemporaryDirectory() as work,
        zipfile.ZipFile(HERE / "optimised.zip", "w", zipfile.ZIP_DEFLATED) as out,
    ):
        for name, (model, shape) in models(np.random.default_rng(0)).items():
            folder = Path(work) / f"{name}.mlpackage"
            model.save(str(folder))
            decompressed = cto.decompress_weights(model)
            operations = decompressed._mil_program.functions["main"].operations
            (layer,) = (op for op in operations if op.op_type in ("linear", "conv"))
            assert layer.weight.val.shape == shape, name
            decoded[name] = layer.weight.val
            for path in sorted(folder.rglob("*")):
                if path.is_file():
                    entry = zipfile.ZipInfo(str(path.relative_to(work)), (1980, 1, 1, 0, 0, 0))
                    out.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
    np.savez_compressed(HERE / "optimised.npz", **decoded)


if __name__ == "__main__":
    os.environ.setdefault("TQDM_DISABLE", "1")
    main()
