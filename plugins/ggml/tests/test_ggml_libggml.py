"""IQ1, IQ2 and IQ3 encoded by libggml: what it is called with, what is refused, and its bytes."""

from __future__ import annotations

import ctypes
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from squish_ggml import libggml

import squish_core as squish
from squish_core.api import BLOCK_TYPES, CodecError, MissingPluginError, TensorSpec

NEED_STATISTICS = ("iq1_s", "iq2_xxs", "iq2_xs")
RNG = np.random.default_rng(3)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A stand-in for ggml-python that records its calls and writes the number of the row."""
    codes = {block.code: block for block in BLOCK_TYPES.values()}
    calls: list[dict[str, Any]] = []

    def quantize(kind: int, source: Any, target: Any, start: int, rows: int, columns: int, weights: Any) -> int:
        block = codes[kind]
        width = columns // block.elements * block.nbytes
        out = np.ctypeslib.as_array(ctypes.cast(target, ctypes.POINTER(ctypes.c_uint8)), (rows, width))
        out[:] = np.arange(rows)[:, None]
        importance = None if weights is None else np.ctypeslib.as_array(weights, (columns,)).copy()
        values = np.ctypeslib.as_array(source, (rows, columns)).copy()
        calls.append({"kind": block.name, "start": start, "values": values, "importance": importance})
        return rows * width

    stand_in = SimpleNamespace(
        ggml_quantize_chunk=quantize,
        calls=calls,
        ggml_quantize_requires_imatrix=lambda kind: codes[kind].name in NEED_STATISTICS,
    )
    monkeypatch.setitem(sys.modules, "ggml", stand_in)
    return stand_in


def spec(*shape: int) -> TensorSpec:
    return TensorSpec(name="w", shape=shape, dtype="f32")


@pytest.mark.parametrize("name", libggml.NAMES)
def test_rows_and_squared_activations_go_to_libggml(name: str, library: SimpleNamespace) -> None:
    codec, values = squish.registry().codec_type(f"ggml.{name}"), RNG.normal(size=(2, 3, 512)).astype(np.float32)
    params = codec.params_for(spec(2, 3, 512), {"search": "activations"})
    assert codec.needs_activations(params)
    activations = RNG.random(512, np.float32)
    data = codec.from_params(params).encode(values, activations=activations)["data"]
    assert data.shape == (2, 3, 2 * BLOCK_TYPES[name].nbytes)
    np.testing.assert_array_equal(data.reshape(6, -1), np.arange(6)[:, None] + 0 * data.reshape(6, -1))
    (call,) = library.calls
    assert (call["kind"], call["start"]) == (name, 0)
    np.testing.assert_array_equal(call["values"], values.reshape(6, 512))
    np.testing.assert_array_equal(call["importance"], np.square(activations))


@pytest.mark.parametrize("name", libggml.NAMES)
def test_types_that_need_statistics_are_refused_without(name: str, library: SimpleNamespace) -> None:
    codec = squish.registry().codec_type(f"ggml.{name}")
    if name in NEED_STATISTICS:
        with pytest.raises(CodecError) as caught:
            codec.params_for(spec(4, 256), {})
        assert caught.value.code == "params"
        return
    codec.from_params(codec.params_for(spec(4, 256), {})).encode(np.zeros((4, 256), np.float32))
    assert library.calls[0]["importance"] is None


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e6])
def test_values_that_would_end_the_process_are_refused(value: float, library: SimpleNamespace) -> None:
    codec, values = squish.registry().codec_type("ggml.iq3_s"), np.zeros((2, 256), np.float32)
    values[1, 7] = value
    with pytest.raises(CodecError) as caught:
        codec.from_params({}).encode(values)
    assert caught.value.code == "range"
    assert not library.calls


def test_other_parameters_and_statistics_of_another_size_are_refused(library: SimpleNamespace) -> None:
    codec = squish.registry().codec_type("ggml.iq3_s")
    with pytest.raises(CodecError) as caught:
        codec.params_for(spec(4, 256), {"search": "mse"})
    assert caught.value.code == "params"
    with pytest.raises(CodecError) as caught:
        codec.from_params({"search": "activations"}).encode(
            np.zeros((2, 256), np.float32), activations=np.ones(3, np.float32)
        )
    assert caught.value.code == "encode"


def test_without_ggml_python_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ggml", None)
    with pytest.raises(MissingPluginError) as caught:
        squish.registry().codec_type("ggml.iq2_s").params_for(spec(4, 256), {})
    assert caught.value.code == "not-installed"
    assert caught.value.hint is not None
    assert "squish-ggml[libggml]" in caught.value.hint


def converted(folder: str, values: np.ndarray, activations: np.ndarray, kind: str, weighted: bool) -> dict[str, Any]:
    """Runs in the peer: the stored bytes of a converted GGUF, and those of `ggml_quantize_chunk`."""
    import ctypes

    import ggml
    import numpy as np

    import squish_core as squish

    squish.save(f"{folder}/in.safetensors", {"w": values})
    squish.save(f"{folder}/imatrix.safetensors", {"w": activations})
    rule = f"{kind}:search=activations" if weighted else kind
    statistics = f"{folder}/imatrix.safetensors" if weighted else None
    squish.convert(f"{folder}/in.safetensors", f"{folder}/out.gguf", encode={"w": rule}, activations=statistics)
    with squish.open(f"{folder}/out.gguf") as file:
        ours = np.array(file["w"].parts()["data"].numpy())
        decoded = file["w"].numpy()
    theirs, weights = np.zeros_like(ours), np.square(activations)
    pointer = ctypes.POINTER(ctypes.c_float)
    ggml.ggml_quantize_chunk(
        getattr(ggml, f"GGML_TYPE_{kind.upper()}"),
        values.ctypes.data_as(pointer),
        theirs.ctypes.data_as(ctypes.c_void_p),
        0,
        *values.shape,
        weights.ctypes.data_as(pointer) if weighted else None,
    )
    return {"ours": ours, "theirs": theirs, "decoded": decoded}


@pytest.mark.oracle
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", libggml.NAMES)
def test_bytes_are_those_of_libggml(kind: str, weighted: bool, tmp_path: Any) -> None:
    import oracles

    if kind in NEED_STATISTICS and not weighted:
        return  # refused, as above
    values = RNG.normal(size=(40, 768)).astype(np.float32)
    result = oracles.peer("squish-ggml").run(
        converted,
        folder=str(tmp_path),
        values=values,
        activations=RNG.random(768, np.float32),
        kind=kind,
        weighted=weighted,
    )
    np.testing.assert_array_equal(result["ours"], result["theirs"])
    most = {"iq1_s": 0.4, "iq1_m": 0.4}.get(kind, 0.25)
    assert np.square(result["decoded"] - values).sum() / np.square(values).sum() < most
