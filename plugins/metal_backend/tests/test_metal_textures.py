"""ASTC by a GPU's texture units: used where a known block decodes to its texels; Metal is a stand-in."""

import importlib.util
import sys

import metal_stand_in
import numpy as np
import pytest
from squish_metal import device, textures
from squish_testing import expect_error
from squish_testing.sources import memory_file

import squish_core as squish
from squish_core.api import Availability, CodecError, CodecSpec, TensorSpec

BY_GPU = "decoded once by the GPU's texture units"
BY_CPU = "decoded once by the CPU library"


@pytest.fixture
def install(monkeypatch, metal_on_cpu):
    """Install a stand-in for Metal, on a machine with a GPU."""
    monkeypatch.setattr(device, "probe", lambda: Availability(ok=True, device="a GPU"))

    def put(metal):
        monkeypatch.setitem(sys.modules, "Metal", metal)
        monkeypatch.setitem(sys.modules, "objc", metal and metal_stand_in.objc())
        textures.probe.cache_clear()
        return metal

    yield put
    textures.probe.cache_clear()


def astc_file(values, footprint="6x6", damage=None):
    """A file in memory with one ASTC tensor."""
    codec, spec = squish.registry().codec_type("astc"), TensorSpec(name="w", shape=values.shape, dtype="f32")
    params = codec.from_params(codec.params_for(spec, {"footprint": footprint})).fit_params(
        lambda: iter([values]), spec
    )
    blocks = codec.from_params(params).encode(values)["blocks"].copy()
    if damage is not None:
        blocks[damage] = 0xFF
    params = {key: value for key, value in params.items() if key != "quality"}
    return memory_file(squish.registry(), {"w": (spec, CodecSpec("astc", params), {"blocks": blocks})})[0]


def smooth(*shape):
    places = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    return (np.sin(places / 7) * 3 + np.cos(places / 31)).astype(np.float32)


@pytest.mark.parametrize("footprint", metal_stand_in.FOOTPRINTS)
@pytest.mark.parametrize("shape", [(29, 31), (3, 4, 26)])
def test_values_are_those_of_the_cpu_library(install, footprint, shape):
    install(metal_stand_in.Metal())
    tensor = astc_file(smooth(*shape), footprint)["w"]
    np.testing.assert_array_equal(textures.decode(textures.probe(), tensor.bound), tensor.numpy())


@pytest.mark.skipif(
    sys.platform != "darwin" or importlib.util.find_spec("Metal") is None, reason="needs macOS and PyObjC"
)
def test_a_mac_decodes_as_the_cpu_library():
    textures.probe.cache_clear()
    units = textures.probe()
    assert not isinstance(units, str), units
    for footprint in metal_stand_in.FOOTPRINTS:
        tensor = astc_file(smooth(29, 31), footprint)["w"]
        np.testing.assert_array_equal(textures.decode(units, tensor.bound), tensor.numpy())


def test_textures_are_tiles_of_complete_blocks(install, monkeypatch):
    metal = install(metal_stand_in.Metal())
    tensor = astc_file(smooth(50, 70), "8x5")["w"]
    units = textures.probe()
    monkeypatch.setattr(textures, "SIDE", 27)
    np.testing.assert_array_equal(textures.decode(units, tensor.bound), tensor.numpy())
    assert metal.textures[1:] == [(24, 25), (24, 25), (22, 25)] * 2


def test_the_registry_names_the_texture_units(install):
    install(metal_stand_in.Metal())
    chain = squish.registry().resolve(container="squizd", flags={"ASTC"})
    assert chain.chosen.backend == "metal"
    assert chain.chosen.storage.startswith(BY_GPU)
    tensor = astc_file(smooth(12, 18))["w"]
    weight = tensor.load()
    assert weight.backend == "metal"
    np.testing.assert_array_equal(weight.dense(), tensor.numpy().astype(np.float16))


@pytest.mark.parametrize("fault", ["no device", "no ASTC", "compiler", "run", "eight bits", "no PyObjC"])
def test_the_cpu_library_decodes_where_the_known_block_does_not(install, fault):
    install(None if fault == "no PyObjC" else metal_stand_in.Metal(fault))
    chain = squish.registry().resolve(container="squizd", flags={"ASTC"}, backend="metal")
    assert chain.chosen.storage.startswith(BY_CPU)
    assert isinstance(textures.probe(), str)
    assert textures.probe() in chain.chosen.storage
    tensor = astc_file(smooth(12, 18))["w"]
    np.testing.assert_array_equal(tensor.load("metal").dense(), tensor.numpy().astype(np.float16))


def test_missing_pyobjc_names_the_extra(install):
    install(None)
    assert "squish-metal[astc]" in textures.probe()


@pytest.mark.parametrize("magenta", [False, True])
def test_an_error_color_is_refused(install, magenta):
    install(metal_stand_in.Metal(magenta=magenta))
    bound = astc_file(smooth(8, 8), "4x4", damage=(1, 1))["w"].bound
    with expect_error(CodecError, code="P5", part="blocks"):
        textures.decode(textures.probe(), bound)


def test_without_a_gpu_nothing_is_probed(install):
    metal = install(metal_stand_in.Metal())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("squish_metal.device.has_gpu", lambda: False)
        squish.registry().resolve(container="squizd", flags={"ASTC"}, backend="metal")
    assert not metal.textures
