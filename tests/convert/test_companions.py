"""Children and encodings of the whole model come along where the target's format holds them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toys
from attrs import evolve
from squish_convert.api import execute, plan_conversion

import squish_core as squish
from squish_core import api

VALUES = np.arange(6, dtype="f4").reshape(2, 3)


class Crate(api.CompositeContainer):
    """Boxes one after the other behind a table: the model, its children, then parts of whole-model encodings."""

    def read_index(self, source: api.Source, limits: api.Limits) -> api.Index:
        length = int.from_bytes(source.read(4, 4), "little")
        table = json.loads(source.read(8, length))
        position, indexes, whole = 8 + length, [], []
        for name, size in table["boxes"]:
            box = toys.Box().read_index(api.open_source(source.read(position, size)), limits)
            indexes.append((name, _moved(box, position, source)))
            position += size
        for codec, size in table["whole"]:
            part = api.Part(dtype="u8", shape=(size,), segments=(api.Segment(0, position, size),))
            whole.append(api.Encoding(codec=api.CodecSpec(codec), parts={"blob": part}))
            position += size
        (_, model), *children = indexes
        return evolve(model, format="toy.crate", children=dict(children), whole=tuple(whole))

    def accepts(self, spec: Any, encoding: Any, options: Any) -> api.Encoding | api.Refusal:
        return toys.Box().accepts(spec, encoding, options)

    def plan_file(
        self,
        specs: Sequence[api.TensorSpec],
        meta: Mapping[str, Any],
        assets: Mapping[str, api.Part],
        options: api.Options,
        companions: api.Companions = api.NO_COMPANIONS,
    ) -> api.WritePlan:
        dropped = tuple(api.Dropped("child", name, "no room") for name in companions.children if name == "other")
        return api.WritePlan(dropped=dropped)

    def write(
        self,
        sink: api.Sink,
        tensors: Sequence[api.OutgoingTensor],
        meta: Mapping[str, Any],
        assets: Mapping[str, bytes],
        options: api.Options,
        companions: api.OutgoingCompanions = api.NO_OUTGOING_COMPANIONS,
    ) -> None:
        groups = {"": (tensors, meta)} | {name: (each.tensors, each.meta) for name, each in companions.children.items()}
        boxes = {name: _box(list(group), dict(own)) for name, (group, own) in groups.items()}
        streams = [(str(whole.encoding.codec), whole.parts["blob"]) for whole in companions.whole]
        table = {
            "boxes": [(name, len(data)) for name, data in boxes.items()],
            "whole": [(codec, stream.part.nbytes) for codec, stream in streams],
        }
        head = json.dumps(table).encode()
        sink.write(b"TOYC" + len(head).to_bytes(4, "little") + head)
        for data in boxes.values():
            sink.write(data)
        for _, stream in streams:
            stream.write_to(sink)


def _box(tensors: list[api.OutgoingTensor], meta: dict[str, Any]) -> bytes:
    head = toys.head([each.spec for each in tensors], meta, {})
    return head + b"".join(bytes(chunk) for each in tensors for part in each.parts.values() for chunk in part.chunks())


def _moved(index: api.Index, base: int, source: api.Source) -> api.Index:
    """An index of a box, for the file that the box lies in."""

    def part(stored: api.Part) -> api.Part:
        places = tuple(evolve(place, offset=place.offset + base) for place in stored.segments)
        return evolve(stored, segments=places)

    def spec(tensor: api.TensorSpec) -> api.TensorSpec:
        encodings = tuple(
            evolve(each, parts={role: part(stored) for role, stored in each.parts.items()}) for each in tensor.encodings
        )
        return evolve(tensor, encodings=encodings)

    tensors = {name: spec(tensor) for name, tensor in index.tensors.items()}
    return evolve(index, tensors=tensors, files=(api.FileRef(source.filename, source.size),))


@pytest.fixture
def registry() -> api.Registry:
    info = toys.container_info("toy.crate", api.Signature(b"TOYC"), suffixes=(".crate",), can_write=True)
    crates = toys.plugin(squish_containers=lambda: [evolve(info, factory=f"{__name__}:Crate")])
    return toys.registry(crates)


@pytest.fixture
def crate(registry: api.Registry, tmp_path: Path) -> Path:
    """A crate with two children and an encoding of the whole model."""
    boxes = [
        ("", toys.box({"w": VALUES, "b": VALUES[0]})),
        ("draft", toys.box({"w": VALUES + 1})),
        ("other", toys.box({"x": VALUES})),
    ]
    table = json.dumps({"boxes": [(name, len(data)) for name, data in boxes], "whole": [("toy.whole", 5)]}).encode()
    body = b"".join(data for _, data in boxes) + b"whole"
    path = tmp_path / "model.crate"
    path.write_bytes(b"TOYC" + len(table).to_bytes(4, "little") + table + body)
    return path


def blob(file: squish.File) -> bytes:
    return b"".join(map(bytes, file.array(file.index.whole[0].parts["blob"]).chunks()))


def test_companions_with_a_place_in_the_target_are_carried(crate: Path, registry: api.Registry) -> None:
    target = crate.with_name("again.crate")
    report = squish.convert(crate, target, registry=registry)
    assert report.dropped == (api.Dropped("child", "other", "no room"),)
    file = squish.open(target, registry=registry)
    assert list(file.children) == ["draft"]
    assert (file.children["draft"]["w"].numpy() == VALUES + 1).all()
    assert blob(file) == b"whole"
    assert squish.verify(target, deep=True, registry=registry).ok


def test_a_format_without_a_place_reports_the_loss(crate: Path, registry: api.Registry) -> None:
    report = squish.convert(crate, crate.with_name("a.box"), registry=registry)
    assert set(report.dropped) == {
        api.Dropped("child", "draft"),
        api.Dropped("child", "other"),
        api.Dropped("encoding", "toy.whole", "of the whole model"),
    }


def test_a_part_of_the_model_takes_nothing_along(crate: Path, registry: api.Registry) -> None:
    report = squish.convert(crate, crate.with_name("a.crate"), only="w", registry=registry)
    assert {(item.kind, item.name) for item in report.dropped} == {
        ("child", "draft"),
        ("child", "other"),
        ("encoding", "toy.whole"),
    }
    assert not squish.open(crate.with_name("a.crate"), registry=registry).index.whole


def test_a_plan_is_carried_out_on_the_planned_companions_alone(crate: Path, registry: api.Registry) -> None:
    target = crate.with_name("a.crate")
    with squish.open(crate, registry=registry) as file:
        plan = plan_conversion(file, target)
        assert (plan.children, plan.whole) == (("draft",), ("toy.whole",))
        bare = squish.File(file.source, evolve(file.index, children={}), file.registry, file.limits)
        with pytest.raises(squish.FormatError) as raised:
            execute(plan, bare, target)
    assert raised.value.code == "changed"
    assert not target.exists()


def test_delete_source_compares_carried_companions(
    crate: Path, registry: api.Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = crate.with_name("a.crate")
    with pytest.raises(squish.FormatError) as raised:
        squish.convert(crate, target, delete_source=True, registry=registry)
    assert raised.value.code == "delete"  # the other child is lost
    crates = type(registry.container("toy.crate"))
    monkeypatch.setattr(crates, "plan_file", lambda *arguments: api.WritePlan())
    write = crates.write

    def write_less(self: Crate, sink: Any, *arguments: Any) -> None:
        *most, companions = arguments
        children = {"draft": companions.children["draft"], "other": companions.children["draft"]}
        write(self, sink, *most, evolve(companions, children=children))

    monkeypatch.setattr(crates, "write", write_less)
    with pytest.raises(squish.FormatError) as raised:
        squish.convert(crate, target, delete_source=True, registry=registry)
    assert raised.value.code == "delete"
    assert crate.exists()
    monkeypatch.setattr(crates, "write", write)
    squish.convert(crate, target, delete_source=True, registry=registry)
    assert not crate.exists()
    assert list(squish.open(target, registry=registry).children) == ["draft", "other"]
