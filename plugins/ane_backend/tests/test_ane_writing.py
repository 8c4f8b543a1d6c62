"""Writing packages: equal codes, predicted sizes, bounded memory, and refusals with reasons."""

import time
import tracemalloc
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from ane_samples import FORMS, OLD
from squish_ane.coreml.program import read_program
from squish_ane.coreml.writer import draft
from squish_testing import expect_error
from squish_testing.sources import memory_file

import squish_core as squish
from squish_core.api import DENSE, CodecSpec, Encoding, Limits, Part, SquishError, TensorSpec


def written(file, tmp_path, target="iOS18", **options):
    path = tmp_path / "out.mlpackage"
    return squish.convert(file, path, to=f"mlpackage:target={target}", **options), path


def size_of(path):
    return sum(each.stat().st_size for each in path.rglob("*") if each.is_file())


@pytest.mark.parametrize("target", ["iOS18", "iOS16"])
@pytest.mark.parametrize("name", FORMS)
def test_values_round_trip(file_of, tmp_path, name, target):
    file = file_of(w=(*FORMS[name], (64, 64)))
    if target == "iOS16" and name not in OLD:
        with expect_error(SquishError, code="refused", tensor="w", hint="encode="):
            written(file, tmp_path, target)
        return
    report, path = written(file, tmp_path, target)
    assert report.steps[0].action in ("copy", "repack")
    assert report.size == size_of(path)
    with squish.open(path) as again:
        assert list(again) == ["w"]
        np.testing.assert_array_equal(again["w"].numpy(), file["w"].numpy())
        assert squish.verify(path).ok


def test_squizd_int4_bytes_equal_the_blob(tmp_path):
    """SQUIZD's two's complement nibbles, low nibble first, are Core ML's Int4."""
    chance, codec = np.random.default_rng(1), CodecSpec("squizd.int4", {"group_size": 64})
    table = np.zeros((8 * 256 // 64, 4), np.uint32)
    table[:, 2] = chance.random(len(table), np.float32).view(np.uint32)
    codes = chance.integers(0, 256, 8 * 128, np.uint8)
    spec = TensorSpec(name="layers.0.w1", shape=(8, 256), dtype="f32")
    file, _ = memory_file(squish.registry(), {spec.name: (spec, codec, {"codes": codes, "table": table})})
    _, path = written(file, tmp_path)
    raw = (path / "Data/com.apple.CoreML/weights/weight.bin").read_bytes()
    assert raw[128 : 128 + len(codes)] == codes.tobytes()
    assert raw[68] == 8  # the code of Int4
    with squish.open(path) as again:
        np.testing.assert_array_equal(again[spec.name].numpy(), file[spec.name].numpy())


@pytest.mark.parametrize(("name", "nbytes"), [("q4_0", 18), ("q5_0", 22), ("q8_0", 34)])
def test_ggml_blocks_keep_their_codes(tmp_path, name, nbytes):
    """A scale per 32 codes is a Core ML block; centered zero points become signs."""
    chance, codec = np.random.default_rng(1), CodecSpec(f"ggml.{name}")
    blocks = chance.integers(0, 256, (16, 4, nbytes), np.uint8)
    blocks[..., :2] = chance.random((16, 4, 1)).astype("<f2").view(np.uint8)
    spec = TensorSpec(name="blk.0.ffn_up.weight", shape=(16, 128), dtype="f32")
    file, _ = memory_file(squish.registry(), {spec.name: (spec, codec, {"data": blocks.reshape(16, -1)})})
    report, path = written(file, tmp_path)
    assert report.steps[0].action == "repack"
    with squish.open(path) as again:
        assert again[spec.name].spec.encodings[0].codec.params["bits"] == (4 if name == "q4_0" else 8)
        np.testing.assert_array_equal(again[spec.name].numpy(), file[spec.name].numpy())


@pytest.mark.parametrize(("name", "worst"), [("sparse", 0), ("sparse_lut4", 0.06), ("sparse_int8", 0.008)])
def test_short_names_write_sparse_forms(file_of, tmp_path, name, worst):
    file = file_of(w=("dense", {}, (64, 64)))
    _, path = written(file, tmp_path, encode=name)
    source_values = file["w"].numpy()
    with squish.open(path) as again:
        values = again["w"].numpy()
    kept = values != 0
    assert (kept.sum(axis=1) == 32).all()
    assert (np.abs(values - source_values)[kept] <= worst * source_values[kept]).all()


def test_masks_may_span_panels(tmp_path):
    """The report's error is summed over panels; the count of values covers the whole tensor."""
    values = np.random.default_rng(0).standard_normal((1200, 2048), np.float32)
    spec = TensorSpec(name="w", shape=values.shape, dtype="f32")
    file, _ = memory_file(squish.registry(), {"w": (spec, CodecSpec("dense"), {"data": values})})
    report, path = written(file, tmp_path, encode="sparse")
    with squish.open(path) as again:
        decoded = again["w"].numpy().astype(float)
    error = np.square(decoded - values).sum() / np.square(values.astype(float)).sum()
    assert report.steps[0].quality.nmse == pytest.approx(error, rel=1e-3)


def test_tensors_keep_names_and_matrices_become_layers(file_of, tmp_path):
    """Tensors keep their names; matrices become layers, and layers of equal width share an input."""
    matrix = ("affine", {"bits": 8, "scale_dtype": "f16"})
    file = file_of(
        **{
            "model.layers.0.up": (*matrix, (48, 64)),
            "model.layers.0_up": (*matrix, (32, 64)),
            "0.norm": ("dense", {}, (16,)),
            "down": (*matrix, (64, 48)),
        }
    )
    _, path = written(file, tmp_path)
    program = read_program((path / "Data/com.apple.CoreML/model.mlmodel").read_bytes(), Limits())
    assert (program.version, program.opset) == (9, "CoreML8")
    layers = [operation for operation in program.operations if operation.type == "linear"]
    assert [(layer.inputs["x"], layer.outputs[0][1].shape) for layer in layers] == [
        ("x_64_f16", (1, 48)),
        ("x_64_f16", (1, 32)),
        ("x_48_f16", (1, 64)),
    ]
    results = [operation.outputs[0][0] for operation in program.operations]
    assert len(set(results)) == len(results)
    with squish.open(path) as again:
        assert list(again) == list(file)


def test_colliding_names_are_numbered(file_of, tmp_path):
    names = ["w.a", "w-a", "w_a", "w_a_1", "wäa"]
    file = file_of(**{name: ("dense", {}, (4,)) for name in names})
    _, path = written(file, tmp_path)
    program = read_program((path / "Data/com.apple.CoreML/model.mlmodel").read_bytes(), Limits())
    assert [operation.outputs[0][0] for operation in program.operations] == [
        "w_a",
        "w_a_1",
        "w_a_2",
        "w_a_1_1",
        "w_a_3",
    ]
    assert [operation.name for operation in program.operations] == names


def test_naming_twenty_thousand_tensors_is_linear():
    specs = [
        TensorSpec(
            name=f"model.layers.{number}." + "ä" * (number % 50),
            shape=(1,),
            dtype="f16",
            encodings=(Encoding(codec=DENSE, parts={"data": Part(dtype="f16", shape=(1,))}),),
        )
        for number in range(20_000)
    ]
    begun = time.monotonic()
    draft(specs, {}, "iOS18")
    assert time.monotonic() - begun < 30  # a hang guard: a quadratic search took minutes


@pytest.mark.parametrize("target", ["iOS18", "iOS16"])
@pytest.mark.parametrize("name", ["int8 channel", "uint8 zero points", "palette", "sparse", "dense"])
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (0, 32)])
def test_scalars_and_empty_tensors_are_dense_or_refused(file_of, tmp_path, name, target, shape):
    codec, params = FORMS[name]
    is_dense = name == "dense"
    params = params if is_dense or codec == "bitmask" else {**params, "axis": "flat"}
    file = file_of(w=(codec, params, shape))
    if is_dense:
        _, path = written(file, tmp_path, target)
        with squish.open(path) as again:
            assert again["w"].numpy().tobytes() == file["w"].numpy().tobytes()
            assert again["w"].shape == shape
        return
    with expect_error(SquishError, code="refused", tensor="w", hint="encode="):
        written(file, tmp_path, target)


def test_writing_is_deterministic(file_of, tmp_path):
    packages = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        _, path = written(file_of(w=(*FORMS["int4 blocks"], (64, 64))), tmp_path / name)
        packages.append({str(each.relative_to(path)): each.read_bytes() for each in path.rglob("*") if each.is_file()})
    assert packages[0] == packages[1]


@pytest.mark.parametrize(
    ("codec", "params", "reason"),
    [
        ("mx", {}, "does not support mx"),
        ("affine", {"bits": 4, "group_size": 32, "axis": -2}, "across rows"),
        ("affine", {"bits": 4, "group_size": 64, "axis": "flat"}, "are not blocks"),
        ("affine", {"bits": 4, "group_size": 32, "offset": "bias"}, "do not fit"),
        ("palette", {"bits": 4, "table": "nf4", "scale_dtype": "f16"}, "palette with scales"),
        ("palette", {"bits": 5}, "5-bit"),
        ("palette", {"bits": 4, "vector": 3, "vector_axis": -1}, "vectors of 3"),
        ("palette", {"bits": 4, "codebook_size": 32}, "runs of rows"),
    ],
)  # fmt: skip
def test_unsupported_codecs_are_refused_with_a_reason(file_of, tmp_path, codec, params, reason):
    with expect_error(SquishError, code="refused", tensor="w") as caught:
        written(file_of(w=(codec, params, (64, 96))), tmp_path)
    assert reason in caught.value.message
    assert not (tmp_path / "out.mlpackage").exists()


def test_bfloat16_is_refused_with_the_next_step(tmp_path):
    values = np.ones((4, 8), squish.api.dtypes.to_numpy("bf16"))
    spec = TensorSpec(name="w", shape=values.shape, dtype="bf16")
    file, _ = memory_file(squish.registry(), {"w": (spec, CodecSpec("dense"), {"data": values})})
    with expect_error(SquishError, code="refused", tensor="w", found="dense", hint="encode="):
        written(file, tmp_path)
    report, _ = written(file, tmp_path, encode="dense:dtype=f16")
    assert report.steps[0].target == "f16"


def test_an_unknown_target_is_refused(file_of, tmp_path):
    with expect_error(SquishError, code="option", expected="iOS18 or iOS16", found="'iOS12'"):
        written(file_of(w=(*FORMS["dense"], (4, 8))), tmp_path, "iOS12")


def test_weights_are_streamed(tmp_path):
    """Many layers are encoded in the memory of a few panels, not of the model."""
    chance, tensors = np.random.default_rng(0), {}
    for number in range(24):
        spec = TensorSpec(name=f"w{number}", shape=(1024, 1024), dtype="f32")
        tensors[spec.name] = (spec, CodecSpec("dense"), {"data": chance.standard_normal(spec.shape, np.float32)})
    file, _ = memory_file(squish.registry(), tensors)
    tracemalloc.start()
    try:
        written(file, tmp_path, encode="affine:bits=4,group_size=32,scale_dtype=f16")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 40 << 20  # the model is 96 MiB
    assert size_of(Path(tmp_path / "out.mlpackage")) < 24 * (1024 * 1024 * 5 // 8)


@pytest.mark.parametrize(
    ("name", "bytes_of_codes", "least"),
    [("int8", 64 * 64, 40), ("int4", 64 * 32, 18), ("lut8", 64 * 64, 40), ("lut4", 64 * 32, 20), ("lut2", 64 * 16, 9)],
)
def test_short_names_encode_with_the_expected_error(tmp_path, name, bytes_of_codes, least):
    """Signal-to-noise ratio in dB on normal values: about six per bit."""
    values = np.random.default_rng(3).standard_normal((64, 64)).astype(np.float32)
    spec = TensorSpec(name="w", shape=values.shape, dtype="f32")
    file, _ = memory_file(squish.registry(), {"w": (spec, CodecSpec("dense"), {"data": values})})
    _, path = written(file, tmp_path, encode=name)
    with squish.open(path) as again:
        noise = np.square(again["w"].numpy() - values).mean()
        assert 10 * np.log10(np.square(values).mean() / noise) > least
        (size,) = again["w"].spec.encodings[0].parts["data"].shape
        assert size == bytes_of_codes


@pytest.fixture
def bf16_model(tmp_path):
    pytest.importorskip("squish_safetensors")
    rng = np.random.default_rng(4)
    arrays = {
        "model.layers.0.mlp.up_proj.weight": rng.standard_normal((64, 32)),
        "model.layers.0.mlp.odd.weight": rng.standard_normal((6, 30)),
        "model.layers.0.input_layernorm.weight": rng.standard_normal(32),
        "scale": np.float32(0.5),
    }
    path = tmp_path / "model.safetensors"
    squish.save(path, {name: np.asarray(array).astype(ml_dtypes.bfloat16) for name, array in arrays.items()})
    return path


@pytest.mark.parametrize(
    ("encode", "codec", "half"),
    [
        ("lut4", "palette", ()), ("*=lut4", "palette", ()), ("int8", "affine", ()), ("int4", "affine", ("odd",)),
        ("int4:group_size=64", "affine", ("odd", "up_proj")), ("sparse", "bitmask", ()), ("f16", "dense", ()),
        ("f32", "dense", ()),
    ],
)  # fmt: skip
def test_what_a_rule_for_all_tensors_does_not_encode_becomes_f16_with_a_note(bf16_model, tmp_path, encode, codec, half):
    report = squish.convert(bf16_model, tmp_path / "out.mlpackage", encode=encode)
    with squish.open(bf16_model) as source, squish.open(tmp_path / "out.mlpackage") as file:
        assert set(file) == set(source)
        for name, tensor in file.items():
            is_half = len(tensor.shape) < 2 or any(f".{one}." in name for one in half)
            assert tensor.codec == ("dense" if is_half else codec)
            if is_half:
                dtype = "f32" if encode == "f32" else "f16"
                assert (tensor.dtype, tensor.numpy().astype("f4").tolist()) == (
                    dtype,
                    source[name].numpy().astype("f4").tolist(),
                )
    if codec != "dense":
        notes = {step.name: step.note for step in report.steps}
        assert notes["scale"] == "encoded as dense:dtype=f16 by the conventions of mlpackage"


@pytest.mark.parametrize("encode", [None, "*up_proj*=lut4"])
def test_without_a_rule_for_all_tensors_the_message_gives_advice_that_works(bf16_model, tmp_path, encode):
    with pytest.raises(squish.SquishError, match="--encode f16, before rules with patterns") as caught:
        squish.convert(bf16_model, tmp_path / "out.mlpackage", encode=encode)
    assert caught.value.code == "refused"
    squish.convert(bf16_model, tmp_path / "out.mlpackage", encode=["f16", *([encode] if encode else [])])
    with squish.open(tmp_path / "out.mlpackage") as file:
        assert file["model.layers.0.mlp.up_proj.weight"].codec == ("palette" if encode else "dense")


def test_integers_are_refused_with_a_reason_and_advice_that_leaves_them_out(tmp_path):
    arrays = {"ids": np.arange(4), "w": np.ones((4, 32), np.float32)}
    with pytest.raises(squish.SquishError, match="Core ML has no constants of i64") as caught:
        squish.convert(arrays, tmp_path / "out.mlpackage", encode="lut4")
    assert "only='PATTERN'" in caught.value.hint
    squish.convert(arrays, tmp_path / "out.mlpackage", encode="lut4", only=["w"])
