"""Plans of conversions: plain data, made from headers, carried out later or elsewhere."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toys
from attrs import fields, has
from squish_convert.compare.metrics import Distance
from squish_convert.execute import execute
from squish_convert.plan import ConversionPlan, plan_conversion
from squish_convert.step import ConversionObserver
from squish_testing.sources import CountingSource, memory_file, open_source

import squish_core as squish
from squish_core.api import CodecError, CodecSpec, TensorSpec
from squish_core.errors import FormatError, SquishError
from squish_core.file import File
from squish_core.limits import DEFAULT

VALUES = np.random.default_rng(0).standard_normal((6, 10)).astype(np.float32)
TENSORS = {
    "a.weight": VALUES, "b.weight": VALUES + 1, "norm": VALUES[0], "ids": np.arange(4, dtype="<i4"),
    "q": toys.rows(VALUES), "s": toys.rows(VALUES, "toy.shifted"),
}  # fmt: skip
RULES = [None, "a.*=toy.rows", {"a.*": "toy.rows", "b.*": "f16"}]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A box of tensors that are copied, repacked and encoded."""
    path = tmp_path / "model.box"
    path.write_bytes(toys.box(TENSORS, {"k": 1}, {"t": b"asset"}))
    return path


def open_box(path: Path) -> File:
    return squish.open(path, registry=toys.registry())


def not_plain(value: Any, place: str = "plan") -> list[str]:
    """Where something is neither a value nor a collection nor a frozen class of them."""
    if has(type(value)):
        frozen = type(value).__setattr__ is not object.__setattr__
        inner = [item for f in fields(type(value)) for item in not_plain(getattr(value, f.name), f"{place}.{f.name}")]
        return inner if frozen else [place, *inner]
    if isinstance(value, Mapping):
        return [item for key, each in value.items() for item in not_plain(each, f"{place}[{key!r}]")]
    if isinstance(value, (tuple, list)):
        return [item for number, each in enumerate(value) for item in not_plain(each, f"{place}[{number}]")]
    return [] if isinstance(value, (str, int, float, bool, bytes, type(None))) else [place]


@pytest.mark.parametrize("encode", RULES)
def test_a_plan_is_plain_data_that_pickles(source: Path, encode: Any) -> None:
    with open_box(source) as file:
        plan = plan_conversion(file, source.with_name("out.box"), encode=encode)
    assert not_plain(plan) == []
    copy = pickle.loads(pickle.dumps(plan))
    assert copy == plan
    with pytest.raises(AttributeError):
        copy.format = "other"
    assert (plan.format, plan.metadata, plan.assets, plan.dropped) == ("toy.box", ("k",), ("t",), ())


@pytest.mark.parametrize("encode", RULES)
def test_a_plan_that_travelled_writes_the_same_bytes_as_convert(source: Path, encode: Any, tmp_path: Path) -> None:
    registry = toys.registry()
    report = squish.convert(source, tmp_path / "one.box", encode=encode, registry=registry)
    with open_box(source) as file:
        sent = pickle.dumps(plan_conversion(file, tmp_path / "two.box", encode=encode))
    with open_box(source) as file:
        executed = execute(pickle.loads(sent), file, tmp_path / "two.box")
    assert (tmp_path / "two.box").read_bytes() == (tmp_path / "one.box").read_bytes()
    assert executed.steps == report.steps
    assert [step.quality and step.quality.error for step in executed.steps] == [
        step.quality and step.quality.error for step in report.steps
    ]


def test_a_dry_run_is_the_plan_alone(source: Path, tmp_path: Path) -> None:
    with open_box(source) as file:
        plan = plan_conversion(file, tmp_path / "out.box", encode="a.*=toy.rows")
        report = squish.convert(file, tmp_path / "out.box", encode="a.*=toy.rows", dry_run=True)
    assert report == plan.report()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.box"]


class Journal(ConversionObserver):
    """Writes down what an observer learns."""

    def __init__(self) -> None:
        self.tensors: list[str] = []
        self.size = 0
        self.qualities: dict[str, tuple[Distance, int]] = {}

    def tensor_started(self, name: str) -> None:
        self.tensors.append(name)

    def bytes_written(self, count: int) -> None:
        self.size += count

    def quality(self, name: str, distance: Distance, clipped: int) -> None:
        self.qualities[name] = distance, clipped


def test_an_observer_learns_tensors_bytes_and_quality(source: Path, tmp_path: Path) -> None:
    journal = Journal()
    with open_box(source) as file:
        plan = plan_conversion(file, tmp_path / "out.box", encode="a.*=toy.rows")
        report = execute(plan, file, tmp_path / "out.box", journal)
    assert list(dict.fromkeys(journal.tensors)) == [step.name for step in report.steps]
    assert journal.size == report.size == (tmp_path / "out.box").stat().st_size
    (step,) = (step for step in report.steps if step.quality)
    assert journal.qualities == {step.name: (step.quality, step.clipped)}


@pytest.mark.parametrize("change", ["renamed", "moved", "encoded otherwise"])
def test_a_plan_refuses_another_source(source: Path, tmp_path: Path, change: str) -> None:
    with open_box(source) as file:
        plan = plan_conversion(file, tmp_path / "out.box")
    other = {
        "renamed": {**TENSORS, "c.weight": VALUES},
        "moved": {"first": VALUES, **TENSORS},
        "encoded otherwise": {**TENSORS, "a.weight": toys.rows(VALUES)},
    }[change]
    if change == "renamed":
        del other["a.weight"]
    source.write_bytes(toys.box(other, {"k": 1}, {"t": b"asset"}))
    with open_box(source) as file, pytest.raises(FormatError) as error:
        execute(plan, file, tmp_path / "out.box")
    assert (error.value.code, error.value.tensor) == ("changed", "a.weight")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.box"]


def counted(path: Path) -> tuple[File, CountingSource]:
    """An open file whose reads are counted from now on."""
    file = open_box(path)
    source = CountingSource(open_source(path))
    return File(source, file.index, file.registry, DEFAULT), source


def bytes_of(file: File, source: CountingSource, name: str) -> int:
    """Bytes of a tensor's parts that were read."""
    places = [segment for part in file.index.tensors[name].encodings[0].parts.values() for segment in part.segments]
    return sum(
        max(0, min(offset + length, place.offset + place.length) - max(offset, place.offset))
        for _, offset, length in source.log
        for place in places
    )


def test_planning_reads_the_codes_that_are_repacked_and_nothing_else(source: Path, tmp_path: Path) -> None:
    file, counting = counted(source)
    plan_conversion(file, tmp_path / "out.box", encode="a.*=toy.rows")
    read = {name: bytes_of(file, counting, name) for name in file}
    assert read.pop("s") >= file["s"].nbytes
    assert set(read.values()) == {0}


def finite_scales(codec: Any, parts: Any, spec: TensorSpec) -> None:
    """`Codec.check_parts` of rows whose scales must be finite."""
    if not np.isfinite(parts["scale"][...]).all():
        raise CodecError("a scale is not finite", part="scale", code="scale")


def test_damage_that_a_copy_would_pass_on_stops_execution_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = toys.registry()
    monkeypatch.setattr(registry.codec_type("toy.rows"), "check_parts", finite_scales)
    codec, shape, parts = toys.rows(VALUES)
    damaged = {**parts, "scale": np.full_like(parts["scale"], np.nan)}
    spec = TensorSpec(name="w", shape=shape, dtype="f32")
    file, _ = memory_file(registry, {"w": (spec, CodecSpec(codec), damaged)})
    plan = plan_conversion(file, tmp_path / "out.box")
    assert [step.action for step in plan.steps] == ["copy"]
    with pytest.raises(SquishError) as error:
        execute(plan, file, tmp_path / "out.box")
    assert (error.value.code, error.value.tensor, error.value.part) == ("scale", "w", "scale")
    assert not list(tmp_path.iterdir())


MODELS = {
    "out.safetensors": (None, None), "out.gguf": (None, "q8_0"), "out.zt": ("ztensor:encoding=zstd", "f16"),
    "out": ("npydir", "int4"), "uqff": ("uqff", "q4_0"), "out.gguf.zst": (None, "q4_k"),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_plans_of_every_format_travel(name: str, tmp_path: Path) -> None:
    to, encode = MODELS[name]
    source = tmp_path / "model.safetensors"
    rng = np.random.default_rng(0)
    squish.save(
        source,
        {
            f"model.layers.{number}.mlp.up_proj.weight": rng.standard_normal((64, 256), np.float32)
            for number in range(2)
        },
    )
    squish.convert(source, tmp_path / f"direct-{name}", to, encode)
    with squish.open(source) as file:
        plan = plan_conversion(file, tmp_path / f"planned-{name}", to, encode)
        assert not_plain(plan) == []
        sent = pickle.dumps(plan)
    with squish.open(source) as file:
        plan = pickle.loads(sent)
        assert isinstance(plan, ConversionPlan)
        execute(plan, file, tmp_path / f"planned-{name}")
    assert content(tmp_path / f"planned-{name}") == content(tmp_path / f"direct-{name}")


def content(target: Path) -> dict[str, bytes]:
    """Files of a target."""
    files = [target] if target.is_file() else sorted(path for path in target.rglob("*") if path.is_file())
    return {str(path.relative_to(target)): path.read_bytes() for path in files}
