"""What the backend offers and refuses, where there is no device, no torch and no Triton."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from squish_testing.sources import memory_file

import squish_core as squish
from squish_core.api import CodecSpec, TensorSpec

pytestmark = pytest.mark.alone
PLAN = "cuda:device=sm_90"


@pytest.fixture
def file() -> squish.File:
    codec, spec = CodecSpec("affine", {"bits": 4, "group_size": 32}), TensorSpec(name="w", shape=(64, 256), dtype="f32")
    values = np.random.default_rng(0).standard_normal(spec.shape, np.float32)
    opened, _ = memory_file(squish.registry(), {"w": (spec, codec, squish.registry().codec(codec).encode(values))})
    return opened


def test_a_plan_needs_no_device(file: squish.File) -> None:
    offer = file["w"].plan(PLAN).chosen
    assert (offer.backend, offer.mode, offer.ops) == ("cuda", "stream", ("dense", "linear", "embed"))
    assert offer.cost.resident <= 1.05 * offer.cost.stored + 64
    assert (offer.cost.memory, offer.exact) == ("gpu", True)
    assert not file["w"].plan(f"{PLAN},activations=int8").chosen.exact


def test_a_plan_does_not_run(file: squish.File) -> None:
    with pytest.raises(squish.UsageError) as caught:
        file["w"].load(PLAN)
    assert caught.value.code == "backend"


def test_it_is_not_chosen_unless_it_is_named(file: squish.File) -> None:
    assert file["w"].plan().chosen.backend != "cuda"


@pytest.mark.parametrize("options", ["device=hopper", "activations=f16", "threads=2", "device=sm_9"])
def test_invalid_options_are_refused(file: squish.File, options: str) -> None:
    with pytest.raises(squish.UsageError) as caught:
        file["w"].plan(f"cuda:{options}")
    assert caught.value.code == "backend"


def test_an_old_device_is_refused_with_its_reason(file: squish.File) -> None:
    with pytest.raises(squish.SquishError) as caught:
        file["w"].plan("cuda:device=sm_75")
    assert "sm_80" in str(caught.value)


@pytest.mark.parametrize(
    ("codec", "reason"),
    [
        (CodecSpec("dense"), "not compressed"),
        (CodecSpec("affine", {"bits": 4, "axis": -2, "group_size": 8}), "down columns"),
        (CodecSpec("affine", {"bits": 4, "group_size": 2}), "groups of 2 columns"),
        (CodecSpec("affine", {"bits": 4, "axis": "flat", "group_size": 48}), "across rows"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_has_no_form_is_refused_with_its_reason(codec: CodecSpec, reason: str) -> None:
    random_parts = pytest.importorskip("random_parts", reason="it is in the tests of the whole repository")
    tensor = random_parts.random_tensor(codec, (8, 64))
    with pytest.raises(squish.SquishError) as caught:
        tensor.plan(PLAN)
    assert reason in str(caught.value)


def test_offers_import_neither_torch_nor_triton(file: squish.File) -> None:
    modules = set(sys.modules)
    file["w"].plan(PLAN)
    squish.registry().backend("cuda").probe()
    assert not {"torch", "triton"} & (set(sys.modules) - modules)


def test_without_triton_it_says_what_to_install() -> None:
    from squish_cuda import device

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device, "find_spec", lambda name: None)
        patch.setattr(device, "not_installed", device.not_installed.__wrapped__)  # not the answer of this process
        available = device.probe()
    assert not available.ok
    assert "cuda[triton]" in available.reason or "cuda_backend[triton]" in available.reason
