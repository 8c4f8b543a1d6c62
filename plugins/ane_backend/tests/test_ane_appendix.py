"""SQUIZD's Core ML appendix: written from a package, extracted, and run with Core ML if available."""

import io
import struct
import sys
import types
import zipfile

import numpy as np
import pytest
from ane_samples import FORMS
from squish_ane.ane import backend, runtime
from squish_ane.ane.runtime import Model
from squish_ane.coreml.archive import extract
from squish_testing import expect_error
from squish_testing.sources import memory_file

import squish_core as squish
from squish_core.api import Availability, CodecSpec, Encoding, FormatError, Part, SquishError, TensorSpec


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def package(file_of, tmp_path):
    path = tmp_path / "made.mlpackage"
    squish.convert(file_of(**{"layers.0.w0": (*FORMS["int4 blocks"], (64, 64))}), path)
    return path


@pytest.fixture
def squizd(package, tmp_path):
    values = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    spec = TensorSpec(name="layers.0.w0", shape=values.shape, dtype="f32")
    file, _ = memory_file(squish.registry(), {spec.name: (spec, CodecSpec("dense"), {"data": values})})
    path = tmp_path / "model.squizd"
    squish.convert(file, path, to=f"squizd:coreml={package}", encode="squizd.int4:group_size=32")
    return path


def test_a_package_round_trips_through_the_appendix(package, squizd, tmp_path):
    with squish.open(squizd) as file:
        extracted = extract(file, tmp_path / "out.mlpackage")
    assert contents(extracted) == contents(package)
    with squish.open(extracted) as one, squish.open(package) as other:
        np.testing.assert_array_equal(one["layers.0.w0"].numpy(), other["layers.0.w0"].numpy())


def test_a_file_without_a_package_is_refused(package, tmp_path):
    with squish.open(package) as file, expect_error(FormatError, code="missing"):
        extract(file, tmp_path / "out")


def holding(data):
    """An open file with these bytes as its package."""
    file, _ = memory_file(squish.registry(), {})
    part = Part(dtype="u8", shape=(len(data),), data=data)
    index = squish.api.Index(
        format="memory",
        version="",
        files=file.index.files,
        tensors={},
        whole=(Encoding(codec=CodecSpec("ane.mlpackage"), parts={"archive": part}),),
    )
    return squish.api.File(file.source, index, file.registry, file.limits)


def zipped(*names, link=False):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name in names:
            entry = zipfile.ZipInfo(name)
            entry.external_attr = (0o120777 if link else 0o100644) << 16
            archive.writestr(entry, b"x" * 100)
    return out.getvalue()


@pytest.mark.parametrize(
    ("data", "fields"),
    [
        (b"no zip", {"code": "zip"}),
        (zipped("a"), {"code": "zip", "expected": "Manifest.json", "found": 0}),
        (zipped("Manifest.json", "b/Manifest.json"), {"code": "zip", "expected": "Manifest.json", "found": 2}),
        (zipped("Manifest.json", "../a"), {"code": "path", "found": "'..'"}),
        (zipped("Manifest.json", "/a"), {"code": "path", "found": "'/a'"}),
        (zipped("Manifest.json", "a/./../b"), {"code": "path"}),
        (zipped("p/Manifest.json", "q/a"), {"code": "path", "found": "'q/a'"}),
        (zipped("Manifest.json", link=True), {"code": "link", "found": "'Manifest.json'"}),
        (zipped("Manifest.json").replace(b"x" * 100, b"y" * 100), {"code": "zip"}),
        (zipped("Manifest.json")[:-30], {"code": "zip"}),
    ],
)  # fmt: skip
def test_malicious_archives_write_nothing(tmp_path, data, fields):
    with expect_error(SquishError, **fields):
        extract(holding(data), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_an_entry_longer_than_declared_is_refused(tmp_path):
    """The central directory is authoritative; a size that is too small is a CRC error or a refusal."""
    data = bytearray(zipped("Manifest.json"))
    at = data.index(b"PK\1\2")
    data[at + 24 : at + 28] = struct.pack("<I", 10)
    with pytest.raises(SquishError):
        extract(holding(bytes(data)), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_running_needs_a_mac(package):
    if sys.platform != "darwin":
        with expect_error(SquishError, code="unavailable", hint="load()"):
            Model(package)


def feature(name, shape, kind):
    array = types.SimpleNamespace(shape=list(shape), dataType=kind)
    return types.SimpleNamespace(name=name, type=types.SimpleNamespace(multiArrayType=array))


@pytest.fixture
def loads(monkeypatch, tmp_path):
    """A fake of Core ML's runtime, which needs a Mac; records what it loads."""
    seen = []

    class MLModel:
        def __init__(self, path, compute_units):
            seen.append((path, contents(squish.api.open_source(path).path), compute_units))

        def get_spec(self):
            inputs, outputs = [feature("x", (1, 64), 65552)], [feature("y", (1, 64), 65568)]
            return types.SimpleNamespace(description=types.SimpleNamespace(input=inputs, output=outputs))

        def predict(self, inputs):
            if np.isnan(inputs["x"]).any():
                raise RuntimeError("NaN")
            return {"y": inputs["x"] * 2}

    fake = types.SimpleNamespace(
        models=types.SimpleNamespace(MLModel=MLModel), ComputeUnit=types.SimpleNamespace(CPU_AND_NE="ane")
    )
    monkeypatch.setitem(sys.modules, "coremltools", fake)
    for module in (backend, runtime):
        monkeypatch.setattr(module, "core_ml_availability", lambda: Availability(ok=True))
    monkeypatch.setenv("SQUISH_CACHE", str(tmp_path / "cache"))
    return seen


def test_the_runtime_loads_the_package_with_core_ml(loads, package):
    with Model(package) as model:
        assert loads == [(str(package), contents(package), "ane")]
        assert (model.inputs, model.outputs) == ({"x": ((1, 64), "f16")}, {"y": ((1, 64), "f32")})
        with pytest.raises(SquishError) as caught:
            model.predict({"x": np.full((1, 64), np.nan)})
        assert caught.value.code == "coreml"


def test_a_file_with_a_package_is_delegated(loads, package, squizd):
    x = np.ones((1, 64), np.float16)
    with squish.open(squizd) as file:
        assert file.plan().mode == "delegate"
        with file.load() as model:
            assert model.backend == "ane"
            np.testing.assert_array_equal(model.predict({"x": x})["y"], 2 * x)
        file.load().close()
    paths = {path for path, *_ in loads}
    assert [data for _, data, _ in loads] == [contents(package)] * 2
    assert len(paths) == 1  # extracted only once


def test_without_core_ml_the_tensors_run_instead(squizd):
    if sys.platform == "darwin":
        pytest.skip("Core ML is here")
    with squish.open(squizd) as file:
        assert file.plan().mode != "delegate"
        with pytest.raises(SquishError) as caught:
            file.load()
        assert (caught.value.code, caught.value.tensor) == ("no-chain", "the whole model")
        assert file["layers.0.w0"].load().dense().shape == (64, 64)


def test_the_message_about_a_whole_model_names_its_backend(squizd):
    if sys.platform == "darwin":
        pytest.skip("Core ML is here")
    with squish.open(squizd) as file:
        with pytest.raises(SquishError) as caught:
            file.load()
        assert "ane: Core ML needs macOS" in caught.value.message
        assert "ane: Core ML needs macOS" in str(file.plan())
