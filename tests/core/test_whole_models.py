"""A file offered as a whole: the backend that takes it, the refusals of the others, and running it."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import toys

import squish_core as squish
from squish_core import api


class Twice:
    """The handle of a runtime that doubles its input."""

    def __init__(self) -> None:
        self.inputs = {"x": ((1, 4), "f32")}
        self.outputs = {"y": ((1, 4), "f32")}
        self.closed = 0

    def predict(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        if not np.isfinite(inputs["x"]).all():
            raise RuntimeError("NaN")
        return {"y": 2 * inputs["x"]}

    def close(self) -> None:
        self.closed += 1


class Runtime(api.Backend):
    """A stand-in for Core ML: a backend like any other, which takes whole packages alone."""

    id = "toy.runtime"
    whole = True
    ok = True
    handles: list[Twice]

    def probe(self) -> api.Availability:
        return api.Availability(ok=self.ok, reason="" if self.ok else "this is no Mac")

    def offer(self, request: api.Request) -> api.Offer | api.Refusal:
        encoding = request.encoding
        if encoding.codec.id != "toy.package":
            return api.Refusal(backend=self.id, encoding=encoding, code="whole", why="it runs whole packages")
        return api.Offer(backend=self.id, encoding=encoding, mode="delegate", ops=("linear",), storage="its own")

    def load_whole(self, chain: api.Chain, file: api.File) -> Twice:
        handle = Twice()
        self.handles.append(handle)
        return handle


class Elsewhere(Runtime):
    """The same on a machine that has not the runtime."""

    id = "toy.elsewhere"
    ok = False


def make(*backends: type[Runtime]) -> tuple[api.File, list[Twice]]:
    """A file with a tensor and a package, where these backends are installed."""
    handles: list[Twice] = []
    module = SimpleNamespace()
    infos = []
    for kind in backends:
        setattr(module, kind.__name__, type(kind.__name__, (kind,), {"handles": handles}))
        globals()[f"_{kind.__name__}"] = getattr(module, kind.__name__)
        infos.append(api.BackendInfo(id=kind.id, title=kind.id, factory=f"{__name__}:_{kind.__name__}"))
    package = api.CodecInfo(id="toy.package", title="a package", factory="toys:Rows", kind="whole")
    registry = toys.registry(toys.plugin(squish_backends=infos, squish_codecs=[package]))
    file = squish.open(toys.box({"w": toys.rows(np.ones((2, 4), np.float32))}), registry=registry)
    whole = api.Encoding(codec=api.CodecSpec("toy.package"), parts={}, label="PACKAGE")
    index = api.Index(format="toy.box", version="1", files=file.index.files, tensors=file.index.tensors, whole=(whole,))
    return api.File(file.source, index, registry, file.limits), handles


def test_a_backend_that_takes_the_whole_model_runs_it() -> None:
    file, handles = make(Runtime)
    plan = file.plan()
    assert plan.mode == "delegate"
    with file.load() as model:
        assert (model.backend, model.chain.chosen.mode) == ("toy.runtime", "delegate")
        assert (model.inputs, model.outputs) == ({"x": ((1, 4), "f32")}, {"y": ((1, 4), "f32")})
        x = np.arange(4, dtype=np.float32)[None]
        np.testing.assert_array_equal(model.predict({"x": x})["y"], 2 * x)
        np.testing.assert_array_equal(model.predict({"x": x.tolist()})["y"], 2 * x)
    assert [handle.closed for handle in handles] == [1]
    model.close()
    assert handles[0].closed == 1
    with pytest.raises(squish.ClosedError):
        model.predict({"x": x})


def test_other_machines_refuse_the_whole_model_with_a_reason_and_list_its_tensors() -> None:
    file, _ = make(Elsewhere)
    plan = file.plan()
    assert plan.mode == "fold"
    assert "this is no Mac" in plan.explain()
    with pytest.raises(squish.SquishError) as caught:
        file.load()
    assert caught.value.code == "no-chain"
    assert "whole" in caught.value.message


def test_a_file_of_tensors_alone_says_so() -> None:
    with squish.open(toys.box({"w": toys.rows(np.ones((2, 4), np.float32))}), registry=toys.registry()) as file:
        with pytest.raises(squish.SquishError) as caught:
            file.load()
        assert caught.value.code == "no-whole"
        with pytest.raises(KeyError, match="no draft head"):
            file.draft()


@pytest.mark.parametrize("inputs", [{}, {"z": np.zeros((1, 4))}, {"x": np.zeros((1, 5))}, {"x": [0.0]}])
def test_inputs_that_are_not_the_models_are_a_usage_error(inputs: dict[str, Any]) -> None:
    file, _ = make(Runtime)
    with file.load() as model, pytest.raises(squish.UsageError) as caught:
        model.predict(inputs)
    assert caught.value.code == "input"


def test_an_exception_of_the_runtime_is_a_typed_error() -> None:
    file, _ = make(Runtime)
    with file.load("toy.runtime") as model, pytest.raises(squish.SquishError) as caught:
        model.predict({"x": np.full((1, 4), np.nan)})
    assert caught.value.code == "plugin-bug"


def test_the_backend_of_the_documentation_runs_a_package() -> None:
    """Its offer lists no operation."""
    from whole_model_backend import Runtime as Documented

    assert toys.registry().find("backend", id="acme.runtime") == []
    info = api.BackendInfo(id="acme.runtime", title="", factory="whole_model_backend:Runtime")
    package = api.CodecInfo(id="acme.package", title="", factory="toys:Rows", kind="whole")
    registry = toys.registry(toys.plugin(squish_backends=[info], squish_codecs=[package]))
    whole = api.Encoding(codec=api.CodecSpec("acme.package"), parts={}, label="PACKAGE")
    file = squish.open(toys.box({"w": toys.rows(np.ones((2, 4), np.float32))}), registry=registry)
    index = api.Index(format="toy.box", version="1", files=file.index.files, tensors=file.index.tensors, whole=(whole,))
    with api.File(file.source, index, registry, file.limits).load() as model:
        assert model.chain.chosen.ops == ()
        assert [plugin.role for plugin in model.chain.plugins] == ["container", "codec", "backend"]
        assert model.predict({"x": np.ones((1, 4), np.float32)})["y"].tolist() == [[2, 2, 2, 2]]
    assert Documented.whole
