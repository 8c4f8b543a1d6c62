"""The toys pass the kit, so that what other tests build on is sound; they also show the kit at work."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import toys
from squish_testing import ByteCodecSuite, CodecSuite, ContainerSuite
from squish_testing.hostile import HostileInput
from squish_testing.memory import EVERY

from squish_core.api import FormatError, Signature, TensorSpec
from squish_core.plugins.registry import Registry

VALUES = np.random.default_rng(0).standard_normal((6, 5), np.float32)


class TestBox(ContainerSuite):
    container, plugin = "toy.box", "toys"
    not_rewritten = ("big endian",)  # comes out little-endian: other bytes, the same values
    mutations = 0  # the box trusts its header
    test_many_mutants_give_typed_errors_only = None
    test_truncations_give_typed_errors_only = None
    test_registering_imports_no_implementation = None  # the toys are all in one module

    def samples(self) -> dict[str, bytes]:
        tensors = {"dense": VALUES, "rows": toys.rows(VALUES), "empty": np.zeros((0, 3), np.float32)}
        return {
            "mixed": toys.box(tensors, {"name": "toy"}, {"config.json": b"{}"}),
            "filtered": toys.box({"dense": VALUES}, filters=("toy.xor",)),
            "big endian": toys.box({"dense": VALUES}, byteorder=">"),
        }

    def values(self) -> dict[str, Any]:
        dense = {"dense": VALUES}
        return {"mixed": {**dense, "empty": np.zeros((0, 3), np.float32)}, "filtered": dense, "big endian": dense}

    def damaged(self) -> dict[str, bytes]:
        return {"cut short": self.samples()["mixed"][:-30], "another magic": b"BOX!" + self.samples()["mixed"][4:]}


class TestBoxBesideATwin(TestBox):
    """Two formats with one signature: only the suffix tells which one a file has."""

    exact_detection = False

    @property
    def registry(self) -> Registry:
        return _with_twin()


@cache
def _with_twin() -> Registry:
    twin = toys.container_info("toy.twin", Signature(b"TOYB"), suffixes=(".twin",))
    return Registry("", extra=[toys, toys.plugin("twin", squish_containers=[twin])])


class TestXor(ByteCodecSuite):
    codec, plugin = "toy.xor", "toys"
    bomb = 1 << 24
    test_registering_imports_no_implementation = None

    def cases(self) -> dict[str, Any]:
        return {"text": (b"weights", {}), "empty": (b"", {})}


class TestRows(CodecSuite):
    codec, plugin = "toy.rows", "toys"
    test_registering_imports_no_implementation = None

    def cases(self) -> dict[str, Any]:
        return {"even": (TensorSpec(name="w", shape=(6, 5), dtype="f32"), {}, VALUES)}


class Greedy(HostileInput):
    """A reader that takes four times what it may before it refuses."""

    def open(self, target: Any) -> Any:
        np.ones(self.memory // 2)
        raise FormatError("is not a toy")


@pytest.mark.parametrize("number", [0, 1, EVERY - 1, EVERY])
def test_a_reader_that_reads_too_much_is_found(number: int) -> None:
    with pytest.raises(AssertionError, match=r"^greedy: (MemoryError escaped|a peak of 2)"):
        Greedy()._try_open(None, number, "greedy")
