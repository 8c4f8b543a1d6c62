"""Small plugins for the core's tests: a container, two codecs that share codes, a byte codec, backends."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import squish_convert
from attrs import evolve

from squish_core import api
from squish_core.api import dtypes
from squish_core.plugins.registry import Registry


def registry(*extra: Any, plugins: str = "", points: Iterable[Any] = (), **settings: Any) -> Registry:
    """A registry of the core, the toys and `extra` alone."""
    return Registry(
        plugins=plugins,
        extra=[sys.modules[__name__], squish_convert, *extra],
        entry_points=lambda: list(points),
        **settings,
    )


def plugin(name: str = "plugin", **hooks: Any) -> Any:
    """A register module with these hooks: values are what they return, or functions."""
    arrays = {}
    for hook, value in hooks.items():
        arrays[hook] = api.hookimpl(specname=hook)(value if callable(value) else lambda value=value: value)
    return SimpleNamespace(__name__=name, **arrays)


def installed(settings: str = "", **modules: Any) -> Registry:
    """A registry of the core, the toys and these modules, each of its own distribution."""
    points = [
        SimpleNamespace(
            name=name,
            value=name,
            load=lambda module=module: module,
            dist=SimpleNamespace(name=f"dist-{name}", version="1"),
        )
        for name, module in {"toys": sys.modules[__name__], **modules}.items()
    ]
    return Registry(plugins=settings, entry_points=lambda: points)


def brings(**infos: Any) -> Any:
    """A plugin by its hooks: containers=..., codecs=..., and so on."""
    return plugin(**{f"squish_{hook}": value for hook, value in infos.items()})


def container_info(toy_id: str, *signatures: api.Signature, **more: Any) -> api.ContainerInfo:
    """A declaration whose implementation is the box."""
    return api.ContainerInfo(id=toy_id, title=toy_id, factory="toys:Box", signatures=signatures, **more)


@api.hookimpl
def squish_containers() -> list[api.ContainerInfo]:
    """The box."""
    features = {"packing": ("rows", "shifted"), "speed": ("slow",)}
    box = container_info(
        "toy.box",
        api.Signature(b"TOYB"),
        suffixes=(".box",),
        can_write=True,
        features=features,
        options={"note": "text kept in the header"},
        aliases={"q8": "toy.rows"},
    )
    return [box]


@api.hookimpl
def squish_codecs() -> list[api.CodecInfo]:
    """Codecs over the same codes, and a byte codec."""
    return [
        api.CodecInfo(id="toy.rows", title="i8 rows", factory="toys:Rows"),
        api.CodecInfo(id="toy.shifted", title="u8 rows", factory="toys:Shifted"),
        api.CodecInfo(id="toy.xor", title="xor 255", factory="toys:Xor", kind="bytes", lossless=True),
    ]


class Box(api.WritableContainer):
    """ "TOYB", u32 header length, a JSON header, data. Anything goes in."""

    def read_index(self, source: api.Source, limits: api.Limits) -> api.Index:
        if source.read(0, 4, "the magic") != b"TOYB":
            raise api.FormatError("is not a box", code="magic")
        length = int.from_bytes(source.read(4, 4, "the header length"), "little")
        header = json.loads(source.read(8, length, "the header"))
        tensors = {item["name"]: self._tensor(item, 8 + length) for item in header["tensors"]}
        assets = {
            name: api.Part(dtype="u8", shape=(size,), segments=(api.Segment(0, 8 + length + at, size),))
            for name, (at, size) in header["assets"].items()
        }
        files = (api.FileRef(source.filename, source.size),)
        return api.Index(
            format="toy.box", version="1", files=files, tensors=tensors, meta=header["meta"], assets=assets
        )

    def _tensor(self, item: dict[str, Any], base: int) -> api.TensorSpec:
        parts = {
            role: api.Part(
                dtype=dtype,
                shape=tuple(shape),
                segments=(api.Segment(0, base + at, size),),
                byteorder=order,
                filters=tuple(api.Filter(name) for name in filters),
            )
            for role, (dtype, shape, at, size, order, filters) in item["parts"].items()
        }
        encoding = api.Encoding(codec=codec_of(item["codec"]), parts=parts)
        return api.TensorSpec(name=item["name"], shape=tuple(item["shape"]), dtype=item["dtype"], encodings=(encoding,))

    def encodings_for(self, **features: Any) -> tuple[api.Encoding, ...]:
        packing = features.get("packing", "rows")
        if not isinstance(packing, str):
            raise api.FormatError("packing is one of them, not both", code="feature")
        return (api.Encoding(codec=api.CodecSpec(f"toy.{packing}")),)

    def accepts(self, spec: api.TensorSpec, encoding: api.Encoding, options: api.Options) -> api.Encoding | api.Refusal:
        if encoding.codec.id == "toy.shifted":
            parts = {"codes": api.Part(dtype="i8", shape=spec.shape), "scale": encoding.parts["scale"]}
            parts["scale"] = api.Part(dtype="f32", shape=spec.shape[:1])
            return api.Encoding(codec=api.CodecSpec("toy.rows"), parts=parts)
        if encoding.codec.id not in ("dense", "toy.rows"):
            return api.Refusal(why="a box holds dense values and i8 rows")
        parts = {role: api.Part(dtype=part.dtype, shape=part.shape) for role, part in encoding.parts.items()}
        return api.Encoding(codec=encoding.codec, parts=parts)

    def plan_file(
        self, specs: Sequence[api.TensorSpec], meta: Mapping[str, Any], assets: Mapping[str, Any], options: api.Options
    ) -> api.WritePlan:
        return api.WritePlan()

    def write(
        self,
        sink: api.Sink,
        tensors: Sequence[api.OutgoingTensor],
        meta: Mapping[str, Any],
        assets: Mapping[str, bytes],
        options: api.Options,
    ) -> None:
        specs = [tensor.spec for tensor in tensors]
        sink.write(head(specs, meta, {name: len(data) for name, data in assets.items()}))
        for tensor in tensors:
            for stream in tensor.parts.values():
                stream.write_to(sink)
        for data in assets.values():
            sink.write(data)


class Named(api.Refinement):
    """A box whose metadata show what refining it was told."""

    def refine(
        self, index: api.Index, source: api.Source, limits: api.Limits, options: api.Options
    ) -> api.Index | None:
        return evolve(index, format="toy.named", meta={"limit": str(limits.tensors), **options})


def body(specs: Sequence[api.TensorSpec]) -> list[int]:
    """Sizes of all parts in order."""
    return [part.nbytes for spec in specs for part in spec.encodings[0].parts.values()]


def fields_of(codec: api.CodecSpec) -> list[Any]:
    """A codec as the header holds it."""
    return [codec.id, dict(codec.params), *([fields_of(codec.inner)] if codec.inner else [])]


def codec_of(fields: Sequence[Any]) -> api.CodecSpec:
    """The codec that a header holds."""
    name, params, *inner = fields
    return api.CodecSpec(name, params, codec_of(inner[0]) if inner else None)


def head(specs: Sequence[api.TensorSpec], meta: Mapping[str, Any], assets: Mapping[str, int]) -> bytes:
    """Magic, length and header."""
    at, items, places = 0, [], {}
    for spec in specs:
        parts = {}
        for role, part in spec.encodings[0].parts.items():
            filters = [item.codec for item in part.filters]
            parts[role] = [part.dtype, list(part.shape), at, part.nbytes, part.byteorder, filters]
            at += part.nbytes
        codec = fields_of(spec.encodings[0].codec)
        items.append({"name": spec.name, "shape": spec.shape, "dtype": spec.dtype, "codec": codec, "parts": parts})
    for name, size in assets.items():
        places[name] = [at, size]
        at += size
    values = {key: value.value if isinstance(value, api.Typed) else value for key, value in meta.items()}
    raw = json.dumps({"tensors": items, "meta": values, "assets": places}).encode()
    return b"TOYB" + len(raw).to_bytes(4, "little") + raw


def box(
    tensors: Mapping[str, Any],
    meta: Mapping[str, Any] | None = None,
    assets: Mapping[str, bytes] | None = None,
    byteorder: str = "<",
    filters: tuple[str, ...] = (),
) -> bytes:
    """A box of arrays (dense) and of (codec id, logical shape, {role: array})."""
    assets, specs, data = assets or {}, [], b""
    for name, stored in tensors.items():
        if isinstance(stored, np.ndarray):
            codec, shape, arrays, dtype = "dense", stored.shape, {"data": stored}, dtypes.from_numpy(stored.dtype)
        else:
            (codec, shape, arrays), dtype = stored, "f32"
        parts = {}
        for role, array in arrays.items():
            array = np.asarray(array)
            kind = dtypes.from_numpy(array.dtype)
            parts[role] = api.Part(
                dtype=kind, shape=array.shape, byteorder=byteorder, filters=tuple(map(api.Filter, filters))
            )
            raw = array.astype(array.dtype.newbyteorder(byteorder)).tobytes()
            data += bytes(255 - value for value in raw) if filters else raw
        encoding = api.Encoding(codec=api.CodecSpec(codec), parts=parts)
        specs.append(api.TensorSpec(name=name, shape=tuple(shape), dtype=dtype, encodings=(encoding,)))
    sizes = {name: len(value) for name, value in assets.items()}
    return head(specs, meta or {}, sizes) + data + b"".join(assets.values())


def rows(values: np.ndarray, codec: str = "toy.rows") -> tuple[str, tuple[int, ...], dict[str, np.ndarray]]:
    """A matrix quantized by one of the toy codecs, as `box` takes it."""
    return codec, values.shape, {"toy.rows": Rows, "toy.shifted": Shifted}[codec]().from_params({}).encode(values)


class Rows(api.Codec):
    """One f32 scale a row, i8 codes."""

    stored, shift = "i8", 0

    def parts(self, spec: api.TensorSpec) -> dict[str, tuple[str, tuple[int, ...]]]:
        return {"codes": (self.stored, spec.shape), "scale": ("f32", spec.shape[:1])}

    def grain(self, spec: api.TensorSpec) -> tuple[int | None, ...]:
        return (2, 1)

    def decode(self, parts: Any, spec: api.TensorSpec, *, region: api.Region, out: np.ndarray) -> None:
        codes = parts["codes"][region].astype(np.float32) - self.shift
        out[...] = codes * parts["scale"][region[0]][:, None]

    def encode(self, panel: np.ndarray, *, activations: Any = None) -> dict[str, np.ndarray]:
        scale = (np.abs(panel).max(axis=1, initial=0) / 127).astype(np.float32)
        codes = np.rint(panel / np.where(scale, scale, 1)[:, None]) + self.shift
        return {"codes": codes.astype(dtypes.to_numpy(self.stored)), "scale": scale}

    def code_layout(self, spec: api.TensorSpec) -> api.CodeLayout:
        return api.CodeLayout(bits=8, signed=True, group=(1, 0), scale_dtype="f32")

    def codes(self, parts: Any, spec: api.TensorSpec, region: api.Region) -> api.Codes:
        values = (parts["codes"][region].astype(np.int16) - self.shift).astype(np.int8)
        scale = parts["scale"][region[0]][:, None]
        return api.Codes(layout=self.code_layout(spec), shape=values.shape, scale=scale, unpack=lambda: values)

    def from_codes(self, codes: api.Codes, spec: api.TensorSpec) -> Any:
        stored = (codes.values.astype(np.int16) + self.shift).astype(dtypes.to_numpy(self.stored))
        return {"codes": stored, "scale": codes.scale[:, 0]}, api.Exactness("values", "f32")


class Shifted(Rows):
    """The same codes as u8, 128 more."""

    stored, shift = "u8", 128


class Xor(api.ByteCodec):
    """Every byte is stored as 255 minus itself."""

    def decode(self, data: memoryview, params: Any, *, out: memoryview, ratio: int) -> None:
        if len(data) != len(out):
            raise api.CodecError("another size", expected=len(out), found=len(data), code="size")
        out[:] = bytes(255 - value for value in data)

    def encode(self, chunks: Any, params: Any) -> Any:
        return (bytes(255 - value for value in chunk) for chunk in chunks)


class Runner(api.Backend):
    """Offers for any codec, as `settings` say."""

    settings: Mapping[str, Any] = {}

    def probe(self) -> api.Availability:
        return api.Availability(ok=True, only_named=self.settings.get("only_named", ""))

    def configured(self, options: Mapping[str, Any]) -> Runner:
        other = type(self)()
        other.id, other.settings = self.id, {**self.settings, **options}
        return other

    def offer(self, request: api.Request) -> api.Offer | api.Refusal:
        cost = api.Cost(
            stored=1,
            resident=self.settings.get("resident", 1),
            moved=self.settings.get("moved", 1),
            memory=self.settings.get("memory", "host"),
        )
        return api.Offer(
            backend=self.id,
            encoding=request.encoding,
            mode=self.settings.get("mode", "stream"),
            ops=self.settings.get("ops", api.OPS),
            storage="toy",
            cost=cost,
            exact=self.settings.get("exact", True),
        )


def backend(toy_id: str, preference: int = 0, **settings: Any) -> api.BackendInfo:
    """A declaration of a Runner with these settings."""
    name = f"Runner_{toy_id.replace('.', '_')}"
    globals()[name] = type(name, (Runner,), {"settings": settings})
    return api.BackendInfo(id=toy_id, title=toy_id, factory=f"toys:{name}", preference=preference)


class Absent(Runner):
    """Not available here."""

    def probe(self) -> api.Availability:
        return api.Availability(ok=False, reason="no such device")


class Failing(Runner):
    """Its probe breaks the rule."""

    def probe(self) -> api.Availability:
        raise RuntimeError("driver says no")


class Confused(Runner):
    """Its offer breaks the rule."""

    def offer(self, request: api.Request) -> api.Offer | api.Refusal:
        raise KeyError("group_size")


class Unimportable:
    """Raises when made."""

    def __init__(self) -> None:
        raise ValueError("bad constructor")


class Sniffing(Box):
    """A box in a zip archive, known by the name of its first member."""

    member = b"box.json"

    def sniff(self, source: api.Source) -> bool:
        length = int.from_bytes(source.read(26, 2, "a name's length"), "little")
        return source.read(30, length, "a member's name") == self.member


class SniffingOther(Sniffing):
    """Another format in a zip archive."""

    member = b"other.json"


class Greedy(Box):
    """Reads more than detection may."""

    def sniff(self, source: api.Source) -> bool:
        return bool(source.read(0, 1000) and source.view(0, (64 << 10) - 999))


class Thrifty(Box):
    """Reads just what detection may."""

    def sniff(self, source: api.Source) -> bool:
        return bool(source.read(0, 1000) and source.view(0, (64 << 10) - 1000))


class Stumbling(Box):
    """Its sniffing has a bug."""

    def sniff(self, source: api.Source) -> bool:
        raise KeyError("member")


def files_of(path: Path) -> dict[str, bytes]:
    """The files of a target by their names in it; "" is the target itself."""
    if path.is_file():
        return {"": path.read_bytes()}
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}
