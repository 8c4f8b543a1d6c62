"""Random valid files, feature by feature: read as they were built, written again and equal, then damaged."""

from __future__ import annotations

import io
import random
import re
import struct
import tempfile
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

import squish_core as squish

FIELDS = {
    "version": (4, "<H"), "flags": (6, "<I"), "layer_count": (10, "<H"), "arch_id": (12, "<H"), "crc": (14, "<I"),
    "hash": (18, "<Q"), "reserved": (26, "<Q"), "sparsity_version": (128, "<I"), "block_size": (132, "<I"),
    "n_sparse_layers": (136, "<I"), "mean_sparsity": (140, "<I"), "sparsity_reserved": (144, "<Q"),
    "draft_offset": (160, "<Q"), "draft_length": (168, "<Q"), "n_draft_layers": (176, "<I"), "draft_vocab": (180, "<I"),
    "draft_reserved": (184, "<Q"), "reserved2": (192, "<Q"), "layer_idx": (256, "<I"), "weight_offset": (260, "<Q"),
    "weight_length": (268, "<Q"), "scale_offset": (276, "<Q"), "entry_reserved": (284, "<I"),
}  # fmt: skip
RULE = re.compile(r"\[P\d+\]")


def package() -> bytes:
    """A small CoreML package."""
    spool = io.BytesIO()
    with zipfile.ZipFile(spool, "w") as archive:
        archive.writestr(zipfile.ZipInfo("Manifest.json"), b"{}")
    return spool.getvalue()


def refusals_have_a_rule(data: bytes) -> squish.File | None:
    """The file, or None where opening is refused: with a rule of the profile in code and text, like every finding."""
    report = squish.verify(data, format="squizd")
    assert not [problem for problem in report.problems if not RULE.search(problem.message)]
    try:
        return squish.open(data, format="squizd")
    except squish.FormatError as error:
        refused = error
    assert f"[{refused.code}]" in RULE.findall(str(refused)), refused
    assert not report.ok
    return None


def reads_or_names_a_rule(tensor: squish.Tensor) -> bool:
    try:
        tensor.numpy()
    except squish.SquishError as error:
        return bool(RULE.search(str(error)))
    return True


class Machine(RuleBasedStateMachine):
    """A file that grows by features; damage is tried on copies."""

    sq: ClassVar[SimpleNamespace]

    @initialize(seed=st.integers(0, 1 << 32), side=st.sampled_from([0, 1, 3, 8]), names=st.booleans())
    def begin(self, seed: int, side: int, names: bool) -> None:
        self.rng, self.count = random.Random(seed), 0
        self.layers: list[list[Any]] = []
        self.outside: list[Any] = []
        self.options: dict[str, Any] = {"side": side, "names": names}

    def tensor(self, kind: str, group: int, masked: bool) -> Any:
        least = int(kind == "astw")  # a texture has an area
        shape = (self.rng.randrange(least, 7), self.rng.randrange(least, 80))
        if kind == "npcl":
            tensor = self.sq.npcl(self.rng, shape, self.rng.randrange(3))
        elif kind == "tcaw":
            tensor = self.sq.tcaw(self.rng, *shape)
        else:
            tensor = getattr(self.sq, kind)(self.rng, *shape, group)
        side, self.count = self.options["side"], self.count + 1
        tensor.name = f"layers.{len(self.layers)}.t{self.count}"  # the name decides where the writer puts it
        if masked and side:
            tensor.keep = [self.rng.randrange(2) for _ in range(-(-shape[0] // side) * -(-shape[1] // side))]
        return tensor

    @rule(
        kinds=st.lists(st.sampled_from(["int4", "int2", "npcl", "tcaw", "astw"]), max_size=3),
        group=st.sampled_from([0, 1, 4, 13, 64]),
        masked=st.booleans(),
    )
    def add_layer(self, kinds: list[str], group: int, masked: bool) -> None:
        self.layers.append([self.tensor(kind, group, masked) for kind in kinds])

    @rule(kind=st.sampled_from(["int4", "npcl", "tcaw"]), group=st.sampled_from([0, 5, 32]))
    def add_global(self, kind: str, group: int) -> None:
        self.outside.append(self.tensor(kind, group, masked=False))
        self.outside[-1].name = f"t{self.count}"

    @rule(layers=st.integers(0, 2))
    def set_draft(self, layers: int) -> None:
        self.options["draft"] = [[self.tensor("int4", 4, False), self.tensor("npcl", 0, False)] for _ in range(layers)]

    @rule(merged=st.booleans(), arch=st.integers(0, 7), appendix=st.booleans())
    def set_options(self, merged: bool, arch: int, appendix: bool) -> None:
        self.options |= {"merged": merged, "arch": arch, "archive": package() if appendix else None}

    @precondition(lambda self: len(self.layers) > 1)
    @rule()
    def shuffle_the_layers(self) -> None:
        self.options["order"] = self.rng.sample(range(len(self.layers)), len(self.layers))

    def data(self) -> bytes:
        if len(self.options.get("order", self.layers)) != len(self.layers):
            del self.options["order"]
        return bytes(self.sq.build(self.layers, self.outside, **self.options))

    def expected(self) -> list[Any]:
        return [tensor for layer in self.layers for tensor in layer] + self.outside

    def check_values(self, file: squish.File) -> None:
        for name, tensor in zip(file, self.expected(), strict=True):
            actual, expected = file[name].numpy(), tensor.values(self.options["side"])
            assert (actual.dtype, actual.shape, actual.tobytes()) == (
                expected.dtype,
                expected.shape,
                expected.tobytes(),
            )

    @rule()
    def read(self) -> None:
        data = self.data()
        file = squish.open(data, strict=True)
        self.check_values(file)
        draft = [tensor for layer in self.options.get("draft") or [] for tensor in layer]
        for name, tensor in zip(file.children.get("eagle", {}), draft, strict=True):
            assert file.children["eagle"][name].numpy().tobytes() == tensor.values().tobytes()
        assert bool(file.index.whole) == bool(self.options.get("archive"))
        assert squish.verify(data, deep=True).ok

    @precondition(lambda self: any(tensor.count for tensor in self.expected()))
    @rule()
    def write_and_read_back(self) -> None:
        with tempfile.TemporaryDirectory() as folder, squish.open(self.data()) as before:
            path = Path(folder) / "a.squizd"
            report = squish.convert(before, path, "squizd")
            assert {step.action for step in report.steps} == {"copy"}
            with squish.open(path, strict=True) as after:
                assert list(after) == list(before)
                assert after.meta == before.meta
                self.check_values(after)

    @rule(field=st.sampled_from(sorted(FIELDS)), which=st.integers(0, 5), entry=st.integers(0, 2))
    def a_field_at_its_extremes(self, field: str, which: int, entry: int) -> None:
        data = bytearray(self.data())
        at, form = FIELDS[field]
        at += 32 * entry if at >= 256 else 0
        value = (0, 1, len(data), 1 << 32, 1 << 63, (1 << 64) - 1)[which]
        if at + struct.calcsize(form) <= len(data) and value < 1 << 8 * struct.calcsize(form):
            struct.pack_into(form, data, at, value)
            refusals_have_a_rule(bytes(data))

    @rule(where=st.floats(0, 1, exclude_max=True), byte=st.integers(0, 255), cut=st.booleans())
    def a_byte_anywhere(self, where: float, byte: int, cut: bool) -> None:
        data = bytearray(self.data())
        at = int(where * len(data))
        data[at] = byte
        file = refusals_have_a_rule(bytes(data[: at + 1] if cut else data))
        if file is not None:
            assert all(reads_or_names_a_rule(file[name]) for name in file)


@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.fuzz)])
def test_any_file_reads_as_built_is_written_equal_and_fails_with_a_rule(sq: SimpleNamespace, count: int) -> None:
    Machine.sq = sq
    checks = settings(
        max_examples=count,
        stateful_step_count=20,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(Machine, settings=checks)


@pytest.mark.parametrize("field", FIELDS)
def test_every_field_of_a_file_with_everything_at_its_extremes(sq: SimpleNamespace, field: str) -> None:
    rng, (at, form) = sq.rng, FIELDS[field]
    layers = [[sq.int4(rng, 4, 8, 8, keep=[1, 0]), sq.tcaw(rng, 2, 70)], [sq.int2(rng, 4, 8, 8), sq.npcl(rng, (3,))]]
    draft = [[sq.int4(rng, 4, 4)], [sq.int4(rng, 4, 4)]]
    data = sq.build(layers, [sq.npcl(rng, (5,))], side=4, draft=draft, archive=package())
    squish.open(data, strict=True)
    most = 1 << 8 * struct.calcsize(form)
    for entry in range(2 if at >= 256 else 1):
        for value in (0, 1, len(data), 1 << 32, 1 << 63, (1 << 64) - 1):
            if value < most:
                mutant = bytearray(data)
                struct.pack_into(form, mutant, at + 32 * entry, value)
                file = refusals_have_a_rule(bytes(mutant))
                assert file is None or all(np.asarray(file[name].numpy()).size >= 0 for name in file)
