"""A tiny builder of SQUIZD files: written from the specification with struct alone, sharing nothing with the plugin."""

from __future__ import annotations

import io
import random
import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cbor2
import numpy as np
import pytest

BITS = {"ASTC": 1, "TCA_TBE": 2, "INT4": 4, "SPARSE": 8, "EAGLE": 16, "INT2": 32, "ANE_COREML": 64}
GLOBALS, DRAFT = 0xFFFFFFFF, 0x80000000


def fnv(data: bytes) -> int:
    value = 0xCBF29CE484222325
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) % (1 << 64)
    return value


@dataclass
class Tensor:
    """A tensor of a file to build: kind, values as stored, and what they mean."""

    kind: str
    shape: tuple[int, ...]
    codes: list[int] = field(default_factory=list)
    pair: tuple[float, float] = (1.0, 0.0)
    pairs: list[tuple[float, float]] = field(default_factory=list)
    group: int = 0
    dtype_code: int = 0
    raw: bytes = b""
    name: str | None = None
    keep: list[int] | None = None

    @property
    def count(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    def block(self, start: int) -> bytes:
        """The block's bytes when it starts at `start`."""
        if self.kind == "NPCL":
            return (
                struct.pack(f"<4sII{len(self.shape)}I", b"NPCL", self.dtype_code, len(self.shape), *self.shape)
                + self.raw
            )
        rows, columns = self.shape
        if self.kind == "INT4":
            codes = [code & 15 for code in self.codes] + [0]
            data = bytes(codes[i] | codes[i + 1] << 4 for i in range(0, self.count, 2))
            return struct.pack("<4sII", b"INT4", rows, columns) + data
        if self.kind == "INT2":
            codes = [*self.codes, 0, 0, 0]
            data = bytes(sum(codes[i + k] << 2 * k for k in range(4)) for i in range(0, self.count, 4))
            return struct.pack("<4sIII", b"INT2", rows, columns, self.group or 1) + data
        if self.kind == "ASTW":
            head, down, across = struct.pack("<4sIII", b"ASTW", columns, rows, 0x04), -(-rows // 4), -(-columns // 4)
            if not self.codes:
                return head + bytes(16 * down * across)
            return head + b"".join(
                constant(self.codes[4 * y * columns + 4 * x]) for y in range(down) for x in range(across)
            )
        return self._tcaw(start)

    def _tcaw(self, start: int) -> bytes:
        rows, columns = self.shape
        base = self.group
        words = -(-columns // 64)
        planes = [[0] * (rows * words) for _ in range(3)]
        high, full = bytearray(), bytearray()
        for row in range(rows):
            for column in range(columns):
                bits = self.codes[row * columns + column]
                code = (bits >> 7 & 255) - base
                if 1 <= code <= 7:
                    for plane in range(3):
                        planes[plane][row * words + column // 64] |= (code >> plane & 1) << column % 64
                    high.append(bits >> 15 << 7 | bits & 127)
                else:
                    full += struct.pack("<H", bits)
        head = struct.pack("<4sIIIBBBBQQ", b"TCAW", rows, 64, columns, 2, base, 3, 0, len(high), len(full) // 2)
        head += bytes(-(start + len(head)) % 64)
        body = b"".join(struct.pack(f"<{rows * words}Q", *plane) for plane in planes)
        return head + body + high + bytes(len(high) % 2) + full

    def values(self, side: int = 0) -> np.ndarray:
        """What a reader gives, element by element."""
        if self.kind == "NPCL":
            import ml_dtypes

            dtype = [np.dtype("<f4"), np.dtype("<f2"), np.dtype(ml_dtypes.bfloat16)][self.dtype_code]
            values = np.frombuffer(self.raw, dtype).reshape(self.shape).copy()
        elif self.kind == "TCAW":
            import ml_dtypes

            values = np.array(self.codes, "<u2").view(ml_dtypes.bfloat16).reshape(self.shape)
        else:
            pairs, group = (self.pairs, self.group) if self.pairs else ([self.pair], max(self.count, 1))
            flat = [
                np.float32(pairs[i // group][0]) * np.float32(code) + np.float32(pairs[i // group][1])
                for i, code in enumerate(self.codes)
            ]
            values = np.array(flat, np.float32).reshape(self.shape)
        if self.keep is not None:
            across = -(-self.shape[1] // side)
            for row in range(self.shape[0]):
                for column in range(self.shape[1]):
                    if not self.keep[row // side * across + column // side]:
                        values[row, column] = 0
        return values


def int4(rng: random.Random, rows: int, columns: int, group: int = 0, **more: Any) -> Tensor:
    count = rows * columns
    tensor = Tensor("INT4", (rows, columns), [rng.randrange(-8, 8) for _ in range(count)], **more)
    return _grouped(rng, tensor, group, exact=True)


def int2(rng: random.Random, rows: int, columns: int, group: int = 0, **more: Any) -> Tensor:
    tensor = Tensor("INT2", (rows, columns), [rng.randrange(4) for _ in range(rows * columns)], **more)
    return _grouped(rng, tensor, group, exact=False)


def constant(white: int) -> bytes:
    """An ASTC block (a void extent) of one color, black or white."""
    return bytes.fromhex("fcfdffffffffffff") + struct.pack("<4H", *[0xFFFF * white] * 3, 0xFFFF)


def astw(rng: random.Random, rows: int, columns: int, group: int = 0, **more: Any) -> Tensor:
    down, across = -(-rows // 4), -(-columns // 4)
    cells = [[rng.randrange(2) for _ in range(across)] for _ in range(down)]
    codes = [cells[y // 4][x // 4] for y in range(rows) for x in range(columns)]
    return _grouped(rng, Tensor("ASTW", (rows, columns), codes, **more), 0, exact=True)


def _grouped(rng: random.Random, tensor: Tensor, group: int, *, exact: bool) -> Tensor:
    tensor.pair = (rng.choice((0.5, 1.25, 3e-3)), rng.choice((0.0, -1.5, 0.1)))
    tensor.group = group or 1
    if group and tensor.count:
        number = -(-tensor.count // group)
        tensor.group = -(-tensor.count // number) if exact else group
        tensor.pairs = [(rng.uniform(0.01, 2), rng.uniform(-3, 3)) for _ in range(number)]
    return tensor


def npcl(rng: random.Random, shape: tuple[int, ...], dtype_code: int = 0, **more: Any) -> Tensor:
    count = int(np.prod(shape, dtype=np.int64))
    values = [rng.uniform(-2, 2) for _ in range(count)]
    dtype = ["<f4", "<f2"][dtype_code] if dtype_code < 2 else None
    raw = np.array(values, dtype).tobytes() if dtype else b"".join(struct.pack("<f", v)[2:] for v in values)
    return Tensor("NPCL", shape, dtype_code=dtype_code, raw=raw, **more)


def tcaw(rng: random.Random, rows: int, columns: int, **more: Any) -> Tensor:
    bits = [  # any finite values, and positive ones whose exponents are near
        rng.choice(
            (rng.randrange(2) << 15 | rng.randrange(255 << 7), rng.randrange(120, 128) << 7 | rng.randrange(128))
        )
        for _ in range(rows * columns)
    ]
    return Tensor("TCAW", (rows, columns), bits, group=119, **more)


def build(
    layers: list[list[Tensor]],
    outside: list[Tensor] = (),
    *,
    flags: int | None = None,
    arch: int = 0,  # type: ignore[assignment]
    side: int = 0,
    draft: list[list[Tensor]] | None = None,
    archive: bytes | None = None,
    names: bool = False,
    order: list[int] | None = None,
    sums: tuple[int, float] | None = None,
    merged: bool = False,
    gap: int = 0,
    change: Any = None,
    align: int = 64,
    spaces: Iterator[int] | None = None,
) -> bytes:
    """A whole file. `side`: tile size (0: no masks); `order`: physical order of the layers; `merged`: one table.

    `align`: where sections and blocks start; 1 is the layout to the letter of the specification. `spaces`: numbers of
    zeros before sections and blocks instead.
    """
    every = [tensor for layer in layers for tensor in layer] + list(outside)
    word = 0
    for tensor in every:
        word |= {"INT4": 4, "INT2": 32, "ASTW": 1, "TCAW": 2}.get(tensor.kind, 0)
    word |= 8 * bool(side) | 16 * (draft is not None) | 64 * (archive is not None)
    out = bytearray(256 + 32 * len(layers))

    def pad() -> int:
        out.extend(bytes(-len(out) % align if spaces is None else next(spaces)))
        return len(out)

    places: dict[int, tuple[int, int, int]] = {}
    extents: dict[int, tuple[int, int]] = {}
    total = kept = 0
    for number in order or range(len(layers)):
        start = pad()
        out.extend(bytes(gap))
        start += gap
        for tensor in layers[number]:
            at = pad() if not gap else len(out)
            data = tensor.block(at)
            extents[id(tensor)] = (at, len(data))
            out.extend(data)
        masks = 0
        if side and any(tensor.keep for tensor in layers[number]):
            masks = pad()
            for tensor in layers[number]:
                if len(tensor.shape) == 2:
                    tiles = -(-tensor.shape[0] // side) * -(-tensor.shape[1] // side)
                    keep = [1] * tiles if tensor.keep is None else tensor.keep
                    total, kept = total + tiles, kept + sum(keep)
                    out.extend(sum(bit << i for i, bit in enumerate(keep)).to_bytes(-(-tiles // 8), "little"))
        places[number] = (start if layers[number] else 0, len(out) - start if layers[number] else 0, masks)
    for tensor in outside:
        at = pad()
        data = tensor.block(at)
        extents[id(tensor)] = (at, len(data))
        out.extend(data)

    keyed = [(key, place, tensor) for key, layer in enumerate(layers) for place, tensor in enumerate(layer)]
    keyed += [(GLOBALS, place, tensor) for place, tensor in enumerate(outside)]
    keyed += [
        (DRAFT + key, place, tensor) for key, layer in enumerate(draft or []) for place, tensor in enumerate(layer)
    ]
    first, second = [], []
    for key, place, tensor in keyed:
        if tensor.kind in ("NPCL", "TCAW"):
            continue
        prefix = "globals" if key == GLOBALS else f"layers.{key & 0x7FFFFFFF}"
        name = tensor.name if names and tensor.name else f"{prefix}.w{place}"
        own = fnv(struct.pack("<I", key) + name.encode()) & (1 << 63) - 1
        first.append(struct.pack("<Qff", own, *tensor.pair))
        second += [struct.pack("<Qff", own | 1 << 63, *pair) for pair in tensor.pairs]
    table = 0
    if first:
        rounds = [first + second] if merged else [first, second] if second else [first]
        for entries in rounds:
            at = pad()
            table = table or at
            out.extend(struct.pack("<4sI", b"SCZT", len(entries)) + b"".join(entries))
    if names:
        root = {
            "v": 1,
            "names": {key: [tensor.name for tensor in layer] for key, layer in enumerate(layers)}
            | {DRAFT + key: [tensor.name for tensor in layer] for key, layer in enumerate(draft or [])},
            "globals": [[tensor.name, *extents[id(tensor)]] for tensor in outside],
        }
        root = change(root) if change else root
        packed = root if isinstance(root, bytes) else cbor2.dumps(root)
        pad()
        out.extend(struct.pack("<4sI", b"SQXT", len(packed)) + packed)
    eagle = b""
    if draft is not None:
        start = pad()
        out.extend(struct.pack("<4sI", b"EGDH", len(draft)))
        for layer in draft:
            for tensor in layer:
                out.extend(tensor.block(pad()))
        eagle = struct.pack("<QQII8x", start, len(out) - start, len(draft), 100)
    if archive is not None:
        pad()
        out.extend(struct.pack("<4sQ", b"ANLX", len(archive)) + archive)
    sparsity = b""
    if side:
        count, mean = sums or (
            sum(1 for *_, masks in places.values() if masks),
            (total - kept) / total if total else 0.0,
        )
        sparsity = struct.pack("<IIIf16x", 1, side, count, mean)
    crc, digest = zlib.crc32(sparsity) if sparsity else 0, fnv(eagle) if eagle else 0
    head = struct.pack("<4sHIHHIQ", b"SQZD", 1, word if flags is None else flags, len(layers), arch, crc, digest)
    out[:256] = head.ljust(128, b"\0") + sparsity.ljust(32, b"\0") + eagle.ljust(32, b"\0") + bytes(64)
    for number in range(len(layers)):
        start, length, masks = places[number]
        quantized = any(tensor.kind in ("INT4", "INT2", "ASTW") for tensor in layers[number])
        entry = struct.pack("<IQQQI", number, start, length, masks or (table if quantized else 0), 0)
        out[256 + 32 * number : 288 + 32 * number] = entry
    return bytes(out)


def header(
    flags: int = 0,
    layers: int = 0,
    *,
    version: int = 1,
    crc: int = 0,
    digest: int = 0,
    sparsity: bytes = b"",
    eagle: bytes = b"",
    magic: bytes = b"SQZD",
) -> bytes:
    """A header, and an index of empty layers."""
    head = struct.pack("<4sHIHHIQ", magic, version, flags, layers, 0, crc, digest)
    whole = head.ljust(128, b"\0") + sparsity.ljust(32, b"\0") + eagle.ljust(32, b"\0") + bytes(64)
    return whole + b"".join(struct.pack("<IQQQI", number, 0, 0, 0, 0) for number in range(layers))


def zipped(*entries: tuple[str, bytes], mode: int = 0o100644, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A zip archive of (name, content), for the appendix."""
    spool = io.BytesIO()
    with zipfile.ZipFile(spool, "w", method) as archive:
        for name, data in entries:
            info = zipfile.ZipInfo(name)
            info.external_attr, info.compress_type, info.create_system = mode << 16, method, 3
            archive.writestr(info, data)
    return spool.getvalue()


@pytest.fixture
def sq() -> SimpleNamespace:
    """The builder and its pieces."""
    return SimpleNamespace(
        build=build,
        header=header,
        fnv=fnv,
        int4=int4,
        int2=int2,
        npcl=npcl,
        tcaw=tcaw,
        astw=astw,
        Tensor=Tensor,
        bits=BITS,
        zipped=zipped,
        rng=random.Random(0),
    )


@pytest.fixture
def data() -> Path:
    """Headers written by other software."""
    return Path(__file__).with_name("data")
