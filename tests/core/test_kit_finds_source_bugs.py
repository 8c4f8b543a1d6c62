"""The kit's suite of sources finds a bug planted in each of these, and none in the example."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import acme_source
import pytest
import toys
from acme_source import ShelfSource, Shelves
from squish_testing import SourceSuite

from squish_core.api import Pin, Source, SourceInfo
from squish_core.errors import MissingFileError, SquishError

FILES = {"model.box": bytes(range(256)) * 1000, "config.json": b"{}"}
PASSWORD = "passw0rd"


class SharedOffset(ShelfSource):
    def read_ranges(self, ranges: Sequence[tuple[int, int]], what: str = "data") -> list[memoryview]:
        return [self.view(ranges[0][0], length, what) if length else memoryview(b"") for _, length in ranges]


class ForgetsAfterReadingAhead(ShelfSource):
    def read_ahead(self, ranges: Any) -> None:
        self._data = memoryview(bytes(len(self._data)))


class ChecksNoBounds(ShelfSource):
    def _check(self, offset: int, length: int, what: str) -> None:
        pass


class ClaimsEveryFile(ShelfSource):
    def _present(self, folder: str, names: Sequence[str]) -> tuple[str, ...]:
        return tuple(names)


class KnowsNoNeighbors(ShelfSource):
    def _present(self, folder: str, names: Sequence[str]) -> tuple[str, ...]:
        return ()


class NewPin(ShelfSource):
    count = 0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        type(self).count += 1
        self.pin = Pin(url="acme://one/model.box", size=self.size, tag=str(self.count))


class StaysOpen(ShelfSource):
    def close(self) -> None:
        pass


class TellsThePassword(ShelfSource):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.name += f"?{PASSWORD}"


BUGS = {
    SharedOffset: "test_every_way_of_reading_gives_the_bytes",
    ForgetsAfterReadingAhead: "test_announced_ranges_give_the_same_bytes",
    ChecksNoBounds: "test_a_range_outside_the_file_is_an_error",
    ClaimsEveryFile: "test_a_file_that_is_not_there_is_missing",
    KnowsNoNeighbors: "test_files_beside_it_are_there",
    NewPin: "test_the_pin_identifies_the_content",
    StaysOpen: "test_after_closing_views_stay_valid_and_reads_fail",
    TellsThePassword: "test_it_is_not_pickled_and_shows_no_secret",
}


class Opener(Shelves):
    implementation: type[ShelfSource] = ShelfSource

    def open(self, url: str, options: Mapping[str, Any]) -> Source:
        shelf, _, name = url.removeprefix("acme://").partition("/")
        return self.implementation(shelf, name, copy=False)


class Shelf(SourceSuite):
    source, secret = "acme", PASSWORD

    @cached_property
    def registry(self) -> Any:  # type: ignore[override]
        info = SourceInfo(id="acme", title="Acme's shelves", factory=f"{__name__}:Opener", schemes=("acme",))
        return toys.registry(toys.plugin(squish_sources=[info]))

    def files(self) -> dict[str, bytes]:
        return FILES

    def url(self, name: str) -> str:
        return f"acme://one/{name}"


@pytest.fixture(autouse=True)
def _shelf() -> Iterator[None]:
    acme_source.SHELVES["one"] = FILES
    yield
    acme_source.SHELVES.clear()


def names_of(suite: SourceSuite) -> list[str]:
    return [name for name in dir(suite) if name.startswith("test_") and "imports_no" not in name]


def test_the_example_without_a_bug_passes() -> None:
    for name in names_of(Shelf()):
        try:
            getattr(Shelf(), name)()
        except pytest.skip.Exception:
            assert "pin" in name  # it is in memory


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(bug: type[ShelfSource], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Opener, "implementation", bug)
    assert set(BUGS.values()) <= set(names_of(Shelf()))
    with pytest.raises((AssertionError, SquishError, MissingFileError, pytest.fail.Exception)):
        getattr(Shelf(), BUGS[bug])()
