"""Layouts that the specification allows: sections at any byte, with any number of zeros between (P2)."""

from __future__ import annotations

import io
import itertools
import random
import struct
import zipfile
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import squish_core as squish


def archive() -> bytes:
    spool = io.BytesIO()
    with zipfile.ZipFile(spool, "w", zipfile.ZIP_STORED) as out:
        out.writestr("Manifest.json", b"{}")
    return spool.getvalue()


def changed(data: bytes, at: int, form: str, *values: Any) -> bytes:
    out = bytearray(data)
    struct.pack_into(form, out, at, *values)
    return bytes(out)


def same(tensor: squish.Tensor, values: np.ndarray) -> None:
    np.testing.assert_array_equal(tensor.numpy().astype(np.float32), values.astype(np.float32))


@pytest.mark.parametrize("align", [1, 2, 32, 100, 640])
def test_every_section_is_found_at_any_alignment(sq: SimpleNamespace, align: int) -> None:
    rng = sq.rng
    keep = [1, 0, 1, 1, 1] * 5
    layers = [
        [sq.int4(rng, 10, 10, 20, name="a", keep=keep), sq.npcl(rng, (3,), name="b")],
        [sq.int2(rng, 3, 5, 4, name="c"), sq.tcaw(rng, 3, 70, name="d"), sq.npcl(rng, (2, 3), 2, name="e")],
    ]
    outside = [sq.int4(rng, 3, 3, name="f"), sq.npcl(rng, (5,), 1, name="g")]
    draft = [[sq.int4(rng, 3, 5, name="h")], [sq.npcl(rng, (3,), name="i")]]
    data = sq.build(layers, outside, side=2, draft=draft, archive=archive(), names=True, align=align)
    file = squish.open(data, strict=True)
    assert not file.problems
    for tensor in [tensor for layer in layers for tensor in layer] + outside:
        same(file[tensor.name], tensor.values(2))
    assert [(name, tensor.numpy().tolist()) for name, tensor in file.children["eagle"].items()] == [
        (tensor.name, tensor.values().tolist()) for layer in draft for tensor in layer
    ]
    assert file.index.whole
    assert squish.verify(data, deep=True).clean
    assert [section.kind for section in file.index.sections] == [
        "header",
        "layer index",
        "layer",
        "layer",
        "globals",
        "scale table",
        "scale table",
        "names",
        "draft head",
        "CoreML appendix",
    ]


@pytest.mark.parametrize("seed", range(40))
def test_zeros_of_any_length_may_lie_between_sections(sq: SimpleNamespace, seed: int) -> None:
    rng = random.Random(seed)
    spaces = (rng.choice((0, 1, 7, 63, 64, 65, 5000)) for _ in itertools.repeat(0))
    keep = [1, 0, 1, 1, 1] * 5
    layers = [
        [sq.int4(sq.rng, 10, 10, 20, keep=keep), sq.npcl(sq.rng, (3,))], [sq.int2(sq.rng, 3, 5, 4)],
        [sq.tcaw(sq.rng, 3, 70), sq.int4(sq.rng, 1, 1)],
    ]  # fmt: skip
    draft = [[sq.int4(sq.rng, 3, 5)], [sq.npcl(sq.rng, (3,))]]
    data = sq.build(layers, side=2, draft=draft, archive=archive(), order=rng.sample(range(3), 3), spaces=spaces)
    file = squish.open(data, strict=True)
    for number, layer in enumerate(layers):
        for place, tensor in enumerate(layer):
            same(file[f"layers.{number}.w{place}"], tensor.values(2))
    assert len(file.children["eagle"]) == 2
    assert file.index.whole
    assert squish.verify(data).clean


def test_an_appendix_may_be_followed_by_the_closing_zeros(sq: SimpleNamespace) -> None:
    data = sq.build([[sq.npcl(sq.rng, (2,))]], archive=archive(), align=1)
    assert squish.open(data + bytes(63), strict=True).index.whole
    file = squish.open(data + bytes(64))
    assert [(problem.code, problem.severity) for problem in file.problems] == [("P8", "error")]


def test_scale_offset_may_be_the_first_entry_of_the_layer(sq: SimpleNamespace) -> None:
    data = sq.build([[sq.int4(sq.rng, 4, 8, 8)], [sq.npcl(sq.rng, (2,)), sq.int4(sq.rng, 4, 8, 8)]])
    entry = data.index(b"SCZT") + 8 + 16
    own = changed(data, 288 + 20, "<Q", entry)
    assert not squish.open(own, strict=True).problems
    for layer, offset in ((0, entry), (1, entry - 16), (1, entry + 16)):
        with pytest.raises(squish.FormatError) as caught:
            squish.open(changed(data, 256 + 32 * layer + 20, "<Q", offset))
        assert (caught.value.code, caught.value.offset) == ("P3", 256 + 32 * layer + 20)


def test_scale_offset_finds_a_table_after_nonzero_padding(sq: SimpleNamespace) -> None:
    data = sq.build([[sq.int4(sq.rng, 3, 5)]], align=50)
    assert struct.unpack_from("<Q", data, 276) == (data.index(b"SCZT"),)
    file = squish.open(changed(data, data.index(b"SCZT") - 1, "<B", 1))
    assert [(problem.code, problem.severity) for problem in file.problems] == [("P2", "warning")]
    assert file["layers.0.w0"].numpy().shape == (3, 5)


def test_nonzero_padding_before_masks_is_a_warning(sq: SimpleNamespace) -> None:
    data = sq.build([[sq.int4(sq.rng, 10, 10, keep=[1, 0, 1, 1, 1] * 5)]], side=2)
    (masks,) = struct.unpack_from("<Q", data, 276)
    assert data[masks - 1] == 0
    file = squish.open(changed(data, masks - 1, "<B", 1))
    assert [(problem.code, problem.severity) for problem in file.problems] == [("P2", "warning")]
    with pytest.raises(squish.FormatError) as caught:
        squish.open(changed(data, masks - 1, "<B", 1), strict=True)
    assert caught.value.code == "P2"


@pytest.mark.parametrize(("kind", "flag"), [("tcaw", "TCA_TBE"), ("int2", "INT2"), ("astw", "ASTC")])
def test_draft_heads_may_hold_every_kind_whose_flag_is_set(sq: SimpleNamespace, kind: str, flag: str) -> None:
    tensor = getattr(sq, kind)(sq.rng, 3, 70)
    flags = sq.bits["EAGLE"] | sq.bits[flag]
    data = sq.build([[sq.npcl(sq.rng, (2,))]], draft=[[tensor, sq.int4(sq.rng, 3, 5)]], flags=flags)
    file = squish.open(data, strict=True)
    same(file.children["eagle"]["layers.0.w0"], tensor.values())
    without = squish.open(sq.build([[sq.npcl(sq.rng, (2,))]], draft=[[tensor]], flags=sq.bits["EAGLE"]))
    assert {problem.code for problem in without.problems if problem.severity == "error"} == {"P2"}
    assert not without.children
