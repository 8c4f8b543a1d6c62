"""Interfaces of tensor codecs, from stored parts to values, and of what encodes and allocates for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from attrs import field, frozen

from squish_core.codecs.code_layout import CodeLayout, Codes
from squish_core.codes import ErrorCode
from squish_core.errors import CodecError
from squish_core.model import CodecSpec, Exactness, TensorSpec
from squish_core.renamed import Renamed

if TYPE_CHECKING:
    import numpy as np


Params = Mapping[str, Any]
Region = tuple[slice, ...]
"""One slice with explicit start and stop, step 1, per logical axis."""
Decoder = Callable[[Region, "np.ndarray"], None]
"""Fills an array with a region of a tensor."""


class PartArray(Protocol):
    """A stored array that reads only what is indexed: `part[a:b]` gives an ndarray."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype: ...
    def __getitem__(self, key: Any) -> np.ndarray: ...
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray: ...


Parts = Mapping[str, PartArray]


class Codec(Renamed):
    """A tensor codec. Parameters are plain data from the file; `parts` declares shapes so the core can check them.

    `id` is the id it was declared under: one class may serve a family. To decode, a codec needs `parts`, `grain` and
    `decode`; to encode, `encode` too.

    Parameters
    ----------
    spec
        Of methods: the tensor, with its logical shape.
    params
        Of methods: parameters of the codec.
    parts
        Of methods: role -> stored array, read where it is indexed.
    region, out
        Of methods: a slice per axis, and the array of that shape to fill.
    codec, inner
        Of methods: the codec to encode for, and the one that is wrapped.
    panel, values, panels
        Of methods: f32 values of a region; functions that give all regions, in row order, as often as they are called.
    stats
        Of methods: activation statistics, such as f32 [columns] under "activations".
    codes, made
        Of methods: stored integers with their scales; the parts of one encoded panel.

    Examples
    --------
    >>> from squish_core import api
    >>> class Halves(api.Codec):
    ...     def parts(self, spec, params):
    ...         return {"data": ("f16", spec.shape)}
    ...     def grain(self, spec, params):
    ...         return (1,) * len(spec.shape)
    ...     def decode(self, parts, spec, params, *, region, out):
    ...         out[...] = parts["data"][region]
    >>> out, spec = np.empty((1, 3), "f4"), api.TensorSpec(name="w", shape=(2, 3), dtype="f32")
    >>> Halves().decode({"data": np.ones((2, 3), "f2")}, spec, {}, region=np.s_[0:1, 0:3], out=out)
    >>> out.tolist()
    [[1.0, 1.0, 1.0]]
    """

    renamed: ClassVar[Mapping[str, str]] = {
        "around": "wrap", "for_encoding": "encoder_only_params", "measure": "fit_params",
        "panel_params": "params_of_panel", "reorder": "permute_columns", "reordered": "column_permuted",
        "scanned": "unsliced_parts", "weighs": "needs_activations",
    }  # fmt: skip
    id: str = ""
    encoder_only_params: tuple[str, ...] = ()
    """Parameters that say how values are encoded, and that nothing stored shows: no format is asked about them."""
    unsliced_parts: tuple[str, ...] = ()
    """Roles that a region may read from their start: their contents say where its other bytes lie."""

    def parts(self, spec: TensorSpec, params: Params) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Role -> (dtype, shape) of every stored part for a tensor of this shape; CodecError if impossible."""
        raise NotImplementedError

    def grain(self, spec: TensorSpec, params: Params) -> tuple[int | None, ...]:
        """Smallest independent step along each logical axis; None where the axis cannot be divided."""
        raise NotImplementedError

    def encode_grain(self, spec: TensorSpec, params: Params) -> tuple[int | None, ...]:
        """Smallest panel that encodes alone, and whose parts may be written one panel after the other; after axes that
        are None the first that is not: a codec that stores matrices transposed has (None, step).

        Coarser than `grain` where a scale spans more than what decodes alone (one scale a tensor).
        """
        return self.grain(spec, params)

    def decode(self, parts: Parts, spec: TensorSpec, params: Params, *, region: Region, out: np.ndarray) -> None:
        """Fill `out` (C-contiguous, the region's shape) with the region's values.

        `region` is on the grain; read only what it needs from `parts`. `out` has the codec's `value_dtype`.
        """
        raise NotImplementedError

    def value_dtype(self, spec: TensorSpec, params: Params) -> str:
        """Dtype that `decode` gives; f32 for quantised codecs."""
        return "f32"

    def check_parts(self, parts: Parts, spec: TensorSpec, params: Params) -> None:
        """Raise the CodecError that `decode` has for these contents (indices, counts, masks); asked before parts are
        copied undecoded. A codec that decodes any contents has nothing to check."""

    def encode(
        self, panel: np.ndarray, params: Params, *, stats: Mapping[str, np.ndarray] | None = None
    ) -> dict[str, np.ndarray]:
        """Parts of a panel (f32, a region on the grain that spans the undivided axes).

        CodecError of the code "range" for values that it cannot hold. An encoder need not look for them: the core
        refuses what does not decode to finite values.
        """
        raise self._decoded_only()

    def compare(
        self, codec: Codec, values: np.ndarray, parts: Mapping[str, np.ndarray], spec: TensorSpec, params: Params
    ) -> tuple[float, float, float, float] | None:
        """As `Encoder.compare` says; None: the core decodes and compares."""
        return None

    def decoder(
        self, codec: Codec, parts: Mapping[str, np.ndarray], spec: TensorSpec, params: Params
    ) -> Decoder | None:
        """As `Encoder.decoder` says; None: the codec decodes."""
        return None

    def params_for(self, spec: TensorSpec, params: Params) -> Params:
        """Complete and check the parameters given by a user for encoding this tensor; CodecError by a codec that has
        no `encode` of its own."""
        if type(self).encode is Codec.encode:
            raise self._decoded_only()
        return params

    def needs_activations(self, params: Params) -> bool:
        """Whether encoding with these parameters needs `stats`: "activations", f32 [columns of the panel], the mean
        magnitude of what each column is multiplied by."""
        return False

    def canonical(self, params: Params) -> Params:
        """The same parameters in one form, so that those of two formats can be compared: without defaults, say."""
        return params

    def fit_params(self, panels: Callable[[], Iterator[np.ndarray]], spec: TensorSpec, params: Params) -> Params:
        """Complete the parameters with what only the values show (counts, bases); `panels` gives them in their
        own dtype, in row order, as often as it is called. Done before anything is written."""
        return params

    def wrap(self, inner: Codec, params: Params) -> Codec:
        """Wrapping codecs: this codec bound to the one it wraps and its parameters."""
        raise CodecError("this codec wraps no other", code="wrap")

    def params_of_panel(self, made: Mapping[str, np.ndarray], params: Params) -> Params:
        """The parameters of an encoded panel alone: others where one counts what the whole tensor holds."""
        return params

    def column_permuted(self, spec: TensorSpec, params: Params) -> CodecSpec | None:
        """The codec of the same tensor with its columns in another order, one that compiled loops know; None: no such
        form."""
        return None

    def permute_columns(
        self, parts: Parts, spec: TensorSpec, params: Params
    ) -> tuple[Codec, Mapping[str, PartArray], np.ndarray | None]:
        """The `column_permuted` codec, its parts, and which column of this tensor each of theirs is (None: the same).

        CodecError with code `ErrorCode.UNCOVERED` if the data have no such form.
        """
        raise NotImplementedError

    def error_bound(self, params: Params) -> Exactness:
        """How far decoded values may be from the encoded ones."""
        return Exactness("bounded")

    def code_layout(self, spec: TensorSpec, params: Params) -> CodeLayout | None:
        """What `codes` of this tensor look like, declared without reading any data; None where it has none.

        Formats that do not know the codec decide by it how they would store the codes.
        """
        return None

    def codes(self, parts: Parts, spec: TensorSpec, params: Params, region: Region) -> Codes | None:
        """The stored integers of a region, in the declared `code_layout`; None where the data have no such form."""
        return None

    def from_codes(
        self, codes: Codes, spec: TensorSpec, params: Params
    ) -> tuple[dict[str, np.ndarray], Exactness] | None:
        """Parts that hold exactly these codes, or None when this codec cannot."""
        return None

    def holds(self, codes: Codes, spec: TensorSpec, params: Params) -> Exactness | None:
        """What `from_codes` would say, without its parts: asked of every panel before anything is written."""
        made = self.from_codes(codes, spec, params)
        return None if made is None else made[1]

    def _decoded_only(self) -> CodecError:
        hint = "`squish codecs` lists codecs; ask for one that encodes, such as int4 or f16."
        return CodecError(f"{self.id} is decoded only", code=ErrorCode.ENCODE, hint=hint)


PanelReader = Callable[[TensorSpec], Iterator["np.ndarray"]]
AliasResolver = Callable[[str], CodecSpec]


@frozen
class ModelFacts:
    """What an allocator may know of the whole model: names of all tensors in the target, metadata, and the names of
    tensors that have activation statistics (None: there are no statistics at all)."""

    names: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(factory=dict)
    statistics: frozenset[str] | None = None


class Allocator:
    """Chooses an encoding for each tensor; `encode=` takes its id (`AllocatorInfo`).

    Examples
    --------
    >>> from squish_core import api
    >>> class Wide(api.Allocator):
    ...     def choose(self, specs, params, values, short, model):
    ...         return {spec.name: short("q8_0") if len(spec.shape) > 1 else "no matrix" for spec in specs}
    >>> spec = api.TensorSpec(name="norm", shape=(32,), dtype="f32")
    >>> Wide().choose([spec], {}, iter, api.CodecSpec, api.ModelFacts())
    {'norm': 'no matrix'}
    """

    id: str = ""

    def choose(
        self, specs: Sequence[TensorSpec], params: Params, values: PanelReader, short: AliasResolver, model: ModelFacts
    ) -> Mapping[str, CodecSpec | str]:
        """Name -> the encoding, or the reason why the tensor is kept as it is.

        Parameters
        ----------
        specs, params
            The tensors to choose for, and the parameters that the user gave.
        values, short
            A function from a tensor to its row panels; one from a short name (int4) to what it means for the target,
            a SquishError where it means nothing.
        model
            What is known of all tensors, those that are not to be encoded included.

        Raises
        ------
        CodecError
            The parameters make no sense.
        """
        raise NotImplementedError


class Encoder(Protocol):
    """The half of a codec that encodes; what `EncoderInfo` declares. Its constructor raises where it cannot run."""

    def params_for(self, spec: TensorSpec, params: Params) -> Params: ...

    def encode(
        self, panel: np.ndarray, params: Params, *, stats: Mapping[str, np.ndarray] | None = None
    ) -> dict[str, np.ndarray]: ...

    def compare(
        self, codec: Codec, values: np.ndarray, parts: Mapping[str, np.ndarray], spec: TensorSpec, params: Params
    ) -> tuple[float, float, float, float] | None:
        """How far what `codec` decodes from these parts is from the values they were made of: the largest error, and
        the sums in f64 of squared errors, values and decoded values. None where only decoding can tell, or where a
        value or decoded value is not finite."""
        ...

    def decoder(
        self, codec: Codec, parts: Mapping[str, np.ndarray], spec: TensorSpec, params: Params
    ) -> Decoder | None:
        """What fills an array of f32, f16 or bf16 with the values of a region, those of `codec` rounded once, sooner
        than it does. None where only the codec can."""
        ...
