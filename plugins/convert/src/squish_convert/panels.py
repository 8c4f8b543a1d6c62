"""The parts of a target tensor, one panel at a time: encoded values, measured, or codes in another packing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, partial
from math import inf, isfinite
from typing import TYPE_CHECKING, Any, Protocol

from attrs import evolve

from squish_core.codecs.base import MeasuringEncoder, Region
from squish_core.codecs.bound import MEMORY_LIMIT, BoundEncoding
from squish_core.codecs.code_layout import Codes
from squish_core.codecs.regions import PANEL_BYTES, full, sizes, stored_panels
from squish_core.codes import ErrorCode
from squish_core.concurrency import prefetch
from squish_core.errors import CodecError
from squish_core.file import File
from squish_core.guard import computing
from squish_core.model import DENSE, SAME_BYTES, CodecSpec, Encoding, TensorSpec

from .compare.metrics import Distance
from .compatible import encoder_for
from .overflow import SATURATE, EncodedParts, Saturation, changed, check, encode_or_locate
from .step import Step

if TYPE_CHECKING:
    import numpy as np


def reader_of(
    file: File, name: str, origin: Encoding, dtype: str, *, memory: int = MEMORY_LIMIT
) -> Callable[[Region], np.ndarray]:
    """A function that reads a region's values: as f32 if a compiled decoder is available, else in their own dtype.

    Values of `dtype` are never converted: f32 would lose NaN payloads. `memory`: bytes of parts to keep in memory if
    rereading them is expensive.
    """
    import numpy as np

    bound, fill = file.bind(file.index.tensors[name], origin), None
    bound = bound.in_memory(memory)
    arrays = bound.arrays
    in_place = all(array.part.in_place and array.is_cheap for array in arrays.values())
    if bound.dtype != dtype and origin.codec.inner is None and in_place:
        parts = {role: array[...] for role, array in arrays.items()}
        encoder = encoder_for(file.registry, origin.codec, bound.spec).from_params(origin.codec.params)
        if isinstance(encoder, MeasuringEncoder):
            fill = encoder.decoder(bound.codec, parts, bound.spec)
    if fill is None:
        return bound.read

    def read(region: Region) -> np.ndarray:
        for array in arrays.values():
            array.check_size()
        out = np.empty(sizes(region), np.float32)
        fill(region, out)
        return out

    return read


def _typed(codec: CodecSpec, dtype: str) -> CodecSpec:
    """Return a codec with the tensor's dtype in a wrapped dense codec, since an inner codec does not see the tensor."""
    if codec.inner is None:
        return codec
    inner = evolve(codec.inner, params={"dtype": dtype}) if codec.inner == DENSE else _typed(codec.inner, dtype)
    return evolve(codec, inner=inner)


class PanelEncoder:
    """Encodes panels of a tensor's values."""

    def __init__(
        self, file: File, name: str, target: TensorSpec, origin: Encoding, magnitudes: np.ndarray | None
    ) -> None:
        registry, self._target, spec = file.registry, target, _typed(target.encodings[0].codec, target.dtype)
        self._spec, self._codec, self._dense = spec, registry.codec(spec), spec.id == "dense"
        params = {"dtype": target.dtype, **spec.params} if self._dense else spec.params
        self._encoder = encoder_for(registry, spec, target).from_params(params, self._codec.inner)
        self._metrics = self._encoder if isinstance(self._encoder, MeasuringEncoder) else None
        self._magnitudes = magnitudes
        own = self._codec.value_dtype(target)
        source = registry.codec(origin.codec).value_dtype(file[name].spec)
        self._keeps_dtype = self._dense or source == own
        self.reader = partial(reader_of, file, name, origin, own)
        self.grain = self._codec.encode_grain(target)
        self.blocks = self.grain
        if not self._dense and self.grain and self.grain[-1] == 1:
            self.blocks = (*self.grain[:-1], None)  # panels are whole rows, so a scale may cover a row

    def panel(self, values: np.ndarray) -> np.ndarray:
        """Return the values in the encoder's dtype."""
        import numpy as np

        return values if self._keeps_dtype else values.astype(np.float32, copy=False)

    def encode(self, region: Region, values: np.ndarray) -> dict[str, np.ndarray]:
        """Encode a region's values, or some of its rows; each tensor of a stack has its own statistics."""
        import numpy as np

        panel, magnitudes = self.panel(values), self._magnitudes
        if magnitudes is None or magnitudes.ndim == 1:
            columns = None if magnitudes is None else magnitudes[region[-1]]
            return self._encoder.encode(panel, activations=columns)
        members = [
            self._encoder.encode(member[None], activations=magnitudes[number, region[-1]])
            for number, member in zip(range(region[0].start, region[0].stop), panel)
        ]
        return {role: np.concatenate([parts[role] for parts in members]) for role in members[0]}

    def changed(self, values: np.ndarray, encoded: dict[str, np.ndarray]) -> np.ndarray | None:
        """Mask of the values that decoding makes infinite or NaN, or finite; None if there are none."""
        bound = self._bound(values.shape, encoded)
        if self._sums(bound, values):
            return None
        mask = changed(values, bound.read())
        return mask if mask.any() else None

    def decoded(self, shape: tuple[int, ...], encoded: dict[str, np.ndarray]) -> np.ndarray:
        """Return the values of an encoded panel."""
        return self._bound(shape, encoded).read()

    def add_distance(
        self, distance: Distance, values: np.ndarray, encoded: dict[str, np.ndarray], start: tuple[int, ...] | None
    ) -> None:
        """Add the distance of an encoded panel from its values.

        `start`: the panel's first index, to check that finite values stayed finite; None skips the check.
        """
        bound = self._bound(values.shape, encoded)
        if sums := self._sums(bound, values):
            distance.take(*sums)
            return
        for region in bound.panels(budget=1 << 20, whole_rows=True):  # pieces that stay in the cache
            decoded = bound.read(region)
            distance.add(values[region], decoded)
            if distance.max_error == inf and start is not None:
                check(values[region], decoded, self.blocks, tuple(low + part.start for low, part in zip(start, region)))

    def _sums(self, bound: BoundEncoding, values: np.ndarray) -> tuple[float, float, float, float] | None:
        """Return the encoder's own error sums; None if it has none, or one is not finite."""
        if self._metrics is None:
            return None
        sums = self._metrics.compare(bound.codec, values, bound.parts, bound.spec)  # type: ignore[arg-type]
        return sums if sums and all(map(isfinite, sums)) else None

    def codes(self, shape: tuple[int, ...], encoded: dict[str, np.ndarray]) -> Codes | None:
        """Return the codes of an encoded panel; None if the codec has none."""
        return self._bound(shape, encoded).codes(full(shape))

    def _bound(self, shape: tuple[int, ...], encoded: dict[str, np.ndarray]) -> BoundEncoding:
        """Return an encoded panel as an encoding, its parts in their declared shapes."""
        spec = evolve(self._target, shape=shape)
        codec = self._codec
        if (params := codec.params_of_panel(encoded)) is not codec.params:
            codec = codec.from_params(params, codec.inner)
        declared = codec.parts(spec)
        parts: Any = {role: encoded[role].reshape(shape) for role, (_, shape) in declared.items()}
        encoding = Encoding(codec=evolve(self._spec, params=params))
        return BoundEncoding(codec, spec, encoding, parts)


ALL_PANELS = MEMORY_LIMIT
"""Bytes of parts to keep in memory when all panels are read."""
RegionReader = Callable[[Region], "np.ndarray"]
MeasuredParts = tuple[EncodedParts, Distance | None, int]
"""Parts of a panel, their error if the encoding is lossy, and the number of clipped values."""


class Panels(Protocol):
    """A tensor's panels in the target's storage order. They depend on the plan only, never on the machine."""

    def regions(self) -> Iterator[Region]:
        """Return the regions, in the order of their bytes."""
        ...

    def parts(self, region: Region) -> EncodedParts:
        """Return the parts of one panel."""
        ...

    def measured(self, regions: Iterable[Region]) -> Iterator[MeasuredParts]:
        """Return the parts of several panels, measured; the next panel is prepared in advance."""
        ...


class EncodedPanels:
    """Panels of values, encoded. CodecError (code "range") for a value that does not stay finite."""

    def __init__(self, file: File, step: Step, magnitudes: np.ndarray | None, *, memory: int = ALL_PANELS) -> None:
        self._memory = memory
        self.target = evolve(step.spec, encodings=(evolve(step.spec.encodings[0], codec=step.encoding_codec),))
        self.encoder = PanelEncoder(file, step.name, self.target, step.origin, magnitudes)
        self.grain, self._packing = self.encoder.grain, None
        if step.encoder is not None:
            self._packing = _Packing(file, step)
            self.grain = _common_grain(self.grain, self._packing.grain)
        self.guard = partial(computing, CodecError, "encoding", file=file.name, tensor=step.name)
        self._lossy, self._saturates = step.is_lossy, step.overflow == SATURATE and step.is_lossy

    def regions(self) -> Iterator[Region]:
        """As in `Panels`."""
        return stored_panels(self.target.shape, self.grain, 4)

    def saturation(self) -> Saturation | None:
        """Return a new count of clipped values; None if the step refuses them."""
        return Saturation(self.encoder.blocks) if self._saturates else None

    def encode(
        self, region: Region, read: RegionReader, saturation: Saturation | None
    ) -> tuple[EncodedParts, np.ndarray]:
        """Return the parts of one panel, and its values; `read` comes from `encoder.reader`."""
        start, encode = tuple(part.start for part in region), partial(self.encoder.encode, region)
        with self.guard():
            values = read(region)
            panel = self.encoder.panel(values)
            if saturation:
                parts, panel = saturation.encode(values, start, encode, self.encoder.changed)
            else:
                parts = encode_or_locate(encode, panel, values, start)
        # the narrower of the two is as exact and faster to read
        return parts, panel if values.itemsize <= panel.itemsize else values

    def parts(self, region: Region) -> EncodedParts:
        """As in `Panels`."""
        return self._stored(self.encode(region, self._read, self.saturation())[0], sizes(region))

    def measured(self, regions: Iterable[Region]) -> Iterator[MeasuredParts]:
        """As in `Panels`."""
        panels: Iterator[Any] = self._encoded(regions)
        for parts, values, start, clipped in prefetch(panels) if self.target.elements * 4 > PANEL_BYTES else panels:
            distance = None
            if self._lossy:
                distance = Distance()
                with self.guard():
                    self.encoder.add_distance(distance, values, parts, None if self._saturates else start)
            yield self._stored(parts, values.shape), distance, clipped

    def _stored(self, parts: EncodedParts, shape: tuple[int, ...]) -> EncodedParts:
        """Return an encoded panel as the target stores it."""
        if self._packing is None:
            return parts
        with self.guard():
            return self._packing.parts(self.encoder.codes(shape, parts), evolve(self.target, shape=shape))

    def _encoded(self, regions: Iterable[Region]) -> Iterator[tuple[EncodedParts, np.ndarray, tuple[int, ...], int]]:
        """Parts, values, first index and number of clipped values of each panel."""
        read, saturation = self.encoder.reader(memory=self._memory), self.saturation()
        for region in regions:
            before = saturation.clipped if saturation else 0
            parts, values = self.encode(region, read, saturation)
            clipped = saturation.clipped - before if saturation else 0
            yield parts, values, tuple(part.start for part in region), clipped

    @cached_property
    def _read(self) -> RegionReader:
        return self.encoder.reader(memory=0)


class RepackedPanels:
    """Panels of the source's codes, in the target's packing."""

    def __init__(self, file: File, step: Step, *, memory: int = 0) -> None:
        spec = file.index.tensors[step.name]
        self._codes = CodePanels(file, spec, step.origin, step.spec.encodings[0], memory=memory)
        self._packing = _Packing(file, step)

    def regions(self) -> Iterator[Region]:
        """As in `Panels`."""
        return self._codes.regions()

    def parts(self, region: Region) -> EncodedParts:
        """As in `Panels`; CodecError (code `replan`) if codes do not fit as planned."""
        return self._packing.parts(*self._codes.read(region))

    def measured(self, regions: Iterable[Region]) -> Iterator[MeasuredParts]:
        """As in `Panels`; codes are not measured."""
        return ((self.parts(region), None, 0) for region in regions)


class _Packing:
    """Codes as the target of a step stores them."""

    def __init__(self, file: File, step: Step) -> None:
        self._step = step
        self._codec = file.registry.codec(step.spec.encodings[0].codec)
        self.grain = self._codec.encode_grain(step.spec)

    def parts(self, codes: Codes | None, panel: TensorSpec) -> EncodedParts:
        """Return the parts of one panel; CodecError (code `replan`) if its codes do not fit as planned."""
        result = None if codes is None else self._codec.from_codes(codes, panel)
        planned = self._step.action == "encode" or (result and result[1] in (SAME_BYTES, self._step.exactness))
        if result is None or not planned:
            raise CodecError(
                "the codes do not fit the target as planned",
                tensor=self._step.name,
                code=ErrorCode.REPLAN,
                hint="Plan the conversion again.",
            )
        return result[0]


class CodePanels:
    """Panels of a source's codes, aligned to the grains of both source and target.

    `memory`: bytes of parts to keep in memory if rereading them is expensive.
    """

    def __init__(self, file: File, spec: TensorSpec, origin: Encoding, target: Encoding, *, memory: int = 0) -> None:
        bound = file.bind(spec, origin)
        self._spec, self._bound = spec, bound.in_memory(memory)
        grain = file.registry.codec(target.codec).encode_grain(spec)
        self._grain = _common_grain(self._bound.grain, grain)

    def regions(self) -> Iterator[Region]:
        """As in `Panels`."""
        return stored_panels(self._spec.shape, self._grain, 4)

    def read(self, region: Region) -> tuple[Codes | None, TensorSpec]:
        """Return the codes of one panel (None: the codec has none), and the panel's spec."""
        return self._bound.codes(region), evolve(self._spec, shape=sizes(region))


def _common_grain(source: tuple[int | None, ...], sink: tuple[int | None, ...]) -> tuple[int | None, ...]:
    """The common grain. After an axis that only the source cannot divide, panels would leave the sink's order."""
    from math import lcm

    first_whole = next(
        (axis for axis, (a, b) in enumerate(zip(source, sink)) if a is None and b is not None), len(sink)
    )
    return tuple(
        None if a is None or b is None or axis >= first_whole else lcm(a, b)
        for axis, (a, b) in enumerate(zip(source, sink))
    )
