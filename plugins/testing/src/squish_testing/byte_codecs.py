"""Test suite for byte codecs."""

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

from .memory import within
from .mutations import mutant, truncations
from .suite import Suite, cases_of, parametrize, typed_errors_only

PIECE = 1 << 20
_LIMITED = 1
"""A block number for which `within` limits memory instead of measuring it."""


class ByteCodecSuite(Suite):
    """Tests of a byte codec. Set `codec` and override `cases` with contents and parameters that matter.

    `bomb`: number of zero bytes to compress for the decompression bomb; `memory`: bytes that decoding may take beyond
    its output; `mutations`: damaged copies of each case. Override `stored` for a codec that only decodes.
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
        """Return the stored bytes of a case."""
        content, params = cases_of(type(self))[case]
        return self._encode([content], params)

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """Parametrize tests that take a case."""
        parametrize(metafunc, "case", cases_of(type(self)))

    def test_the_declaration_is_for_a_byte_codec(self) -> None:
        """The declaration says kind "bytes" and lossless."""
        info = self.entry().info
        assert isinstance(info, CodecInfo), f"{self.codec} is declared as {type(info).__name__}"
        declaration = f"kind={info.kind!r}, lossless={info.lossless}"
        assert (info.kind, info.lossless) == ("bytes", True), (
            f"{self.codec} declares {declaration}; expected bytes, True"
        )

    def test_decoding_gives_the_content(self, case: str) -> None:
        """Decoding writes every byte of the output."""
        content, params = cases_of(type(self))[case]
        for fill in (0x00, 0xA5):
            out = bytearray([fill]) * len(content)
            self._codec().decode(memoryview(self.stored(case)), params, out=memoryview(out), ratio=DEFAULT.ratio)
            assert out == content, f"{case}: byte {_first(out, content)} of {len(content)} differs over {fill:#x}"

    def test_encoding_takes_any_chunks_and_is_deterministic(self, case: str) -> None:
        """Equal chunks encode to equal bytes, and any chunks decode to the content."""
        content, params = cases_of(type(self))[case]
        third = len(content) // 3 + 1
        pieces = [content[at : at + third] for at in range(0, len(content), third)]
        for chunks in ([content], pieces, [b"", memoryview(content), b""]):
            first, second = (self._encode(chunks, params) for _ in range(2))
            assert first == second, f"{case}: two encodings differ at byte {_first(first, second)} of {len(first)}"
            decoded = self._decode(first, params, len(content))
            assert decoded == content, f"{case} in {len(chunks)} chunks: byte {_first(decoded, content)} differs"

    def test_a_wrong_size_is_refused(self, case: str) -> None:
        """CodecError if the output is smaller or larger than the decoded bytes."""
        content, params = cases_of(type(self))[case]
        data, size = self.stored(case), len(content)
        for wrong in sorted({0, size // 2, size - 1, size + 1, 2 * size + 1} - {size, -1}):
            with typed_errors_only(f"{case}: decoding {size} bytes into {wrong}"):
                try:
                    self._decode(data, params, wrong)
                except CodecError:
                    continue
            pytest.fail(f"{case}: {size} bytes decode into an output of {wrong} bytes without an error")

    def test_every_truncation_is_refused(self, case: str) -> None:
        """A truncated stream raises CodecError or decodes to the exact content."""
        stream = self.stored(case)
        for length in truncations(len(stream), 200):
            self._try_decode(stream[:length], case, f"{case} cut to {length} of {len(stream)} bytes", exact=True)

    def test_mutants_give_typed_errors_only(self, case: str) -> None:
        """Damaged streams raise CodecError or decode to something else, in bounded memory."""
        stream = self.stored(case)
        for number in range(self.mutations if stream else 0):
            data = mutant(stream, number, self.seed)
            with within(self.memory + len(cases_of(type(self))[case][0]), number, case):
                self._try_decode(data, case, f"{case}: mutant(stored, {number}, seed={self.seed})", exact=False)

    def test_a_bomb_costs_no_more_than_the_output(self) -> None:
        """`decode` and `decoded_size` refuse a small stream that expands to `bomb` bytes, within `memory`."""
        stream = self._encode((bytes(PIECE) for _ in range(self.bomb // PIECE)), {})
        if len(stream) > self.bomb // 16:
            pytest.skip(f"not a bomb: {self.bomb} zeros take {len(stream)} stored bytes")
        message = f"a bomb of {len(stream)} bytes that expands to {self.bomb}"
        for number in (0, _LIMITED):
            with within(self.memory, number, message), typed_errors_only(message), pytest.raises(CodecError):
                self._decode(stream, {}, 16)
            with within(self.memory, number, message), typed_errors_only(f"measuring {message}"):
                try:
                    size = self._codec().decoded_size(memoryview(stream), {}, most=16)
                except CodecError:
                    continue
                assert size is None or size <= 16, f"{message}: decoded_size(most=16) gives {size} without an error"

    def test_decoded_size_is_the_size_or_none(self, case: str) -> None:
        """`decoded_size` gives the decoded size, or None."""
        content, params = cases_of(type(self))[case]
        size = self._codec().decoded_size(memoryview(self.stored(case)), params, most=len(content))
        assert size in (None, len(content)), f"{case}: decoded_size() gives {size} bytes, decoding gives {len(content)}"

    def test_a_range_equals_the_slice_of_the_content(self, case: str) -> None:
        """`covering` includes the range, and `decode_range` gives the content of what it covers."""
        content, params = cases_of(type(self))[case]
        stream, codec, size = memoryview(self.stored(case)), self._codec(), len(content)

        @settings(max_examples=25, derandomize=True, database=None, deadline=None, report_multiple_bugs=False)
        @given(st.integers(0, size), st.integers(0, size))
        def check(one: int, other: int) -> None:
            start, stop = min(one, other), max(one, other)
            low, high = codec.covering(stream, params, size=size, start=start, stop=stop)
            message = f"{case}: covering({start}, {stop}) gives {low} to {high} of {size} bytes"
            assert 0 <= low <= start <= stop <= high <= size, message
            if (low, high) != (0, size):
                out = bytearray(high - low)
                with typed_errors_only(f"{message}; decode_range()"):
                    codec.decode_range(stream, params, size=size, start=low, out=memoryview(out))
                assert out == content[low:high], f"{message}; byte {low + _first(out, content[low:high])} differs"

        check()

    def test_a_compressed_file_reads_back(self, case: str) -> None:
        """`packing` writes a file that begins with the declared signature, and `unpacked` gives its content."""
        signature = self.entry().info.signature
        if not signature:
            pytest.skip("the declaration has no signature: the codec does not compress files")
        content, _ = cases_of(type(self))[case]
        packed = bytearray()
        with self._codec().packing(packed.extend) as write:
            write(content)
        begin = bytes(packed[: len(signature)])
        assert begin == signature, f"{case}: the file begins with {begin!r}, the declaration says {signature!r}"
        source = self._codec().unpacked(BytesSource(bytes(packed), f"{case}{self.entry().info.suffix}"), DEFAULT)
        decoded = source.read(0, source.size)
        assert decoded == content, f"{case}: {len(packed)} bytes unpack to {len(decoded)}, expected {len(content)}"

    def _codec(self) -> ByteCodec:
        return self.registry.byte_codec(self.codec)

    def _encode(self, chunks: Any, params: Params) -> bytes:
        def pieces() -> Iterator[Any]:
            yield from chunks

        return b"".join(bytes(piece) for piece in self._codec().encode(pieces(), params))

    def _decode(self, data: bytes, params: Params, size: int) -> bytes:
        out = bytearray(size)
        self._codec().decode(memoryview(data), params, out=memoryview(out), ratio=DEFAULT.ratio)
        return bytes(out)

    def _try_decode(self, data: bytes, case: str, message: str, *, exact: bool) -> None:
        content, params = cases_of(type(self))[case]
        with typed_errors_only(message):
            try:
                decoded = self._decode(data, params, len(content))
            except CodecError:
                return
            assert not exact or decoded == content, f"decodes without an error, byte {_first(decoded, content)} differs"


def _first(one: Any, other: Any) -> int:
    """Index of the first byte that differs."""
    return next((at for at, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))
