"""Reading: every block kind, tables in both rounds, masks, names, draft head; against values computed one by one."""

from __future__ import annotations

import math
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from squish_testing import expect_error

import squish_core as squish
from squish_core.limits import Limits
from squish_core.plugins.registry import Registry


def same(actual: np.ndarray, expected: np.ndarray) -> bool:
    return actual.dtype == expected.dtype and actual.tobytes() == expected.tobytes()


@pytest.mark.parametrize("group", [0, 1, 3, 8, 1000])
def test_int4_blocks_decode_as_specified(sq: SimpleNamespace, group: int) -> None:
    tensor = sq.int4(sq.rng, 5, 7, group)
    file = squish.open(sq.build([[tensor]]), strict=True)
    assert same(file["layers.0.w0"].numpy(), tensor.values())
    assert same(file["layers.0.w0"][2:4], tensor.values()[2:4])


@pytest.mark.parametrize("group", [0, 1, 3, 8, 1000])
def test_int2_blocks_decode_as_specified(sq: SimpleNamespace, group: int) -> None:
    tensor = sq.int2(sq.rng, 5, 7, group)
    file = squish.open(sq.build([[tensor]]), strict=True)
    assert same(file["layers.0.w0"].numpy(), tensor.values())


@pytest.mark.parametrize(("shape", "code"), [((3, 5), 0), ((), 1), ((2, 3, 4), 2), ((0, 4), 0), ((1,) * 8, 1)])
def test_npcl_blocks_decode_as_specified(sq: SimpleNamespace, shape: tuple[int, ...], code: int) -> None:
    tensor = sq.npcl(sq.rng, shape, code)
    file = squish.open(sq.build([[tensor]]), strict=True)
    assert file["layers.0.w0"].shape == shape
    assert same(file["layers.0.w0"].numpy(), tensor.values())


def test_tca_tbe_decodes_every_bf16_bit_pattern(sq: SimpleNamespace) -> None:
    tensor = sq.Tensor("TCAW", (256, 256), list(range(1 << 16)), group=119)
    file = squish.open(sq.build([[tensor]]), strict=True)
    assert same(file["layers.0.w0"].numpy(), tensor.values())
    assert same(file["layers.0.w0"][200:203], tensor.values()[200:203])


def test_masked_tiles_are_exactly_zero(sq: SimpleNamespace) -> None:
    first = sq.int4(sq.rng, 9, 10, 5, keep=[1, 0, 1, 0, 0, 1, 1, 1, 0])
    second, norm = sq.npcl(sq.rng, (4, 8)), sq.npcl(sq.rng, (7,))
    file = squish.open(sq.build([[first, norm, second], [sq.npcl(sq.rng, (2, 2))]], side=4), strict=True)
    assert same(file["layers.0.w0"].numpy(), first.values(4))
    assert same(file["layers.0.w0"][3:6, 2:9], np.ascontiguousarray(first.values(4)[3:6, 2:9]))
    assert same(file["layers.0.w2"].numpy(), second.values())
    assert file["layers.1.w0"].codec == "dense"


def test_layers_may_lie_in_any_physical_order(sq: SimpleNamespace) -> None:
    layers = [[sq.int4(sq.rng, 2, 2)], [sq.npcl(sq.rng, (3,))], [sq.int4(sq.rng, 4, 2, 4)]]
    file = squish.open(sq.build(layers, order=[2, 0, 1]), strict=True)
    assert list(file) == ["layers.0.w0", "layers.1.w0", "layers.2.w0"]
    assert same(file["layers.2.w0"].numpy(), layers[2][0].values())


def test_blocks_need_no_alignment(sq: SimpleNamespace) -> None:
    layer = [sq.npcl(sq.rng, (3,)), sq.int4(sq.rng, 3, 3), sq.int4(sq.rng, 2, 5, 5)]
    file = squish.open(sq.build([layer], gap=13), strict=True)
    assert all(same(file[f"layers.0.w{i}"].numpy(), layer[i].values()) for i in range(3))


def test_a_table_may_contain_both_kinds_of_entries(sq: SimpleNamespace) -> None:
    layer = [sq.int4(sq.rng, 4, 6, 6), sq.int2(sq.rng, 4, 6, 7)]
    file = squish.open(sq.build([layer], merged=True), strict=True)
    assert all(same(file[f"layers.0.w{i}"].numpy(), layer[i].values()) for i in range(2))


def test_entries_with_foreign_ids_are_matched_by_order(sq: SimpleNamespace) -> None:
    layer = [sq.int4(sq.rng, 4, 6, 6, name="a"), sq.int4(sq.rng, 4, 6, name="b")]
    data = sq.build([layer], names=True)
    without = data[: data.index(b"SQXT")]  # the ids were hashed from the removed names
    file = squish.open(without.rstrip(b"\0") + bytes(16), strict=True)
    assert [(problem.code, problem.severity) for problem in file.problems] == [("P3", "note"), ("P3", "note")]
    assert same(file["layers.0.w0"].numpy(), layer[0].values())


def test_names_may_be_as_long_as_the_limits(sq: SimpleNamespace) -> None:
    name = "n" * 2000
    data = sq.build([[sq.npcl(sq.rng, (4,), name=name)]], names=True)
    assert [problem.code for problem in squish.open(data).problems] == ["P9"]
    assert list(squish.open(data, strict=True, limits=Limits(name=2000))) == [name]


def test_names_globals_and_the_draft_head_have_the_names_of_sqxt(sq: SimpleNamespace) -> None:
    layer = [sq.int4(sq.rng, 4, 4, 4, name="model.layers.0.q"), sq.npcl(sq.rng, (4,), name="model.layers.0.norm")]
    outside = [sq.int4(sq.rng, 6, 4, 4, name="embed"), sq.npcl(sq.rng, (4,), name="norm")]
    draft = [[sq.int4(sq.rng, 2, 2, name="d.0")], [sq.npcl(sq.rng, (2, 2), name="d.1")]]
    file = squish.open(sq.build([layer], outside, draft=draft, names=True), strict=True)
    assert list(file) == ["model.layers.0.q", "model.layers.0.norm", "embed", "norm"]
    assert same(file["embed"].numpy(), outside[0].values())
    eagle = file.children["eagle"]
    assert list(eagle) == ["d.0", "d.1"]
    assert same(eagle["d.0"].numpy(), draft[0][0].values())
    assert same(eagle["d.1"].numpy(), draft[1][0].values())


def test_two_names_may_share_a_block(sq: SimpleNamespace) -> None:
    outside = [sq.npcl(sq.rng, (4, 2), name="embed")]

    def tie(root: dict[str, Any]) -> dict[str, Any]:
        root["globals"].append(["head", *root["globals"][0][1:]])
        return root

    file = squish.open(sq.build([], outside, names=True, change=tie), strict=True)
    assert file["head"].spec.tied_to == "embed"
    assert same(file["head"].numpy(), file["embed"].numpy())


SHAPES = ([4, 210], [210, 4], [3, 2, 140], [4, 3, 70, 1], [840], [1, 840], [2, 420, 1], [0], [])


@pytest.mark.parametrize("side", [0, 8])
@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        (kind, shape)
        for kind in ("int4", "int2", "tcaw", "astw", "npcl")
        for shape in SHAPES
        if kind != "astw" or math.prod(shape)  # a texture has an area
    ],
    ids=str,
)
def test_sqxt_shapes_need_not_end_in_the_columns_of_the_block(
    sq: SimpleNamespace, kind: str, shape: list[int], side: int, tmp_path: Path
) -> None:
    """A convolution [out, in, 3, 3] is stored as a block [out, 9 * in]."""
    size, name = {0: (0, 5), 1: (1, 1)}.get(math.prod(shape), (12, 70)), "model.layers.0.mlp.conv"
    tiles = -(-size[0] // 8) * -(-size[1] // 8)
    more = {"name": name, "keep": [sq.rng.randrange(2) for _ in range(tiles)] if side else None}
    tensor = sq.npcl(sq.rng, size, 2, **more) if kind == "npcl" else getattr(sq, kind)(sq.rng, *size, **more)
    data = sq.build([[tensor]], names=True, side=side, change=lambda root: {**root, "shapes": {name: shape}})
    file = squish.open(data, strict=True)
    values = tensor.values(side).reshape(shape)
    assert same(file[name].numpy(), values)
    for place in range(0, len(values), max(len(values) // 5, 1)) if shape else ():
        assert same(file[name][place : place + 1], values[place : place + 1])
    assert squish.verify(data, deep=True).clean
    path = tmp_path / "again.squizd"
    report = squish.convert(data, path)
    assert [str(step.exactness) for step in report.steps] == ["bytes"]
    with squish.open(path, strict=True) as again:
        assert same(again[name].numpy(), values)


def test_sqxt_shape_of_a_different_size_is_a_warning(sq: SimpleNamespace) -> None:
    tensor = sq.int4(sq.rng, 6, 8, name="a")
    data = sq.build([[tensor]], names=True, change=lambda root: {**root, "shapes": {"a": [6, 9]}})
    file = squish.open(data)
    assert file["a"].shape == (6, 8)
    assert [(problem.code, problem.severity) for problem in file.problems] == [("P9", "warning")]


def test_shapes_beyond_two_dimensions_come_from_sqxt(sq: SimpleNamespace) -> None:
    tensor = sq.int4(sq.rng, 6, 8, 8, name="model.layers.0.experts")

    def shape(root: dict[str, Any]) -> dict[str, Any]:
        return {**root, "shapes": {"model.layers.0.experts": [2, 3, 8]}}

    file = squish.open(sq.build([[tensor]], names=True, change=shape), strict=True)
    assert same(file["model.layers.0.experts"].numpy(), tensor.values().reshape(2, 3, 8))
    assert same(file["model.layers.0.experts"][1], tensor.values().reshape(2, 3, 8)[1])


def test_invalid_names_section_is_a_warning_and_names_are_synthesized(sq: SimpleNamespace) -> None:
    bad: list[Any] = [
        {"names": {}}, {"v": 2}, {"v": 1, "names": {0: ["a", "b"]}}, {"v": 1, "names": {7: ["a"]}},
        {"v": 1, "names": {0: [""]}},
        {"v": 1, "globals": [["x", 0, 4]]}, {"v": 1, "names": {0: ["x" * 1025]}}, {"v": 1, "names": {0: ["a\0"]}},
        b"\xbf\x61v\x01\xff", b"\xa2\x61v\x01\x61v\x01", b"\xa1\x61v\xc1\x01", b"\xa1\x61v\x01\x00",
        b"\x9b" + b"\xff" * 8,
        b"\x81" * 40, b"", [1], {"v": 1, "shapes": {"a": [-1]}},
    ]  # fmt: skip
    for root in bad:
        tensor = sq.npcl(sq.rng, (4,), name="a")
        file = squish.open(sq.build([[tensor]], names=True, change=lambda _, root=root: root))
        assert [(problem.code, problem.severity) for problem in file.problems] == [("P9", "warning")], root
        assert list(file) == ["layers.0.w0"]


def test_an_astc_tensor_is_listed_and_its_error_names_the_package(sq: SimpleNamespace) -> None:
    data = sq.build([[sq.Tensor("ASTW", (5, 9))]])
    tensor = squish.open(data, strict=True, registry=Registry(plugins="-squish-astc"))["layers.0.w0"]
    assert (tensor.shape, tensor.codec) == ((5, 9), "astc")
    with expect_error(squish.MissingPluginError, code="not-installed", tensor="layers.0.w0", hint="squish-astc"):
        tensor.numpy()


def test_astc_texels_are_scaled(sq: SimpleNamespace) -> None:
    tensor = sq.Tensor("ASTW", (5, 9), pair=(2.0, -0.5))
    data = sq.build([[tensor]])
    half = bytes.fromhex("fcfdffffffffffff 0080 0080 0080 ffff")  # one color: 0x8000 / 65536
    filled = data[:336] + half * 6 + data[336 + 96 :]
    tensor = squish.open(filled, strict=True)["layers.0.w0"]
    assert (tensor.numpy() == np.full((5, 9), 0.5, np.float32)).all()
    assert tensor[3:5, 4:].shape == (2, 5)


def test_the_map_of_sections_covers_the_file(sq: SimpleNamespace) -> None:
    data = sq.build([[sq.int4(sq.rng, 4, 4, 4)]], draft=[[sq.npcl(sq.rng, (2,))]])
    sections = squish.open(data).index.sections
    assert [section.kind for section in sections] == [
        "header",
        "layer index",
        "layer",
        "scale table",
        "scale table",
        "draft head",
    ]
    assert [section.holds for section in sections if section.kind != "layer"] == [
        "EAGLE, INT4",
        "1 layer",
        "1 entry",
        "4 entries, sub-blocks",
        "1 layer, vocabulary 100",
    ]
    assert sections[-1].offset + sections[-1].size == len(data)


@st.composite
def models(draw: Any) -> tuple[int, dict[str, Any]]:
    """A seed, and the features of a file."""
    return draw(st.integers(0, 1 << 32)), {
        "layers": draw(st.lists(st.lists(st.sampled_from(["int4", "int2", "npcl", "tcaw"]), max_size=3), max_size=3)),
        "outside": draw(st.lists(st.sampled_from(["int4", "npcl"]), max_size=2)),
        "side": draw(st.sampled_from([0, 0, 1, 3, 8])),
        "draft": draw(st.sampled_from([None, 0, 1, 2])),
        "names": draw(st.booleans()),
        "merged": draw(st.booleans()),
    }


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(models())
def test_any_valid_file_reads_as_built(sq: SimpleNamespace, model: tuple[int, dict[str, Any]]) -> None:
    seed, options = model
    rng, number = random.Random(seed), iter(range(1000))

    def tensor(kind: str, masked: bool) -> Any:
        shape = (rng.randrange(0, 7), rng.randrange(0, 80))
        group = (rng.choice((0, 1, 4, 13, 64)),) if kind.startswith("int") else ()
        tensor = (
            getattr(sq, kind)(rng, shape, rng.randrange(3))
            if kind == "npcl"
            else getattr(sq, kind)(rng, *shape, *group)
        )
        tensor.name = f"t{next(number)}"
        if masked:
            tiles = -(-shape[0] // options["side"]) * -(-shape[1] // options["side"])
            tensor.keep = [rng.randrange(2) for _ in range(tiles)]
        return tensor

    layers = [[tensor(kind, bool(options["side"])) for kind in layer] for layer in options["layers"]]
    outside = [tensor(kind, False) for kind in options["outside"]]
    draft = (
        None
        if options["draft"] is None
        else [[tensor("int4", False), tensor("npcl", False)] for _ in range(options["draft"])]
    )
    data = sq.build(
        layers,
        outside,
        draft=draft,
        side=options["side"],
        names=options["names"],
        merged=options["merged"],
    )
    file = squish.open(data, strict=True)
    every = [tensor for layer in layers for tensor in layer] + outside
    assert len(file) == len(every)
    for name, expected in zip(file, every):
        assert same(file[name].numpy(), expected.values(options["side"]))
    for name, expected in zip(file.children.get("eagle", {}), [tensor for layer in draft or [] for tensor in layer]):
        assert same(file.children["eagle"][name].numpy(), expected.values())
