"""The child's end of a peer's pipe, and the frames both ends speak. It needs nothing but NumPy.

A frame is the header's length (8 bytes, little-endian), a JSON header and the arrays' bytes in order. The
header is `{"value": ..., "arrays": [{"dtype": ..., "shape": [...], "itemsize": ...}]}`, where
`{"__array__": 3}` in the value stands for array 3.
Nothing is pickled: the ends may differ in Python and NumPy.
"""

import __future__

import contextlib
import faulthandler
import functools
import json
import math
import os
import struct
import time
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

with contextlib.suppress(ImportError):
    import ml_dtypes  # noqa: F401 - np.dtype then knows bfloat16 and the others by name

Read = Callable[[int], bytearray]


def pack(value: object) -> list[bytes | memoryview]:
    """The frame of a JSON-able value that may hold arrays, NumPy scalars, bytes. Tuples arrive as lists."""
    arrays: list[dict[str, object]] = []
    blobs: list[bytes | memoryview] = []

    def default(item: object) -> object:
        if isinstance(item, np.generic):
            return item.item()
        if isinstance(item, bytes | bytearray | memoryview):
            blobs.append(bytes(item))
            arrays.append({"dtype": "bytes", "shape": [len(blobs[-1])], "itemsize": 1})
        elif isinstance(item, np.ndarray):
            if item.dtype.hasobject or item.dtype.names:
                raise TypeError(f"an array of {item.dtype} cannot go over the pipe")
            native = item.dtype.newbyteorder("<")
            # `str` of a type that ml_dtypes adds says only how wide it is
            name = native.name if native.isbuiltin == 2 else native.str
            arrays.append({"dtype": name, "shape": list(item.shape), "itemsize": native.itemsize})
            blobs.append(np.ascontiguousarray(item, native).reshape(-1).view(np.uint8).data)
        else:
            raise TypeError(f"a {type(item).__name__} cannot go over the pipe")
        return {"__array__": len(arrays) - 1}

    # the arrays are met while the value is written, so the header is put together afterwards
    text = json.dumps(value, default=default)
    header = f'{{"value": {text}, "arrays": {json.dumps(arrays)}}}'.encode()
    return [struct.pack("<Q", len(header)), header, *blobs]


def unpack(read: Read) -> Any:
    """The value of the next frame. Without ml_dtypes its types arrive as uint8, an item on the last axis."""
    header = json.loads(read(struct.unpack("<Q", read(8))[0]))
    arrays = [_array(read, **entry) for entry in header["arrays"]]

    def fill(item: object) -> object:
        if isinstance(item, list):
            return [fill(member) for member in item]
        if isinstance(item, dict):
            if item.keys() == {"__array__"}:
                return arrays[item["__array__"]]
            return {key: fill(member) for key, member in item.items()}
        return item

    return fill(header["value"])


def _array(read: Read, dtype: str, shape: list[int], itemsize: int) -> bytes | np.ndarray:
    data = read(math.prod(shape) * itemsize)
    if dtype == "bytes":
        return bytes(data)
    raw = np.frombuffer(data, np.uint8)
    try:
        return raw.view(np.dtype(dtype)).reshape(shape)
    except TypeError:
        return raw.reshape(*shape, itemsize)


@functools.cache
def _compiled(source: str, name: str) -> Callable[..., Any]:
    """The function `name` in `source`; without a name, the source is a snippet that sets `result`."""
    # annotations are never evaluated: those of a test file name things that the child does not have
    flags = __future__.annotations.compiler_flag
    code = compile(source, "<sent to the peer>", "exec", flags=flags)
    names: dict[str, Any] = {"np": np, "__name__": "__peer__"}
    if name:
        exec(code, names)
        return names[name]

    def snippet(**args: object) -> object:
        scope = names | args
        exec(code, scope)
        return scope.get("result")

    return snippet


def _answer(request: dict[str, Any], prepared: list[Callable[[], object]]) -> object:
    if request["do"] == "time":
        call = prepared[request["number"]]
        start = time.perf_counter()
        call()
        return time.perf_counter() - start
    result = _compiled(request["source"], request["name"])(**request["args"])
    if request["do"] == "prepare":
        prepared.append(result)
        return len(prepared) - 1
    return result


def main() -> None:
    """Answer requests until the parent closes the pipe."""
    faulthandler.enable()
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # whatever the peer prints, from C as well, must not land between the frames

    def read(size: int) -> bytearray:
        data = bytearray(size)  # writable, so the arrays made of it are
        if requests.readinto(data) != size:
            raise EOFError
        return data

    prepared: list[Callable[[], object]] = []
    while True:
        try:
            request = unpack(read)
        except EOFError:
            return
        try:
            frame = pack({"result": _answer(request, prepared)})
        except BaseException as error:  # a Rust panic is no Exception
            text = {"kind": type(error).__name__, "message": str(error), "trace": traceback.format_exc()}
            frame = pack({"error": text})
        for piece in frame:
            answers.write(piece)
        answers.flush()


if __name__ == "__main__":
    main()
