"""`zeros=count`: plans that read the values, count their zeros and plan the weight under a mask."""

import numpy as np
import pytest
from ane_samples import stored
from squish_testing import expect_error
from squish_testing.sources import memory_file

import squish_core as squish
from squish_core.api import BoundEncoding, CodecError, CodecSpec, SquishError, TensorSpec, UsageError, dtypes

COUNT = "ane:device=M1,zeros=count"
SPARSE = np.random.default_rng(0).standard_normal((64, 128)).astype(np.float32)
SPARSE[np.random.default_rng(1).random(SPARSE.shape) < 0.63] = 0
SPARSE[0, :4] = 0.0, -0.0, 1e-9, -1e-9  # float16 rounds the last two to zero
KEYS = ("zeros", "moved_of_dense", "cycles_of_dense", "sparse_stream")


def file_of(values, codec="dense", **params):
    """An open file of one tensor `w`, and the source that logs what is read."""
    registry = squish.registry()
    dtype = params.get("dtype", "f32")
    spec = TensorSpec(name="w", shape=values.shape, dtype=dtype)
    params = registry.codec(CodecSpec(codec, params)).fit_params(lambda: iter([values]), spec)
    panel = values.astype(dtypes.to_numpy(dtype)) if codec == "dense" else values
    parts = registry.codec(CodecSpec(codec, params)).encode(panel)
    return memory_file(registry, {"w": (spec, CodecSpec(codec, params), parts)})


@pytest.mark.parametrize("options", ["", ",stride=2"])
@pytest.mark.parametrize(
    ("codec", "params"),
    [("dense", {"dtype": dtype}) for dtype in ("f32", "f64", "f16", "bf16")]
    + [("ggml.q8_0", {}), ("affine", {"bits": 8})],
)
def test_the_counted_share_is_that_of_the_bitmask_encoding(codec, params, options, tmp_path):
    with file_of(SPARSE, codec, **params)[0] as file:
        counted = file["w"].plan(COUNT + options).chosen.facts
        share = np.count_nonzero(file["w"].numpy().astype(np.float32).astype(np.float16) == 0) / SPARSE.size
        squish.convert(file, tmp_path / "pruned.mlpackage", encode="bitmask", requantize=True)
    with squish.open(tmp_path / "pruned.mlpackage") as file:
        masked = file["w"].plan(f"ane:device=M1{options}").chosen.facts
    assert [counted[key] for key in KEYS] == [masked[key] for key in KEYS]
    assert counted["zeros"] == pytest.approx(share, abs=1e-12)
    assert counted["zeros"] > 0.6


def test_the_count_includes_every_value_that_float16_holds_as_zero():
    for dtype in ("f32", "f16"):
        facts = file_of(SPARSE, dtype=dtype)[0]["w"].plan(COUNT).chosen.facts
        assert facts["zeros"] == 1 - np.count_nonzero(SPARSE.astype(np.float16)) / SPARSE.size


@pytest.mark.parametrize(
    ("codec", "params", "options", "decision"),
    [
        ("dense", {"dtype": "f16"}, "", "eligible"),
        ("affine", {"bits": 8}, "", "eligible"),  # H13 folds int8, so a mask moves fewer bytes
        ("palette", {"bits": 4, "codebook_dtype": "f16"}, "", "excluded: 0.25 without a mask"),
        ("dense", {"dtype": "f16"}, ",stride=2", "excluded: the stride is not 1"),
    ],
)
def test_a_mask_is_eligible_where_it_streams_fewer_bytes(codec, params, options, decision):
    if codec == "palette":
        spec, encoding, parts = stored(codec, params, SPARSE.shape, np.random.default_rng(0))
        parts["codebook"][8:] = 0
        file = memory_file(squish.registry(), {"w": (spec, encoding, parts)})[0]
    else:
        file = file_of(SPARSE, codec, **params)[0]
    offer = file["w"].plan(COUNT + options).chosen
    assert offer.facts["sparse_stream"].startswith(decision)
    assert f"sparse stream {decision}" in offer.facts["summary"]
    assert "zeros not counted" not in offer.facts["summary"]
    assert file.plan(COUNT + options).to_dict()["tensors"][0]["chosen"]["facts"] == offer.facts


def test_a_plan_without_the_option_reads_nothing_and_says_so():
    file, source = file_of(SPARSE)
    facts = file["w"].plan("ane:device=M1").chosen.facts
    assert not source.log
    assert not set(KEYS) & set(facts)
    assert "zeros not counted (zeros=count reads the values)" in facts["summary"]
    file.plan(COUNT)
    assert source.log


def test_masks_and_empty_tensors_need_no_count():
    masked, source = file_of(SPARSE, "bitmask", dtype="f16", kept="run")
    plans = [masked["w"].plan(backend).chosen for backend in ("ane:device=M1", COUNT)]
    assert plans[0] == plans[1]
    assert not source.log
    empty = file_of(np.zeros((3, 0), np.float32))[0]
    assert all("zeros" not in empty["w"].plan(backend).chosen.facts["summary"] for backend in ("ane:device=M1", COUNT))


def test_values_are_read_in_panels(monkeypatch):
    wide = np.zeros((4096, 600), np.float16)
    wide[::3] = 1
    regions = []
    read = BoundEncoding.read
    monkeypatch.setattr(BoundEncoding, "read", lambda self, region: regions.append(region) or read(self, region))
    assert file_of(wide, dtype="f16")[0]["w"].plan(COUNT).chosen.facts["zeros"] == pytest.approx(2 / 3, abs=1e-3)
    assert len(regions) > 1
    assert all(4 * dtypes.count([part.stop - part.start for part in region]) <= 4 << 20 for region in regions)


def test_an_interrupt_stops_the_count(monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(BoundEncoding, "read", interrupt)
    with pytest.raises(KeyboardInterrupt):
        file_of(SPARSE)[0].plan(COUNT)


@pytest.mark.parametrize("plan", [lambda file: file.plan(COUNT), lambda file: file["w"].plan(COUNT)])
def test_damaged_values_raise_the_decoders_error(plan):
    params = {"dtype": "bf16", "kept": "run", "count": 3}
    spec = TensorSpec(name="w", shape=(4, 8), dtype="bf16")
    parts = {"data": np.zeros(3, dtypes.to_numpy("bf16")), "mask": np.full(4, 255, np.uint8)}
    file = memory_file(squish.registry(), {"w": (spec, CodecSpec("bitmask", params), parts)})[0]
    with expect_error(CodecError, code="mask", tensor="w"):
        plan(file)


@pytest.mark.parametrize("value", ["yes", "true", "1", "counts"])
def test_another_value_of_the_option_is_refused_with_the_choice(value):
    with expect_error(UsageError, code="backend") as caught:
        file_of(SPARSE)[0].plan(f"ane:device=M1,zeros={value}")
    assert "zeros=count" in caught.value.expected
    with expect_error(SquishError, code="backend") as caught:
        file_of(SPARSE)[0].plan(f"ane:zeros={value}")
    assert "ane:device=M1,zeros" in caught.value.expected


def test_a_query_without_a_file_has_no_values_to_count():
    with expect_error(UsageError, code="backend"):
        squish.registry().resolve(container="mlpackage", compression="constexpr_lut_to_dense", backend=COUNT)
