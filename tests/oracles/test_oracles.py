"""The helper: values survive the pipe, a peer that dies or hangs is an error, versions live side by side."""

import signal
import struct
import time
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import oracles
from oracles.child import pack, unpack

oracle = pytest.mark.oracle


def through(value: object) -> Any:
    """The value after a way through a frame."""
    frame = b"".join(pack(value))
    position = 0

    def read(size: int) -> bytearray:
        nonlocal position
        position += size
        return bytearray(frame[position - size : position])

    return unpack(read)


def same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


ARRAYS = {
    "float32": np.arange(6, dtype="f4").reshape(2, 3),
    "big-endian": np.arange(6, dtype=">i2"),
    "transposed": np.arange(12).reshape(3, 4).T,
    "scalar": np.array(3.5),
    "empty": np.zeros((0, 3), "u1"),
    "bool": np.array([True, False]),
    "complex": np.array([1 + 2j], "c8"),
    "text": np.array(["a", "bcd"]),
    "nan": np.array([np.nan, -0.0, np.inf]),
    "bfloat16": np.arange(6).astype(ml_dtypes.bfloat16).reshape(3, 2),
    "float8": np.arange(4).astype(ml_dtypes.float8_e4m3fn),
    "int4": np.arange(-8, 8).astype(ml_dtypes.int4),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_survive_a_frame(name: str) -> None:
    array = ARRAYS[name]
    assert same(through(array), array.astype(array.dtype.newbyteorder("<")))


def test_values_survive_a_frame() -> None:
    value = {"list": [1, 2.5, None, True, "ü"], "nested": {"bytes": b"\x00\xff"}, "large": 2**80}
    assert through(value) == value
    assert through((np.float32(0.5), np.int64(3))) == [0.5, 3]


@pytest.mark.parametrize("value", [object(), {1, 2}, np.array([object()]), np.zeros(2, [("a", "f4")])])
def test_nothing_is_pickled(value: object) -> None:
    with pytest.raises(TypeError, match="cannot go over the pipe"):
        pack(value)


def test_a_type_the_reader_lacks_arrives_as_bytes() -> None:
    header = b'{"value": {"__array__": 0}, "arrays": [{"dtype": "float9", "shape": [2, 1], "itemsize": 2}]}'
    frame = struct.pack("<Q", len(header)) + header + bytes(range(4))
    pieces = iter((frame[:8], header, frame[-4:]))
    assert unpack(lambda size: bytearray(next(pieces))).tolist() == [[[0, 1]], [[2, 3]]]


def test_a_missing_python_is_named() -> None:
    with pytest.raises(oracles.OracleError, match=r"Python 3\.1 is missing"):
        oracles.find_python("3.1")


def test_interleave_takes_turns() -> None:
    turns: list[str] = []

    def measured() -> float:
        turns.append("b")
        return 2.0

    seconds = oracles.interleave({"a": lambda: turns.append("a"), "b": oracles.Timed(measured)}, repeat=3)
    assert turns == ["a", "b"] * 4
    assert seconds["b"] == 2.0


def echo(**args: object) -> object:
    print("a print must not land in the pipe")
    return args


@oracle
def test_echo() -> None:
    answer = oracles.peer("ml_dtypes").run(echo, arrays=ARRAYS, number=3)
    assert answer["number"] == 3
    for name, array in ARRAYS.items():
        assert same(answer["arrays"][name], array.astype(array.dtype.newbyteorder("<"))), name


@oracle
def test_bfloat16_is_raw_where_ml_dtypes_is_missing() -> None:
    def describe(array: np.ndarray) -> object:
        return [str(array.dtype), array.shape, array]

    peer = oracles.peer("gguf")
    dtype, shape, raw = peer.run(describe, array=ARRAYS["bfloat16"])
    assert (dtype, shape) == ("uint8", [3, 2, 2])
    assert raw.tobytes() == ARRAYS["bfloat16"].tobytes()


@oracle
def test_snippet() -> None:
    assert oracles.peer("ml_dtypes").run("result = (a * 2).sum()", a=np.arange(4)) == 12


@oracle
def test_an_exception_there_is_a_peer_error_here() -> None:
    peer = oracles.peer("ml_dtypes")
    with pytest.raises(oracles.PeerError, match="not a number") as caught:
        peer.run("raise ValueError('not a number')")
    assert caught.value.kind == "ValueError"
    assert peer.run("result = 1") == 1


@oracle
@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT])
def test_a_crash_is_reported_and_the_next_call_works(number: int) -> None:
    def crash(number: int) -> None:
        import os
        import sys

        print("last words", file=sys.stderr, flush=True)
        os.kill(os.getpid(), number)

    peer = oracles.peer("ml_dtypes")
    with pytest.raises(oracles.PeerCrashed, match=signal.Signals(number).name) as caught:
        peer.run(crash, number=int(number))
    assert caught.value.returncode == -number
    assert "last words" in caught.value.stderr
    assert peer.run("result = 1") == 1


@oracle
def test_timeout() -> None:
    peer = oracles.peer("ml_dtypes")
    start = time.monotonic()
    with pytest.raises(oracles.PeerTimeout):
        peer.run("import time; time.sleep(60)", timeout=0.5)
    assert time.monotonic() - start < 30
    assert peer.run("result = 1") == 1


@oracle
def test_a_prepared_function_is_timed_in_the_peer() -> None:
    def sleeper(seconds: float) -> Callable[[], None]:
        import time

        return lambda: time.sleep(seconds)

    prepared = oracles.peer("ml_dtypes").prepare(sleeper, seconds=0.05)
    seconds = oracles.interleave({"peer": prepared, "here": lambda: None}, repeat=3)
    assert 0.05 <= seconds["peer"] < 5
    assert seconds["here"] < 0.05


def version(package: str) -> str:
    import importlib
    from importlib.metadata import version

    importlib.import_module(package)
    return version(package)


@oracle
def test_three_ztensors_side_by_side() -> None:
    versions = ["1.1.1", "1.2.3", "2.1.2"]
    peers = [oracles.peer(f"ztensor-{version_}") for version_ in versions]
    assert [peer.run(version, package="ztensor") for peer in peers] == versions


@oracle
@pytest.mark.parametrize(("name", "expected"), [("gguf", "0.19.0"), ("safetensors", "0.8.0"), ("torch", "2.13.0")])
def test_peers_are_what_they_say(name: str, expected: str) -> None:
    assert oracles.peer(name).run(version, package=name).startswith(expected)
