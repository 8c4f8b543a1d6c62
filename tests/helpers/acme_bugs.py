"""The example plugin with one bug in each class: what a wrong plugin looks like, for the kit to find."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
from acme_format.backend import Memory
from acme_format.codec import Rows
from acme_format.container import Foo
from acme_format.pairs import MARK, Pairs
from acme_format.runs import Runs
from attrs import evolve

from squish_core import api

Change = Callable[[api.Part], api.Part]


def with_parts(index: api.Index, change: Change, where: Callable[[api.Part], bool] = lambda part: True) -> api.Index:
    """The Index with other parts, and with shapes and dtypes that follow them."""
    tensors = {}
    for name, spec in index.tensors.items():
        (part,) = spec.encodings[0].parts.values()
        part = change(part) if where(part) else part
        encoding = evolve(spec.encodings[0], parts={"data": part})
        tensors[name] = evolve(spec, shape=part.shape, dtype=part.dtype, encodings=(encoding,))
    return evolve(index, tensors=tensors)


def reader(change: Change, where: Callable[[api.Part], bool] = lambda part: True) -> type[Foo]:
    """A reader whose Index has wrong parts."""

    class Wrong(Foo):
        def read_index(self, source: api.Source, limits: api.Limits) -> api.Index:
            return with_parts(super().read_index(source, limits), change, where)

    return Wrong


def _moved(part: api.Part) -> api.Part:
    (segment,) = part.segments
    return evolve(part, segments=(evolve(segment, offset=segment.offset + 2),), digest=None)


ShiftedOffset = reader(_moved, lambda part: part.dtype == "f16")
WrongFloat = reader(lambda part: evolve(part, dtype="bf16"), lambda part: part.dtype == "f16")
WrongSign = reader(lambda part: evolve(part, dtype="u8"), lambda part: part.dtype == "i8")
WrongByteOrder = reader(lambda part: evolve(part, byteorder=">"))
Transposed = reader(lambda part: evolve(part, shape=part.shape[::-1]))
NoChecksum = reader(lambda part: evolve(part, digest=None))
UnknownChecksum = reader(lambda part: evolve(part, digest="adler:00000000"))


class LostTensor(Foo):
    def read_index(self, source: api.Source, limits: api.Limits) -> api.Index:
        index = super().read_index(source, limits)
        return evolve(index, tensors=dict(list(index.tensors.items())[:1]))


class EagerRead(Foo):
    def read_index(self, source: api.Source, limits: api.Limits) -> api.Index:
        source.view(0, source.size)
        return super().read_index(source, limits)


class NeedsThePath(Foo):
    def read_index(self, source: api.Source, limits: api.Limits) -> api.Index:
        if source.path is None and source.is_remote:
            raise api.FormatError("is not on this machine", file=source.name, code="file-kind")
        return super().read_index(source, limits)


class UncheckedCount(Foo):
    def read_index(self, source: api.Source, limits: api.Limits) -> api.Index:
        bytearray(16 * int.from_bytes(source.read(4, 4), "little"))
        return super().read_index(source, limits)


class ForeignError(Foo):
    def read_index(self, source: api.Source, limits: api.Limits) -> api.Index:
        try:
            return super().read_index(source, limits)
        except api.TruncatedError:
            raise IndexError("out of range") from None


class Unstable(Foo):
    reads = itertools.count()

    def read_index(self, source: api.Source, limits: api.Limits) -> api.Index:
        return evolve(super().read_index(source, limits), version=str(next(self.reads)))


class Unpicklable(Foo):
    def read_index(self, source: api.Source, limits: api.Limits) -> api.Index:
        return evolve(super().read_index(source, limits), attrs={"source": source})


class FalseAlarm(Foo):
    def verify(self, index: api.Index, source: api.Source, limits: api.Limits) -> list[api.Problem]:
        return [api.Problem(code="size", severity="error", where="file", message="odd")]


class WrongMagic(Foo):
    def read_index(self, source: api.Source, limits: api.Limits) -> api.Index:
        if source.read(0, 3) != b"ACM":
            raise api.FormatError("is not an ACME file", code="magic")
        whole = source.read(0, source.size)
        return super().read_index(api.open_source(b"ACME" + whole[4:]), limits)


class Reordered(Foo):
    def write(self, sink: api.Sink, tensors: Any, *rest: Any) -> None:
        super().write(sink, tensors[::-1], *rest)


class RandomBytes(Foo):
    def write(self, sink: api.Sink, *rest: Any) -> None:
        super().write(sink, *rest)
        sink.write(random.randbytes(4))


class PlainMetadataOnly(Foo):
    def plan_file(self, *args: Any) -> api.WritePlan:
        return api.WritePlan()

    def write(self, sink: api.Sink, tensors: Any, meta: Any, assets: Any, options: api.Options) -> None:
        json.dumps(dict(meta))
        super().write(sink, tensors, meta, assets, options)


class WrongSize(Foo):
    def write(self, sink: api.Sink, *rest: Any) -> None:
        super().write(sink, *rest)
        if not sink.records:
            sink.write(b"\0")


class WrongPartsOfCodes(Foo):
    def accepts_codes(self, spec: api.TensorSpec, layout: api.CodeLayout, options: api.Options) -> api.Encoding:
        return api.Encoding(codec=api.DENSE, parts={"data": api.Part(dtype="u8", shape=spec.shape)})


class ZeroChecksums(Foo):
    def write(self, sink: api.Sink, tensors: Any, *rest: Any) -> None:
        super().write(sink, tensors, *rest)
        sink.patch(sink.tell() - 4 * len(tensors), bytes(4 * len(tensors)))


class SwallowedError(Foo):
    def write(self, *arguments: Any) -> None:
        try:
            super().write(*arguments)
        except Exception:
            return


class GreedySniff(Foo):
    def sniff(self, source: api.Source) -> bool:
        return len(source.read(0, 1 << 17) if source.size > 1 << 17 else source.read(0, source.size + 1)) > 0


class WrongSniff(Foo):
    def sniff(self, source: api.Source) -> bool:
        return False


class FalseBound(Rows):
    @property
    def error_bound(self) -> api.Exactness:
        return api.Exactness("bounded", error=1e-6)


class FalselyExact(Rows):
    @property
    def error_bound(self) -> api.Exactness:
        return api.Exactness("values", "f32")


class WrongScale(Rows):
    def encode(self, panel: np.ndarray, *, activations: Any = None) -> dict[str, np.ndarray]:
        parts = super().encode(panel)
        return {**parts, "scale": parts["scale"] * np.float32(1.02)}


class IgnoredRegion(Rows):
    def decode(self, parts: Any, spec: api.TensorSpec, *, region: Any, out: np.ndarray) -> None:
        at = tuple(slice(0, step.stop - step.start) for step in region)
        super().decode(parts, spec, region=at, out=out)


class LeftOut(Rows):
    def decode(self, parts: Any, spec: api.TensorSpec, *, region: Any, out: np.ndarray) -> None:
        values = np.empty_like(out)
        super().decode(parts, spec, region=region, out=values)
        np.copyto(out, values, where=values != 0)


class WrongGrain(Rows):
    def grain(self, spec: api.TensorSpec) -> tuple[int | None, ...]:
        return (1,)


class PanelScale(Rows):
    def encode(self, panel: np.ndarray, *, activations: Any = None) -> dict[str, np.ndarray]:
        scale = np.full(len(panel), np.abs(panel).max(initial=0) / 127, np.float32)
        codes = np.rint(panel / np.where(scale, scale, 1)[:, None])
        return {"codes": codes.astype(np.int8), "scale": scale}


class WrongParts(Rows):
    def parts(self, spec: api.TensorSpec) -> dict[str, tuple[str, tuple[int, ...]]]:
        return {**super().parts(spec), "scale": ("f16", spec.shape[:1])}


class WritesParts(Rows):
    def decode(self, parts: Any, spec: api.TensorSpec, *, region: Any, out: np.ndarray) -> None:
        parts["scale"][region[0]][...] = np.abs(parts["scale"][region[0]])
        super().decode(parts, spec, region=region, out=out)


class WrongGroup(Rows):
    def codes(self, parts: Any, spec: api.TensorSpec, region: Any) -> api.Codes:
        return evolve(super().codes(parts, spec, region), group=(2, 1))


class ForgetsTheLayout(Rows):
    def code_layout(self, spec: api.TensorSpec) -> Any:
        return None

    def codes(self, parts: Any, spec: api.TensorSpec, region: Any) -> api.Codes:
        values, scale = parts["codes"][region], parts["scale"][region[0]][:, None]
        return api.Codes(layout=Rows().code_layout(spec), shape=values.shape, scale=scale, unpack=lambda: values)


class WrongLayout(ForgetsTheLayout):
    def code_layout(self, spec: api.TensorSpec) -> api.CodeLayout:
        return api.CodeLayout(bits=8, group=(1, 0), scale_dtype="f32", zero=128)


class WrongScaleDtype(Rows):
    def code_layout(self, spec: api.TensorSpec) -> api.CodeLayout:
        return api.CodeLayout(bits=8, signed=True, group=(1, 0), scale_dtype="f16")


class ShiftedCodes(Rows):
    def codes(self, parts: Any, spec: api.TensorSpec, region: Any) -> api.Codes:
        codes = super().codes(parts, spec, region)
        return evolve(codes, unpack=lambda: codes.values // 2)


class ReadsEverything(Rows):
    def decode(self, parts: Any, spec: api.TensorSpec, *, region: Any, out: np.ndarray) -> None:
        whole = {role: np.asarray(part) for role, part in parts.items()}
        super().decode(whole, spec, region=region, out=out)


class Bomb(Runs):
    def decode(self, data: memoryview, params: api.Params, *, out: memoryview, ratio: int) -> None:
        lengths, values = np.frombuffer(data[: len(data) // 2 * 2], np.uint8).reshape(-1, 2).T
        content = np.repeat(values, lengths.astype(np.int64) + 1)
        if len(content) != len(out) or len(data) % 2:
            raise api.CodecError("the runs have another size", expected=len(out), found=len(content), code="size")
        out[:] = content.tobytes()


class AcceptsShort(Runs):
    def decode(self, data: memoryview, params: api.Params, *, out: memoryview, ratio: int) -> None:
        size = self.decoded_size(data, params, most=len(out))
        super().decode(data, params, out=out[:size], ratio=ratio)


class AcceptsLong(Runs):
    def decode(self, data: memoryview, params: api.Params, *, out: memoryview, ratio: int) -> None:
        content = bytearray(self.decoded_size(data, params, most=1 << 24))
        super().decode(data, params, out=memoryview(content), ratio=ratio)
        out[: len(content)] = content[: len(out)]


class AcceptsCut(Runs):
    def decode(self, data: memoryview, params: api.Params, *, out: memoryview, ratio: int) -> None:
        data = data[: len(data) // 2 * 2]
        size = min(len(out), self.decoded_size(data, params, most=1 << 24))
        super().decode(data, params, out=out[:size], ratio=ratio)


class WrongRange(Runs):
    def covering(self, data: memoryview, params: api.Params, *, size: int, start: int, stop: int) -> tuple[int, int]:
        return start, stop

    def decode_range(self, data: memoryview, params: api.Params, *, size: int, start: int, out: memoryview) -> None:
        content = bytearray(size)
        self.decode(data, params, out=memoryview(content), ratio=4096)
        out[:] = content[-len(out) :]


class LosesChunks(Runs):
    def encode(self, chunks: Any, params: api.Params) -> Iterator[bytes]:
        yield from list(super().encode(chunks, params))[:1]


class ForgetsMeasure(Runs):
    def decoded_size(self, data: memoryview, params: api.Params, *, most: int) -> int:
        return super().decoded_size(data, params, most=most) + 1 if len(data) else 0


class TakesEveryFile(Pairs):
    def refine(self, index: api.Index, *rest: Any) -> api.Index | None:
        mark = api.TensorSpec(name=MARK, shape=(0,), dtype="u8")
        return super().refine(evolve(index, tensors={**index.tensors, MARK: mark}), *rest)


class ChangesTheBase(Pairs):
    def refine(self, index: api.Index, *rest: Any) -> api.Index | None:
        refined = super().refine(index, *rest)
        if refined is not None:
            index.tensors.pop(MARK)  # type: ignore[attr-defined]
        return refined


class LosesTensors(Pairs):
    def refine(self, index: api.Index, *rest: Any) -> api.Index | None:
        refined = super().refine(index, *rest)
        if refined is None:
            return None
        return evolve(refined, tensors={name: spec for name, spec in refined.tensors.items() if name != "norm"})


class HidesTheProblem(Pairs):
    def refine(self, index: api.Index, *rest: Any) -> api.Index | None:
        refined = super().refine(index, *rest)
        if refined is None:
            return None
        tensors = {name: evolve(spec, problem=None) for name, spec in refined.tensors.items()}
        return evolve(refined, tensors=tensors)


def offering(**cost: Callable[[int], int]) -> type[Memory]:
    """A backend whose offers state other costs."""

    class Wrong(Memory):
        def offer(self, request: api.Request) -> api.Offer | api.Refusal:
            offer = super().offer(request)
            if isinstance(offer, api.Refusal) or offer.cost is None:
                return offer
            stated = {name: change(getattr(offer.cost, name)) for name, change in cost.items()}
            return evolve(offer, cost=evolve(offer.cost, **stated))

    return Wrong


TooLittleMemory = offering(resident=lambda size: size // 4)
TooMuchMemory = offering(resident=lambda size: 4 * size)
WrongStored = offering(stored=lambda size: size + 1)


class HalfPrecision(Memory):
    def load(self, *arguments: Any) -> np.ndarray:
        return super().load(*arguments).astype(np.float16).astype(np.float32)


class KeepsTwoCopies(Memory):
    copies: ClassVar[dict[int, np.ndarray]] = {}

    def load(self, *arguments: Any) -> np.ndarray:
        handle = super().load(*arguments)
        self.copies[id(handle)] = handle.copy()
        return handle


class TransposedLinear(Memory):
    def linear(self, handle: np.ndarray, x: np.ndarray) -> np.ndarray:
        return super().linear(handle[:, ::-1], x)


class OffByOneRow(Memory):
    def embed(self, handle: np.ndarray, ids: np.ndarray) -> np.ndarray:
        return handle[np.asarray(ids) - 1]


class IgnoresOut(Memory):
    def dense(self, handle: np.ndarray, **wishes: Any) -> np.ndarray:
        return super().dense(handle, **{**wishes, "out": None})


class SilentRefusal(Memory):
    def offer(self, request: api.Request) -> api.Offer | api.Refusal:
        return api.Refusal(backend=self.id, encoding=request.encoding, why="")
