"""Test suite for sources of URLs."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import pytest

from squish_core.codes import ErrorCode
from squish_core.concurrency import Pool
from squish_core.errors import ClosedError, MissingFileError, SquishError, TruncatedError
from squish_core.io.pin import Pin
from squish_core.io.source import Source
from squish_core.plugins.sources import open_target

from .suite import Suite, typed_errors_only


class SourceSuite(Suite):
    """Tests of a source. Set `source`, and override `files` and `url`.

    `secret`: text in the URLs that must never be shown, such as a password.
    """

    kind = "source"
    source: str
    secret = ""

    def files(self) -> Mapping[str, bytes]:
        """Name -> content of the files of one folder; the first one is of at least 200,000 bytes."""
        raise NotImplementedError

    def url(self, name: str) -> str:
        """Return the URL of a file in the folder, which may not exist."""
        raise NotImplementedError

    def options(self) -> Mapping[str, Any]:
        """Options to open with."""
        return {}

    def open(self, name: str = "") -> Source:
        """Open a file, by default the first one."""
        return open_target(self.url(name or next(iter(self.files()))), self.registry, self.options())

    def content(self) -> bytes:
        """Return the content of the first file."""
        return next(iter(self.files().values()))

    def test_the_declaration_is_plain_data(self) -> None:
        """The declaration names schemes and a sentence for each option, and its implementation can be imported."""
        entry = self.entry()
        info = entry.info
        assert info.schemes, f"{self.source} declares {len(info.schemes)} schemes"
        short = [name for name, text in info.options.items() if len(text) < 10]
        assert not short, f"{self.source}: {len(short)} options without a sentence: {short}"
        implementation = self.registry.instance("source", entry)
        assert implementation.id == self.source, f"{self.source!r} is imported as {implementation.id!r}, 1 id expected"

    def test_every_way_of_reading_gives_the_bytes(self) -> None:
        """`read`, `view`, `read_into` and `read_ranges`, near and far, in any order, overlapping or empty."""
        content, source = self.content(), self.open()
        size = len(content)
        assert source.size == size, f"the size is {source.size}, expected {size}"
        ranges = [(0, 16), (size - 10, 10), (100_000, 5000), (102_000, 5000), (70_000, 1), (5, 0), (0, size), (size, 0)]
        views = source.read_ranges(ranges)
        for (offset, length), view in zip(ranges, views, strict=True):
            expected = content[offset : offset + length]
            into = memoryview(bytearray(length))
            source.read_into(offset, into)
            for way, data in {
                "read_ranges": view,
                "read": source.read(offset, length),
                "view": source.view(offset, length),
                "read_into": into,
            }.items():
                assert bytes(data) == expected, f"{way}({offset}, {length}) gives other bytes"
        source.close()

    def test_announced_ranges_give_the_same_bytes(self) -> None:
        """After `read_ahead`: in another order, in other pieces, twice, and after it is called off."""
        content, source = self.content(), self.open()
        source.read_ahead([(start, 50_000) for start in range(0, 200_000, 50_000)])
        for offset, length in ((150_000, 50_000), (0, 1000), (40_000, 20_000), (0, 50_000), (150_000, 50_000)):
            actual = bytes(source.view(offset, length))
            assert actual == content[offset : offset + length], f"view({offset}, {length}) gives other bytes"
        source.read_ahead(())
        actual = bytes(source.view(100_000, 50_000))
        assert actual == content[100_000:150_000], f"view(100000, {len(actual)}) gives other bytes after read_ahead(())"
        source.close()

    def test_a_range_outside_the_file_is_an_error(self) -> None:
        """TruncatedError, before anything is read."""
        with closing(self.open()) as source:
            for offset, length in ((0, source.size + 1), (source.size, 1), (-1, 1)):
                with pytest.raises(TruncatedError):
                    source.view(offset, length)

    def test_a_file_that_is_not_there_is_missing(self) -> None:
        """MissingFileError, also for a file beside another one; the URL is shown without its secret."""
        with pytest.raises(MissingFileError) as caught:
            self.open("no-such-file.gguf")
        assert caught.value.code == ErrorCode.MISSING, f"the code is {caught.value.code!r}, expected 'missing'"
        self._assert_no_secret(str(caught.value))
        with closing(self.open()) as source:
            absent = "no-such-file.gguf"
            assert not source.has(absent), f"has({absent!r}) claims a file that is not there"
            with pytest.raises(MissingFileError):
                source.member(absent).read(0, 1)

    def test_files_beside_it_are_there(self) -> None:
        """`has`, `members` and `member` agree, and names that lead elsewhere are refused."""
        with closing(self.open()) as source:
            names = set(self.files())
            members = source.members(likely=(*names, "no-such-file.gguf"))
            assert names <= set(members), (
                f"members() gives {len(members)} names, {sorted(names - set(members))} are absent"
            )
            below = source.members("no-such-folder")
            assert below == (), f"members('no-such-folder') gives {len(below)} names, expected none"
            for name, content in self.files().items():
                assert source.has(name), f"has({name!r}) is False, it has {len(content)} bytes"
                data = source.member(name).read(0, len(content))
                assert data == content, f"member({name!r}) gives {len(data)} other bytes"
            for name in ("../x", "a/b", "http://x", "x\0", ""):
                with pytest.raises(SquishError):
                    source.member(name)

    def test_the_pin_identifies_the_content(self) -> None:
        """Two openings have one pin; opening the pin gives the bytes; another size is refused."""
        with closing(self.open()) as one, closing(self.open()) as other:
            if one.pin is None:
                pytest.skip("this source has no pins: it is not remote")
            one.pin.check(other.pin)
            self._assert_no_secret(repr(one.pin))
            wrong = Pin(url=self.url(next(iter(self.files()))), size=one.size + 1)
            again = Pin(**{**one.pin.to_dict(), "url": wrong.url})
        with closing(open_target(again, self.registry, self.options())) as source:
            data = source.read(0, 100)
            assert data == self.content()[:100], f"the pin leads to {len(data)} other bytes"
        with pytest.raises(SquishError) as caught:
            open_target(wrong, self.registry, self.options())
        assert caught.value.code == ErrorCode.CHANGED, f"another size is {caught.value.code!r}, expected 'changed'"

    def test_after_closing_views_stay_valid_and_reads_fail(self) -> None:
        """ClosedError for new reads, also of files beside it."""
        source = self.open()
        view, member = source.view(0, 1000), source.member(next(iter(self.files())))
        source.close()
        assert bytes(view) == self.content()[:1000], f"{len(view)} bytes of a view changed by closing"
        for closed in (source, member):
            with pytest.raises(ClosedError):
                closed.view(0, 1000)

    def test_threads_share_a_source(self) -> None:
        """Eight threads read ranges of their own."""
        content = self.content()
        with closing(self.open()) as source, Pool(8) as pool:
            starts = [number * 997 % (len(content) - 5000) for number in range(64)]
            for start, data in zip(starts, pool.map(lambda start: bytes(source.view(start, 5000)), starts)):
                assert data == content[start : start + 5000], f"a thread read other bytes at {start}"

    def test_it_is_not_pickled_and_shows_no_secret(self) -> None:
        """TypeError, as for every source; neither its name nor its `repr` has the secret."""
        with closing(self.open()) as source:
            with pytest.raises(TypeError):
                pickle.dumps(source)
            self._assert_no_secret(f"{source!r} {source.name} {source.filename}")

    def test_an_unknown_option_is_refused(self) -> None:
        """A UsageError that lists the options."""
        with typed_errors_only("an option that is not declared"), pytest.raises(SquishError):
            open_target(self.url(next(iter(self.files()))), self.registry, {"no_such_option": 1})

    def _assert_no_secret(self, text: str) -> None:
        assert not self.secret or self.secret not in text, f"the secret is in {len(text)} characters: {text}"
