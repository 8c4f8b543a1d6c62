"""The suite for byte codecs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squish_core.codecs.base import Params
from squish_core.codecs.byte_codec import ByteCodec
from squish_core.errors import CodecError
from squish_core.io.source import BytesSource
from squish_core.limits import DEFAULT
from squish_core.plugins.hookspecs import CodecInfo
from squish_core.testing.memory import within
from squish_core.testing.mutations import mutant, truncations
from squish_core.testing.suite import Suite, parametrize, typed_errors_only

PIECE = 1 << 20
_LIMITED = 1
"""Number of a block that `within` limits rather than measures."""


class ByteCodecSuite(Suite):
    """Checks of a byte codec. Set `codec`, give `cases`: contents and parameters that matter.

    `bomb`: zero bytes that the codec compresses and then may not decode into a small buffer; `memory`: bytes that any
    decoding may take beyond its output; `mutations`: damaged copies of each case. `stored` replaces `encode` for a
    codec that only decodes.
    """

    kind = "codec"
    codec: str
    bomb = 256 << 20
    memory = 50_000_000
    mutations = 500
    seed = 0

    def cases(self) -> Mapping[str, tuple[bytes, Params]]:
        """Label -> (decoded bytes, parameters)."""
        raise NotImplementedError

    def stored(self, case: str) -> bytes:
        """The stored bytes of a case."""
        content, params = self.cases()[case]
        return self._encode([content], params)

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """Run the tests that ask for a case once for each."""
        parametrize(metafunc, "case", self.cases())

    def test_the_declaration_is_of_a_byte_codec(self) -> None:
        """`kind` says "bytes", and a byte codec keeps every bit."""
        info = self.entry().info
        assert isinstance(info, CodecInfo), f"{self.codec} is declared as {type(info).__name__}"
        declaration = f"kind={info.kind!r}, lossless={info.lossless}"
        assert (info.kind, info.lossless) == ("bytes", True), (
            f"{self.codec} declares {declaration}; expected bytes, True"
        )

    def test_decoding_gives_the_content(self, case: str) -> None:
        """Every byte of the output is written, whatever was there before."""
        content, params = self.cases()[case]
        for fill in (0x00, 0xA5):
            out = bytearray([fill]) * len(content)
            self._codec().decode(memoryview(self.stored(case)), params, out=memoryview(out), ratio=DEFAULT.ratio)
            assert out == content, f"{case}: byte {_first(out, content)} of {len(content)} differs over {fill:#x}"

    def test_encoding_takes_any_chunks_and_is_deterministic(self, case: str) -> None:
        """However the content is cut, the same chunks give the same bytes, and all decode to the content."""
        content, params = self.cases()[case]
        third = len(content) // 3 + 1
        pieces = [content[at : at + third] for at in range(0, len(content), third)]
        for chunks in ([content], pieces, [b"", memoryview(content), b""]):
            first, second = (self._encode(chunks, params) for _ in range(2))
            assert first == second, f"{case}: two encodings differ at byte {_first(first, second)} of {len(first)}"
            decoded = self._decode(first, params, len(content))
            assert decoded == content, f"{case} in {len(chunks)} chunks: byte {_first(decoded, content)} differs"

    def test_a_wrong_size_is_refused(self, case: str) -> None:
        """CodecError when the stored bytes give fewer or more bytes than the output has."""
        content, params = self.cases()[case]
        stored, size = self.stored(case), len(content)
        for wrong in sorted({0, size // 2, size - 1, size + 1, 2 * size + 1} - {size, -1}):
            with typed_errors_only(f"{case}: decoding {size} bytes into {wrong}"):
                try:
                    self._decode(stored, params, wrong)
                except CodecError:
                    continue
            pytest.fail(f"{case}: {size} bytes decode into an output of {wrong} bytes without an error")

    def test_every_truncation_is_refused(self, case: str) -> None:
        """A cut stream is a CodecError; never other bytes than the content."""
        stored = self.stored(case)
        for length in truncations(len(stored), 200):
            self._survives(stored[:length], case, f"{case} cut to {length} of {len(stored)} bytes", exact=True)

    def test_mutants_give_typed_errors_only(self, case: str) -> None:
        """Damaged streams are a CodecError or other bytes, within bounded memory."""
        stored = self.stored(case)
        for number in range(self.mutations if stored else 0):
            data = mutant(stored, number, self.seed)
            with within(self.memory + len(self.cases()[case][0]), number, case):
                self._survives(data, case, f"{case}: mutant(stored, {number}, seed={self.seed})", exact=False)

    def test_a_bomb_costs_no_more_than_the_output(self) -> None:
        """A small stream that expands to `bomb` bytes is refused within `memory` by `decode` and `decoded_size`."""
        stored = self._encode((bytes(PIECE) for _ in range(self.bomb // PIECE)), {})
        if len(stored) > self.bomb // 16:
            pytest.skip(f"no bomb: {self.bomb} zeros take {len(stored)} stored bytes")
        message = f"a bomb of {len(stored)} bytes that expands to {self.bomb}"
        for number in (0, _LIMITED):
            with within(self.memory, number, message), typed_errors_only(message), pytest.raises(CodecError):
                self._decode(stored, {}, 16)
            with within(self.memory, number, message), typed_errors_only(f"measuring {message}"):
                try:
                    size = self._codec().decoded_size(memoryview(stored), {}, most=16)
                except CodecError:
                    continue
                assert size is None or size <= 16, f"{message}: decoded_size(most=16) gives {size} without an error"

    def test_measuring_gives_the_size(self, case: str) -> None:
        """`decoded_size` gives the decoded size, or None."""
        content, params = self.cases()[case]
        size = self._codec().decoded_size(memoryview(self.stored(case)), params, most=len(content))
        assert size in (None, len(content)), f"{case}: decoded_size() gives {size} bytes, decoding gives {len(content)}"

    def test_a_range_equals_the_slice_of_the_content(self, case: str) -> None:
        """`covering` covers the range, and `decode_range` gives that part of the content."""
        content, params = self.cases()[case]
        stored, codec, size = memoryview(self.stored(case)), self._codec(), len(content)

        @settings(max_examples=25, derandomize=True, database=None, deadline=None, report_multiple_bugs=False)
        @given(st.integers(0, size), st.integers(0, size))
        def check(one: int, other: int) -> None:
            start, stop = min(one, other), max(one, other)
            low, high = codec.covering(stored, params, size=size, start=start, stop=stop)
            message = f"{case}: covering({start}, {stop}) gives {low} to {high} of {size} bytes"
            assert 0 <= low <= start <= stop <= high <= size, message
            if (low, high) != (0, size):
                out = bytearray(high - low)
                with typed_errors_only(f"{message}; decode_range()"):
                    codec.decode_range(stored, params, size=size, start=low, out=memoryview(out))
                assert out == content[low:high], f"{message}; byte {low + _first(out, content[low:high])} differs"

        check()

    def test_a_file_compressed_whole_is_read_back(self, case: str) -> None:
        """`packing` writes what begins with the declared signature, and `unpacked` gives the content."""
        signature = self.entry().info.signature  # type: ignore[union-attr]
        if not signature:
            pytest.skip("the declaration has no signature: no file is compressed whole")
        content, _ = self.cases()[case]
        written = bytearray()
        with self._codec().packing(written.extend) as write:
            write(content)
        begin = bytes(written[: len(signature)])
        assert begin == signature, f"{case}: the file begins with {begin!r}, the declaration says {signature!r}"
        source = self._codec().unpacked(BytesSource(bytes(written), f"{case}{self.entry().info.suffix}"), DEFAULT)  # type: ignore[union-attr]
        decoded = source.read(0, source.size)
        assert decoded == content, f"{case}: {len(written)} bytes unpack to {len(decoded)}, expected {len(content)}"

    def _codec(self) -> ByteCodec:
        return self.registry.byte_codec(self.codec)

    def _encode(self, chunks: Any, params: Params) -> bytes:
        def pieces() -> Iterator[Any]:
            yield from chunks

        return b"".join(bytes(piece) for piece in self._codec().encode(pieces(), params))

    def _decode(self, stored: bytes, params: Params, size: int) -> bytes:
        out = bytearray(size)
        self._codec().decode(memoryview(stored), params, out=memoryview(out), ratio=DEFAULT.ratio)
        return bytes(out)

    def _survives(self, stored: bytes, case: str, message: str, *, exact: bool) -> None:
        content, params = self.cases()[case]
        with typed_errors_only(message):
            try:
                decoded = self._decode(stored, params, len(content))
            except CodecError:
                return
            assert not exact or decoded == content, f"decodes without an error, byte {_first(decoded, content)} differs"


def _first(one: Any, other: Any) -> int:
    """Index of the first byte that differs."""
    return next((at for at, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))
