"""Rows picked by a list or a step: the values of NumPy's index, in one batch that reads no byte in vain."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from squish_testing.sources import CountingSource

import squish_core as squish
from squish_core.errors import RangeError
from squish_core.io.local import open_source

ROWS, COLUMNS = 96, 512


class RemoteSource(CountingSource):
    """Counts like its base, as a source over a network; `batches` holds the ranges of each call."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.batches: list[list[tuple[int, int]]] = []
        self.is_remote = True

    def read_ranges(self, ranges: Sequence[tuple[int, int]], what: str = "data") -> list[memoryview]:
        self.batches.append(list(ranges))
        return super().read_ranges(ranges, what)


@pytest.fixture(scope="module", params=["f32", "q8_0.gguf", "q4_k.gguf", "int4.zt"])
def path(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A matrix, as stored by several codecs."""
    folder = tmp_path_factory.mktemp("rows")
    dense = folder / "f32.safetensors"
    squish.save(dense, {"w": np.random.default_rng(0).normal(size=(ROWS, COLUMNS)).astype("f4")})
    if request.param == "f32":
        return dense
    squish.convert(dense, folder / request.param, encode=request.param.split(".")[0])
    return folder / request.param


@pytest.mark.parametrize(
    "key",
    [
        [1, 5, 9], [5, 1, 5], [-1, 0], [], np.array([3, 4, 70]), ([2, 3, 95], slice(32, 64)), ([7, 8], 5), ([7], ...),
        slice(None, None, 8), slice(90, 3, -7), (slice(1, 50, 24), slice(0, 40)),
    ],
    ids=str,
)  # fmt: skip
def test_picked_rows_are_those_of_numpy(path: Path, key: Any) -> None:
    source = RemoteSource(open_source(path))
    with squish.open(source) as remote, squish.open(path) as local:
        expected = local["w"].numpy()[key]
        for file in (remote, local):
            rows = file["w"][key]
            np.testing.assert_array_equal(rows, expected)
            assert (rows.dtype, rows.flags.writeable) == (expected.dtype, False)


def test_picked_rows_are_one_batch_of_their_bytes(path: Path) -> None:
    source = RemoteSource(open_source(path))
    with squish.open(source) as file:
        encoding = file["w"].spec.encodings[0]
        by_row = [part for part in encoding.parts.values() if part.shape and part.shape[0] == ROWS]
        for key in ([1, 5, 9], slice(2, None, 31)):
            source.log.clear()
            source.batches.clear()
            file["w"][key]
            count = len(range(ROWS)[key]) if isinstance(key, slice) else len(key)
            assert len(source.batches) == 1
            assert sorted(length for _, length in source.batches[0]) == sorted(
                part.nbytes // ROWS for part in by_row for _ in range(count)
            )
            beyond = [length for _, _, length in source.log][len(source.batches[0]) :]
            assert sum(beyond) <= 4 * count, "only a scale of the whole tensor is read besides"


@pytest.mark.parametrize("key", [[ROWS], [-ROWS - 1], [1.5], [True], ["a"], [[1, 2]], ([0], 0, 0)], ids=str)
def test_rows_that_are_not_there_are_refused(path: Path, key: Any) -> None:
    with squish.open(path) as file, pytest.raises(RangeError) as caught:
        file["w"][key]
    assert caught.value.code == "index"
