"""Stacked experts of UQFF 1.2: reports name the tensors in the file, diff compares experts with rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from attrs import evolve

import squish_core as squish
from squish_core.api import File, SquishError, UsageError

EXPERT, STACK = "model.layers.0.mlp.experts.{}.up_proj.weight", "model.layers.0.mlp.experts.up_proj.weight"
NORM = "model.norm.weight"
RULES = [None, "q8_0", "q4_0", "afq4", "mxfp4"]


@pytest.fixture
def model(tmp_path: Path, uqff: SimpleNamespace) -> Callable[..., Path]:
    """A file with `n` separate expert tensors and a norm."""

    def write(count: int = 3, name: str = "m.safetensors", rows: int = 32) -> Path:
        rng = np.random.default_rng(0)
        arrays = {EXPERT.format(expert): rng.normal(size=(rows, 64)).astype("<f4") for expert in range(count)}
        arrays[NORM] = np.ones(64, "<f4")
        raw = {key: ("F32", list(array.shape), array.tobytes()) for key, array in arrays.items()}
        (tmp_path / name).write_bytes(uqff.safetensors(raw))
        return tmp_path / name

    return write


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize("rule", RULES)
def test_the_report_names_the_tensors_in_the_file(
    model: Callable[..., Path], tmp_path: Path, rule: str | None, dry_run: bool
) -> None:
    source = model()
    report = squish.convert(source, tmp_path / "out", "uqff", rule, dry_run=dry_run)
    assert [(step.written, step.row) for step in report.steps] == [*((STACK, row) for row in range(3)), (NORM, None)]
    listed = report.to_dict()["tensors"]
    assert [(each["name"], each["written"], each["row"]) for each in listed[:1]] == [(EXPERT.format(0), STACK, 0)]
    if not dry_run:
        with squish.open(tmp_path / "out") as file:
            assert {step.written for step in report.steps} == set(file)


def test_experts_of_several_shapes_are_reported_under_their_own_names(
    model: Callable[..., Path], tmp_path: Path, uqff: SimpleNamespace
) -> None:
    arrays = {EXPERT.format(0): [32, 64], EXPERT.format(1): [16, 64]}
    raw = {name: ("F32", shape, bytes(4 * shape[0] * shape[1])) for name, shape in arrays.items()}
    (tmp_path / "m.safetensors").write_bytes(uqff.safetensors(raw))
    report = squish.convert(tmp_path / "m.safetensors", tmp_path / "out", "uqff")
    assert [(step.written, step.row) for step in report.steps] == [(name, None) for name in arrays]
    with squish.open(tmp_path / "out") as file:
        assert set(file) == set(arrays)


@pytest.mark.parametrize(("rule", "state"), [(rule, "differs" if rule else "bytes") for rule in RULES])
def test_diff_compares_each_expert_with_its_row(
    model: Callable[..., Path], tmp_path: Path, rule: str | None, state: str
) -> None:
    source, target = model(), tmp_path / "out"
    squish.convert(source, target, "uqff", rule)
    for a, b in ((source, target), (target, source)):
        states = {item.name: item.state for item in squish.diff(a, b).tensors}
        assert states == {**{EXPERT.format(expert): state for expert in range(3)}, NORM: "bytes"}
    (only,) = squish.diff(source, target, only=EXPERT.format(2)).tensors
    assert only.state == state


def test_diff_sees_which_row_differs(model: Callable[..., Path], tmp_path: Path) -> None:
    source, target = model(), tmp_path / "out"
    squish.convert(source, target, "uqff")
    content = bytearray(source.read_bytes())
    at = len(content) - 64 * 4 - 32 * 64 * 4 - 4  # the last value of expert 1
    content[at] ^= 1
    source.write_bytes(content)
    states = {item.name: item.state for item in squish.diff(source, target).tensors}
    assert [states[EXPERT.format(expert)] for expert in range(3)] == ["bytes", "differs", "bytes"]


def test_a_stack_with_unmatched_rows_is_compared_too(model: Callable[..., Path], tmp_path: Path) -> None:
    squish.convert(model(), tmp_path / "out", "uqff")
    fewer, more = model(2, "fewer.safetensors"), model(4, "more.safetensors")
    states = {item.name: item.state for item in squish.diff(fewer, tmp_path / "out").tensors}
    assert states == {EXPERT.format(0): "bytes", EXPERT.format(1): "bytes", NORM: "bytes", STACK: "only in b"}
    states = {item.name: item.state for item in squish.diff(more, tmp_path / "out").tensors}
    assert [states[EXPERT.format(expert)] for expert in range(4)] == [*["bytes"] * 3, "only in a"]
    assert STACK not in states


def test_experts_of_another_shape_than_the_rows_differ_in_shape(model: Callable[..., Path], tmp_path: Path) -> None:
    squish.convert(model(), tmp_path / "out", "uqff")
    states = {item.state for item in squish.diff(model(rows=16, name="o.safetensors"), tmp_path / "out").tensors}
    assert states == {"shape", "bytes"}


def test_a_stack_is_compared_with_a_stack(model: Callable[..., Path], tmp_path: Path) -> None:
    for name in ("one", "two"):
        squish.convert(model(), tmp_path / name, "uqff")
    difference = squish.diff(tmp_path / "one", tmp_path / "two")
    assert {item.name: item.state for item in difference.tensors} == {STACK: "bytes", NORM: "bytes"}
    with pytest.raises(UsageError) as caught:
        squish.diff(tmp_path / "one", tmp_path / "two", only=EXPERT.format(0))
    assert caught.value.code == "name"


@pytest.mark.parametrize("rule", RULES)
def test_delete_source_accepts_experts_in_rows(model: Callable[..., Path], tmp_path: Path, rule: str | None) -> None:
    source = model()
    report = squish.convert(source, tmp_path / "out", "uqff", rule, delete_source=True)
    assert report.deleted
    assert not source.exists()


def test_delete_source_keeps_the_source_if_a_row_is_damaged(
    model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from squish_convert import convert as conversion

    source, delete = model(), conversion.delete

    def damage_and_delete(*args: object) -> None:
        path = tmp_path / "out" / "model-0.uqff"
        content = bytearray(path.read_bytes())
        at = content.index(source.read_bytes()[-64 * 4 - 32 : -64 * 4])  # in expert 2
        content[at] ^= 1
        path.write_bytes(content)
        delete(*args)

    monkeypatch.setattr(conversion, "delete", damage_and_delete)
    with pytest.raises(SquishError) as caught:
        squish.convert(source, tmp_path / "out", "uqff", delete_source=True)
    assert caught.value.code == "delete"
    assert source.exists()


def test_a_stack_in_both_files_is_compared_besides_its_rows(model: Callable[..., Path], tmp_path: Path) -> None:
    squish.convert(model(), tmp_path / "out", "uqff")
    with squish.open(tmp_path / "out") as file:
        spec = file.index.tensors[STACK]
        rows = {EXPERT.format(row): evolve(spec, name=EXPERT.format(row), row_names=None) for row in range(3)}
        both = File(file.source, evolve(file.index, tensors={**file.index.tensors, **rows}), file.registry, file.limits)
        states = {item.name: item.state for item in squish.diff(file, both).tensors}
    assert states == {STACK: "bytes", NORM: "bytes", **{EXPERT.format(row): "shape" for row in range(3)}}
