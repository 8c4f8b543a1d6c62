"""Quantizing what is quantized already needs to be asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toys
from squish_testing import expect_error

import squish_core as squish
from squish_core import api
from squish_core.errors import SquishError

VALUES = np.linspace(-1, 1, 48, dtype=np.float32).reshape(6, 8)
QUANTIZED = {"a": toys.rows(VALUES, "toy.shifted"), "b": VALUES, "c": toys.rows(VALUES, "toy.shifted")}


class Everything(api.Allocator):
    """Chooses the same codec for all matrices."""

    def choose(self, specs: Any, params: Any, values: Any, expand: Any, model: Any) -> Any:
        return {spec.name: expand("toy.rows") for spec in specs}


@pytest.fixture
def convert(tmp_path: Path) -> Any:
    def run(tensors: Any, encode: Any = None, **options: Any) -> Any:
        return squish.convert(
            toys.box(tensors), tmp_path / "out.box", encode=encode, registry=toys.registry(), **options
        )

    return run


def test_the_message_about_a_second_quantization_counts_the_tensors(convert: Any, tmp_path: Path) -> None:
    with expect_error(SquishError, code="requantize", tensor="a") as caught:
        convert(QUANTIZED, "toy.rows")
    assert "1 other tensor" in caught.value.message
    assert not (tmp_path / "out.box").exists()


def test_a_dry_run_refuses_it_too(convert: Any) -> None:
    with pytest.raises(SquishError) as caught:
        convert(QUANTIZED, ["b=toy.rows", "c=toy.rows"], dry_run=True)
    assert (caught.value.code, caught.value.tensor) == ("requantize", "c")


def test_it_is_done_when_it_is_allowed(convert: Any) -> None:
    report = convert(QUANTIZED, "toy.rows", requantize=True)
    assert [step.action for step in report.steps] == ["encode", "encode", "encode"]


@pytest.mark.parametrize(
    ("encode", "action"), [(None, "repack"), ("f32", "encode"), ("f16", "encode"), ("keep", "repack")]
)
def test_repacks_and_floats_need_no_permission(convert: Any, encode: str | None, action: str) -> None:
    report = convert({"a": QUANTIZED["a"]}, encode)
    assert [step.action for step in report.steps] == [action]


def test_float_tensors_are_quantized_without_permission(convert: Any) -> None:
    assert [step.action for step in convert({"b": VALUES}, "toy.rows").steps] == ["encode"]


def test_the_same_codec_again_is_a_copy(convert: Any) -> None:
    assert [step.action for step in convert({"a": toys.rows(VALUES)}, "toy.rows").steps] == ["copy"]


def test_allocators_obey(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toys, "Everything", Everything, raising=False)
    info = api.AllocatorInfo(id="toy.allocator", title="rows for all", factory="toys:Everything")
    registry = toys.registry(toys.plugin(squish_allocators=[info]))
    for allowed in (False, True):
        options: Any = {"encode": "toy.allocator", "registry": registry, "requantize": allowed, "dry_run": True}
        if allowed:
            assert squish.convert(toys.box(QUANTIZED), tmp_path / "out.box", **options).steps[0].action == "encode"
        else:
            with pytest.raises(SquishError) as caught:
                squish.convert(toys.box(QUANTIZED), tmp_path / "out.box", **options)
            assert (caught.value.code, caught.value.tensor) == ("requantize", "a")
