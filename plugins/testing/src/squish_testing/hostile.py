"""Tests that damaged files raise typed errors only, in bounded memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest

from squish_core.io.source import Source

from .memory import within
from .mutations import mutant, truncations
from .sources import DamagedFolder, DamagedSource, source_of
from .suite import Suite, typed_errors_only

if TYPE_CHECKING:
    from squish_core.file import File

VARIABLE = "SQUISH_MUTANTS"
SMALL = 1 << 16
"""Elements of the largest tensor to decode in a damaged file."""


class HostileInput(Suite):
    """Tests with damaged copies of the samples.

    `mutations`: copies per sample (the variable SQUISH_MUTANTS overrides it; `pytest -m fuzz` uses 50 times as many
    with another seed, at most 20,000). `header`: number of leading bytes to change (default: the first 4096).
    `memory`: bytes that opening a damaged file may allocate.
    """

    mutations = 1000
    seed = 0
    header: int | None = None
    memory = 50_000_000

    def sample(self, name: str) -> Any:
        """One sample."""
        raise NotImplementedError

    def open(self, target: Any) -> File:
        """Open as the format under test."""
        raise NotImplementedError

    def test_truncations_give_typed_errors_only(self, sample: str) -> None:
        """Truncated files raise SquishError or read their intact part."""
        for name, data, damaged in self._targets(sample):
            for number, length in enumerate(truncations(len(data), header=self.header or 4096)):
                self._try_open(damaged(data[:length]), number, f"sample {sample!r}, {name} cut to {length} bytes")

    def test_mutants_give_typed_errors_only(self, sample: str) -> None:
        """Damaged headers raise SquishError or read as something else, in bounded memory."""
        self._mutate(sample, int(os.environ.get(VARIABLE, self.mutations)), self.seed)

    @pytest.mark.fuzz
    def test_many_mutants_give_typed_errors_only(self, sample: str) -> None:
        """The same with up to 20,000 copies, for long runs."""
        self._mutate(sample, int(os.environ.get(VARIABLE, min(20_000, 50 * self.mutations))), self.seed + 1)

    def _mutate(self, sample: str, count: int, seed: int) -> None:
        for name, data, damaged in self._targets(sample):
            header = self.header or min(len(data), 4096)
            for number in range(count):
                what = f"sample {sample!r}, {name}: mutant(data, {number}, seed={seed}, header={header})"
                self._try_open(damaged(mutant(data, number, seed, header)), number, what)

    def _targets(self, sample: str) -> Iterator[tuple[str, bytes, Any]]:
        """Yield file name, content, and a function that makes a source from damaged content."""
        original = source_of(self.sample(sample))
        if not original.is_dir:
            yield original.filename, original.read(0, original.size), lambda data: DamagedSource(data, original)
            return
        for name in original.members():
            member = original.member(name)
            yield name, member.read(0, member.size), lambda data, name=name: DamagedFolder(original, name, data)

    def _try_open(self, source: Source, number: int, what: str) -> None:
        with within(self.memory, number, what), typed_errors_only(what):
            probe(self.open(source))


def probe(file: File) -> None:
    """Access everything that `squish ls` shows, and decode the small tensors."""
    for name in islice(file, 1000):
        tensor = file[name]
        facts = (tensor.shape, tensor.dtype, tensor.codec, tensor.nbytes, tensor.bits_per_weight)
        assert facts, f"{name!r} has {len(facts)} facts"
        if tensor.spec.elements <= SMALL and sum(part.stored for part in _parts(tensor)) <= SMALL:
            with typed_errors_only(f"decoding {name!r}"):
                tensor.numpy()
    for name in file.assets:
        if file.index.assets[name].nbytes <= SMALL:
            file.assets[name]
    assert file.meta is not None, f"the metadata of {len(file)} tensors are None"


def _parts(tensor: Any) -> list[Any]:
    return [part for encoding in tensor.spec.encodings for part in encoding.parts.values()]
