"""The backend in the resolver: plans by device; whole packages are delegated, or refused with a reason."""

import sys

import numpy as np
import pytest
from squish_ane.ane.backend import Ane

import squish_core as squish
from squish_core.api import CodecSpec, Encoding, Request, SquishError, TensorSpec
from squish_core.testing import BackendSuite
from squish_core.testing.sources import memory_file

MATRIX = np.random.default_rng(0).standard_normal((64, 128), np.float32)


class TestAne(BackendSuite):
    backend = "ane"


def tensor(codec_id, **params):
    codec, spec = squish.registry().codec(codec_id), TensorSpec(name="w", shape=MATRIX.shape, dtype="f32")
    if codec_id == "palette":
        parts = {
            role: np.zeros(shape, squish.api.dtypes.to_numpy(dtype))
            for role, (dtype, shape) in codec.parts(spec, params).items()
        }
    else:
        params = codec.fit_params(lambda: iter([MATRIX]), spec, params)
        parts = codec.encode(MATRIX, params)
    file, _ = memory_file(squish.registry(), {"w": (spec, CodecSpec(codec_id, params), parts)})
    return file["w"]


@pytest.mark.parametrize(
    ("codec", "params", "device", "mode", "moved", "reason"),
    [
        ("affine", {"bits": 8, "scale_dtype": "f16"}, "M1", "fold", 16384, "dequantizes"),
        ("affine", {"bits": 8, "scale_dtype": "f16"}, "M2", "stream", 8192 + 128, "measured"),
        ("affine", {"bits": 8, "group_size": 32}, "M2", "fold", 16384, "0.985x"),
        ("affine", {"bits": 8, "group_size": 32}, "M3", "stream", 8192 + 512, "predicted"),
        ("affine", {"bits": 4, "group_size": 32}, "M5", "fold", 16384, "only a palette path"),
        ("palette", {"bits": 4, "codebook_dtype": "f16"}, "M1", "stream", 4096 + 32, "2.37x"),
        ("palette", {"bits": 4, "codebook_size": 2048}, "M2", "stream", 4096 + 128, "stated"),
        ("palette", {"bits": 5}, "M1", "fold", 16384, "decoded first"),
        ("dense", {"dtype": "f32"}, "M1", "fold", 16384, "float16"),
        ("bitmask", {"dtype": "f16", "kept": "run", "sparsity": 0.63}, "M1", "stream", 1024 + 2 * 64 * 47, "1.55"),
        ("bitmask", {"dtype": "f16", "kept": "run", "bits": 4, "sparsity": 0.5}, "M3", "stream", 1024 + 2048 + 32,
         "stated"),
        ("bitmask", {"dtype": "i8", "scale": "f16", "kept": "run"}, "M5", "fold", 16384, "does not cover"),
        ("ggml.q8_0", {}, "M1", "fold", 16384, "measured"),
        ("ggml.q8_0", {}, "M3", "stream", 8192 + 512, "predicted"),
        ("ggml.q4_0", {}, "M5", "fold", 16384, "only a palette path"),
        ("mx", {}, "M1", "fold", 16384, "decoded first"),
    ],
)  # fmt: skip
def test_a_plan_gives_the_mode_and_the_bytes_moved(codec, params, device, mode, moved, reason):
    chosen = tensor(codec, **params).plan(f"ane:device={device}").chosen
    assert (chosen.mode, chosen.cost.moved) == (mode, moved)
    assert reason in chosen.storage


@pytest.mark.parametrize(
    ("codec", "params"),
    [("palette", {"bits": 4, "codebook_size": 2048}), ("palette", {"bits": 6}),
     ("affine", {"bits": 8, "offset": "zero_point"})],
)  # fmt: skip
def test_forms_illegal_on_h13_are_refused_with_rule_and_table(codec, params):
    with pytest.raises(SquishError, match=r"H13.*table 25\.5"):
        tensor(codec, **params).plan("ane:device=M1")


def test_a_refusal_without_a_next_step_is_a_sentence():
    spec = TensorSpec(name="w", shape=(3, 3), dtype="f32")
    encoding = Encoding(codec=CodecSpec("palette", {"bits": 4, "vector": 2, "axis": "flat"}))
    refused = (
        Ane()
        .configured({"device": "M1"})
        .offer(Request(spec=spec, encoding=encoding, codec=squish.registry().codec(encoding.codec)))
    )
    assert refused.why == "the vectors do not divide the elements (expected a multiple of 2, found 9)"


@pytest.mark.parametrize("bits", [1, 2])
@pytest.mark.parametrize("device", ["M1", "M5"])
def test_small_palettes_are_rejected_on_the_general_path(bits, device):
    with pytest.raises(SquishError, match=r"rejected on the general path.*4-bit palette"):
        tensor("palette", bits=bits, codebook_dtype="f16").plan(f"ane:device={device}")


@pytest.mark.parametrize(("codec", "params"), [("affine", {"bits": 8}), ("palette", {"bits": 4}), ("dense", {})])
def test_an_empty_tensor_is_planned(codec, params):
    spec = TensorSpec(name="w", shape=(3, 0), dtype="f32")
    parts = {
        role: np.zeros(shape, squish.api.dtypes.to_numpy(dtype))
        for role, (dtype, shape) in squish.registry().codec(codec).parts(spec, params).items()
    }
    file, _ = memory_file(squish.registry(), {"w": (spec, CodecSpec(codec, params), parts)})
    assert file["w"].plan("ane:device=M2").chosen.cost.moved < 100


def test_a_device_plan_cannot_run():
    with pytest.raises(SquishError):
        tensor("affine", bits=8).load("ane:device=M2")


@pytest.mark.parametrize(
    ("options", "mode"),
    [
        ("stride=1", "stream"), ("stride=2", "fold"), ("dilation=2", "fold"), ("overlapping=true", "fold"),
        ("mutable=true", "fold"), ("mutable=false", "stream"),
    ],
)  # fmt: skip
def test_the_consumer_affects_the_mode(options, mode):
    chosen = tensor("palette", bits=4, codebook_dtype="f16").plan(f"ane:device=M1,{options}").chosen
    assert chosen.mode == mode
    assert ("so the weight is folded" in chosen.storage) == (mode == "fold")


@pytest.mark.parametrize(
    "options", ["device=A17", "chip=M1", "device=M1,cores=4", "stride=2", "device=M1,stride=0", "device=M1,mutable=2"]
)
def test_invalid_options_are_refused(options):
    with pytest.raises(SquishError):
        tensor("affine", bits=8).plan(f"ane:{options}")


def test_without_core_ml_an_appendix_is_refused_and_the_next_path_is_used():
    chain = squish.registry().resolve(container="squizd", flags={"ANE_COREML", "INT4"})
    if sys.platform == "darwin":
        return
    assert chain.chosen.encoding.label == "INT4"
    reasons = {refused.backend: refused.why for refused in chain.refused}
    assert "macOS" in reasons["ane"]
    assert "whole model" in reasons["numpy"]


def test_with_core_ml_the_appendix_is_delegated(monkeypatch):
    from squish_core.api import Availability

    monkeypatch.setattr(Ane, "probe", lambda self: Availability(ok=True, device="Neural Engine"))
    chain = squish.registry().resolve(container="squizd", flags={"ANE_COREML", "INT4"})
    assert (chain.chosen.backend, chain.chosen.mode) == ("ane", "delegate")
    assert chain.chosen.encoding.label == "ANE_COREML"
