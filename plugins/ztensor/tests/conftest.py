"""Files put together by hand, and files written through the plugin's writer."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cbor2
import numpy as np
import pytest
from squish_convert.api import lay_out
from squish_ztensor.container import Ztensor

from squish_core import dtypes
from squish_core.formats.outgoing import OutgoingTensor, Stream
from squish_core.io.atomic import atomic_file
from squish_core.model import DENSE, CodecSpec, Encoding, Part, TensorSpec

MAGIC = b"ZTEN1000"
FOUR = np.arange(4, dtype="<f4").tobytes()


def item(shape: Any = (4,), dtype: Any = "f32", offset: Any = 64, length: Any = 16, **more: Any) -> dict[str, Any]:
    """A dense object; `more` goes into its component, `format` into the object."""
    layout = more.pop("format", "dense")
    data = {"dtype": dtype, "offset": offset, "length": length, **more}
    return {"shape": list(shape), "format": layout, "components": {"data": data}}


def pack(
    objects: Any = None,
    blobs: bytes = FOUR,
    *,
    root: Any = None,
    manifest: bytes | None = None,
    size: int | None = None,
    head: bytes = MAGIC,
    tail: bytes = MAGIC,
) -> bytes:
    """A file: header, `blobs` from byte 64 on, manifest, its size, footer."""
    if manifest is None:
        manifest = cbor2.dumps({"version": "1.1.0", "objects": objects} if root is None else root)
    count = len(manifest) if size is None else size
    return head.ljust(64, b"\0") + blobs + manifest + count.to_bytes(8, "little") + tail


def bomb(mebibytes: int) -> bytes:
    """A zstd frame of so many MiB of zeros: run-length blocks of 128 KiB (RFC 8878, 3.1.1.2)."""
    blocks = 8 * mebibytes
    return bytes.fromhex("28b52ffd 0038") + b"\x02\0\x10\0" * (blocks - 1) + b"\x03\0\x10\0"


def written(
    target: Path,
    arrays: Mapping[str, Any],
    options: Mapping[str, str] | None = None,
    meta: Mapping[str, Any] | None = None,
    assets: Mapping[str, bytes] | None = None,
) -> Any:
    """Write arrays (or `(shape, ggml codec, u8 array)`) with the plugin's writer; gives the planned size."""
    container, options, meta, assets = Ztensor(), options or {}, meta or {}, assets or {}
    outgoing = []
    for name, value in arrays.items():
        shape, codec, array = value if isinstance(value, tuple) else (value.shape, None, value)
        dtype = dtypes.from_numpy(array.dtype)
        spec = TensorSpec(name=name, shape=shape, dtype="f32" if codec else dtype)
        origin = Encoding(
            codec=CodecSpec(codec) if codec else DENSE, parts={"data": Part(dtype=dtype, shape=array.shape)}
        )
        encoding = container.accepts(spec, origin, options)
        assert isinstance(encoding, Encoding), encoding
        spec = TensorSpec(name=name, shape=shape, dtype=spec.dtype, encodings=(encoding,))
        outgoing.append(
            OutgoingTensor(spec, {"data": Stream(encoding.parts["data"], lambda array=array: [array.tobytes()])})
        )  # type: ignore[misc]
    image = lay_out(container, [item.spec for item in outgoing], meta, assets, options)
    with atomic_file(target) as sink:
        container.write(sink, outgoing, meta, assets, options)
    return SimpleNamespace(size=None if image is None else image.size)


@pytest.fixture(scope="session")
def zt() -> SimpleNamespace:
    """What makes files: `pack` and `item` by hand, `bomb` of zstd, `written` by the plugin; `four` is their data."""
    return SimpleNamespace(pack=pack, item=item, bomb=bomb, written=written, four=FOUR, magic=MAGIC)


@pytest.fixture
def data() -> Path:
    """The folder of files written by other software."""
    return Path(__file__).with_name("data")


@pytest.fixture
def little_memory() -> Iterator[None]:
    """A test that needs little more memory than its bytes."""
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50_000_000
