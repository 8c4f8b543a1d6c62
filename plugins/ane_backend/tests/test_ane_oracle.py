"""coremltools as the reference: it reads our packages and decodes to the same bits."""

import numpy as np
import oracles
import pytest
from ane_samples import FORMS, OLD, stored
from squish_codecs.api import Palette
from squish_codecs.palette.codec import nearest
from squish_testing.sources import memory_file

import squish_core as squish

pytestmark = pytest.mark.oracle


def decompressed(path):
    """Return the specification version and each linear layer's weight as float32; runs in the peer."""
    import logging
    import os

    os.environ["TQDM_DISABLE"] = "1"
    logging.disable(logging.CRITICAL)
    import coremltools as ct

    model = ct.models.MLModel(path, skip_model_load=True)
    decompressed_model = ct.optimize.coreml.decompress_weights(model)
    layers = [op for op in decompressed_model._mil_program.functions["main"].operations if op.op_type == "linear"]
    weights = [[str(op.weight.val.dtype), op.weight.val.astype(np.float32)] for op in layers]
    return [model.get_spec().specificationVersion, weights]


def build(folder):
    """Compress with coremltools and return the decoded weights; runs in the peer."""
    import logging
    import os

    os.environ["TQDM_DISABLE"] = "1"
    logging.disable(logging.CRITICAL)
    import coremltools as ct
    import coremltools.optimize.coreml as cto
    from coremltools.converters.mil import Builder
    from coremltools.converters.mil.mil import types

    values = np.random.default_rng(0).standard_normal((48, 128)).astype(np.float16)
    inputs = [Builder.TensorSpec(shape=(1, 128), dtype=types.fp16)]
    program = Builder.program(input_specs=inputs, opset_version=ct.target.iOS18)(
        lambda x: Builder.linear(x=x, weight=values, name="y")
    )
    model = ct.convert(
        program,
        source="milinternal",
        convert_to="mlprogram",
        minimum_deployment_target=ct.target.iOS18,
        skip_model_load=True,
    )

    def compressed(config, compress):
        return compress(model, cto.OptimizationConfig(global_config=config))

    palette, linear = cto.OpPalettizerConfig, cto.OpLinearQuantizerConfig
    small = {"weight_threshold": 16}
    models = {
        "uniform4": compressed(palette(mode="uniform", nbits=4, **small), cto.palettize_weights),
        "uniform2": compressed(palette(mode="uniform", nbits=2, **small), cto.palettize_weights),
        "groups": compressed(
            palette(mode="uniform", nbits=4, granularity="per_grouped_channel", group_size=16, **small),
            cto.palettize_weights,
        ),
        "channel8": compressed(linear(mode="linear_symmetric", **small), cto.linear_quantize_weights),
        "zero8": compressed(linear(mode="linear", dtype="uint8", **small), cto.linear_quantize_weights),
        "block4": compressed(
            linear(mode="linear_symmetric", dtype="int4", granularity="per_block", block_size=32, **small),
            cto.linear_quantize_weights,
        ),
        "zero4": compressed(
            linear(mode="linear", dtype="uint4", granularity="per_block", block_size=32, **small),
            cto.linear_quantize_weights,
        ),
        "boxes4": compressed(
            linear(mode="linear_symmetric", dtype="int4", granularity="per_block", block_size=[4, 16], **small),
            cto.linear_quantize_weights,
        ),
        "columns4": compressed(
            linear(mode="linear", dtype="uint4", granularity="per_block", block_size=[0, 16], **small),
            cto.linear_quantize_weights,
        ),
        "channel_scales": compressed(
            palette(mode="uniform", nbits=4, enable_per_channel_scale=True, **small), cto.palettize_weights
        ),
    }
    pruned = compressed(cto.OpMagnitudePrunerConfig(target_sparsity=0.5, **small), cto.prune_weights)
    blocks = linear(mode="linear", dtype="uint4", granularity="per_block", block_size=32, **small)
    models["sparse4"] = cto.linear_quantize_weights(
        pruned, cto.OptimizationConfig(global_config=blocks), joint_compression=True
    )
    decoded = {}
    for name, each in models.items():
        each.save(f"{folder}/{name}.mlpackage")
        decompressed_model = cto.decompress_weights(each)
        (op,) = [op for op in decompressed_model._mil_program.functions["main"].operations if op.op_type == "linear"]
        decoded[name] = op.weight.val.astype(np.float32)
    return decoded


@pytest.mark.parametrize("target", ["iOS18", "iOS16"])
def test_coremltools_decodes_our_packages(tmp_path, target):
    chance, tensors = np.random.default_rng(0), {}
    for name, (codec, params) in FORMS.items():
        if target == "iOS18" or name in OLD:
            spec, codec_spec, parts = stored(codec, params, (64, 64), chance)
            tensors[name] = (squish.api.TensorSpec(name=name, shape=spec.shape, dtype="f32"), codec_spec, parts)
    file, _ = memory_file(squish.registry(), tensors)
    path = tmp_path / "ours.mlpackage"
    squish.convert(file, path, to=f"mlpackage:target={target}")
    version, layers = oracles.peer("coremltools").run(decompressed, path=str(path))
    assert version == {"iOS18": 9, "iOS16": 7}[target]
    assert len(layers) == len(tensors)
    for (name, tensor), (dtype, values) in zip(file.items(), layers):
        ours = tensor.numpy().astype(dtype).astype(np.float32)
        assert ours.tobytes() == np.asarray(values).tobytes(), name


@pytest.mark.peers
def test_packages_of_coremltools_decode(tmp_path):
    decoded = oracles.peer("coremltools").run(build, folder=str(tmp_path))
    for name, values in decoded.items():
        with squish.open(tmp_path / f"{name}.mlpackage") as file:
            (tensor,) = (each for each in file.values() if len(each.shape) == 2)
            assert tensor.codec in ("affine", "boxes", "palette")
            assert tensor.numpy().astype(np.float16).astype(np.float32).tobytes() == values.tobytes(), name


def fitted(values, bits):
    """Return coremltools' codebook, whose 1-D k-means is exact; runs in the peer."""
    import logging

    logging.disable(logging.CRITICAL)
    from coremltools.optimize.coreml._quantization_passes import palettize_weights

    palettized = palettize_weights.blockwise_compress(values.astype(np.float16), "KMEANS", bits, block_sizes=[0, 0])
    return np.sort(np.asarray(palettized.lut, np.float32).reshape(-1))


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("kind", ["standard_normal", "laplace"])
def test_palettes_are_near_optimal(kind, bits):
    values = getattr(np.random.default_rng(0), kind)(size=(512, 512)).astype(np.float32)
    ours = Palette.from_params({"bits": bits, "axis": "flat", "codebook_dtype": "f16"}).encode(values)["codebook"]
    theirs = oracles.peer("coremltools").run(fitted, values=values, bits=bits)
    error = [np.square(values - book[nearest(book, values)].astype(float)).mean() for book in (ours, theirs)]
    assert error[0] <= 1.03 * error[1]
