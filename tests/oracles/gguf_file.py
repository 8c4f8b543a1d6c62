"""A GGUF as a list of keys and a list of tensors, which tests change one at a time; data is never read.

The values of weights do not matter to whether an engine loads a file, so a written file is a header and a hole, but for
factors of RoPE: engines divide by them.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

from attrs import field, frozen

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
NUMBERS = {
    U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "?", U64: "Q", I64: "q", F64: "d",
}  # fmt: skip
BLOCKS = {0: (1, 4), 1: (1, 2), 2: (32, 18), 8: (32, 34), 12: (256, 144), 26: (1, 4), 28: (1, 8), 30: (1, 2)}
"""Types of tensors that mutants have -> values and bytes of a block: F32, F16, Q4_0, Q8_0, Q4_K, I32, F64, BF16."""


@frozen
class Key:
    """A key: its type, and the type of its elements if it is an array."""

    name: str
    type: int
    value: Any
    items: int = -1


@frozen
class Tensor:
    """A tensor: its sizes as the file lists them, the number of a row's values first."""

    name: str
    sizes: tuple[int, ...]
    type: int

    @property
    def nbytes(self) -> int:
        values, size = BLOCKS[self.type]
        count = 1
        for each in self.sizes:
            count *= each
        return -(-count // values) * size


@frozen
class Gguf:
    """What a header states. `missing` bytes are cut off the end; `first` are the magic and the version."""

    keys: tuple[Key, ...]
    tensors: tuple[Tensor, ...]
    first: bytes = b"GGUF" + struct.pack("<I", 3)
    missing: int = 0
    order: str = "<"
    offsets: dict[str, int] = field(factory=dict)

    def write(self, path: Path) -> None:
        """Write the header; the data is a hole, with ones for factors of RoPE."""
        out = bytearray(self.first)
        out += struct.pack(f"{self.order}QQ", len(self.tensors), len(self.keys))
        for key in self.keys:
            out += self._string(key.name) + self._value(key)
        alignment = next((key.value for key in self.keys if key.name == "general.alignment"), 32)
        step = alignment if isinstance(alignment, int) and alignment > 0 else 32
        offset, ones = 0, {}
        for tensor in self.tensors:
            shape = struct.pack(f"{self.order}I{len(tensor.sizes)}Q", len(tensor.sizes), *tensor.sizes)
            place = offset + self.offsets.get(tensor.name, 0)
            out += self._string(tensor.name) + shape + struct.pack(f"{self.order}IQ", tensor.type, place)
            if tensor.type == 0 and tensor.name.startswith("rope_"):
                ones[place] = tensor.nbytes // 4
            offset += -(-tensor.nbytes // step) * step
        start = -(-len(out) // step) * step
        with open(path, "wb") as file:
            file.write(out)
            for place, count in ones.items():
                file.seek(start + place)
                file.write(struct.pack("<f", 1.0) * count)
            os.ftruncate(file.fileno(), max(0, start + offset - self.missing))

    def _string(self, text: str) -> bytes:
        data = text.encode("utf-8", "surrogateescape")
        return struct.pack(f"{self.order}Q", len(data)) + data

    def _value(self, key: Key) -> bytes:
        head = struct.pack(f"{self.order}I", key.type)
        if key.type == STRING:
            return head + self._string(key.value)
        if key.type != ARRAY:
            return head + struct.pack(self.order + NUMBERS[key.type], key.value)
        head += struct.pack(f"{self.order}IQ", key.items, len(key.value))
        if key.items == STRING:
            return head + b"".join(map(self._string, key.value))
        return head + struct.pack(f"{self.order}{len(key.value)}{NUMBERS[key.items]}", *key.value)


def read_gguf(path: Path) -> Gguf:
    """The header of a file of version 3 whose types are all in BLOCKS."""
    data, place = path.read_bytes(), 24

    def take(form: str) -> Any:
        nonlocal place
        (value,) = struct.unpack_from(f"<{form}", data, place)
        place += struct.calcsize(form)
        return value

    def text() -> str:
        nonlocal place
        size = take("Q")
        place += size
        return data[place - size : place].decode("utf-8", "surrogateescape")

    def value(kind: int) -> Any:
        return text() if kind == STRING else take(NUMBERS[kind])

    tensors, keys = struct.unpack_from("<QQ", data, 8)
    read = []
    for _ in range(keys):
        name, kind = text(), take("I")
        items = take("I") if kind == ARRAY else -1
        read.append(Key(name, kind, [value(items) for _ in range(take("Q"))] if kind == ARRAY else value(kind), items))
    specs = []
    for _ in range(tensors):
        name, count = text(), take("I")
        sizes = tuple(take("Q") for _ in range(count))
        specs.append(Tensor(name, sizes, take("I")))
        take("Q")
    return Gguf(tuple(read), tuple(specs))
