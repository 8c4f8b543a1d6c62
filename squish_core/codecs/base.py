"""Interfaces of tensor codecs (stored parts to values and back) and of external encoders."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from squish_core.codecs.code_layout import CodeLayout, Codes
from squish_core.codes import ErrorCode
from squish_core.errors import CodecError
from squish_core.model import CodecSpec, Exactness, TensorSpec

if TYPE_CHECKING:
    import numpy as np


Params = Mapping[str, Any]
"""Parameters of a codec, as in the file."""
Region = tuple[slice, ...]
"""One slice with explicit start and stop, step 1, per logical axis."""
Decoder = Callable[[Region, "np.ndarray"], None]
"""Fills an array with a region of a tensor."""


class PartArray(Protocol):
    """A stored array that reads on indexing: `part[a:b]` is an ndarray."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype: ...
    def __getitem__(self, key: Any) -> np.ndarray: ...
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray: ...


Parts = Mapping[str, PartArray]
"""Role -> stored array."""


class Encodes:
    """The methods of a codec that encodes: it overrides `encode`, and the others where their defaults do not fit."""

    id: str = ""
    encoder_only_params: tuple[str, ...] = ()
    """Parameters that affect encoding but are not stored; formats never see them."""

    data_params: tuple[str, ...] = ()
    """Parameters that state what the codes happen to be (`Repacks.examine`); an encoder obeys them only on request."""

    def encode(
        self, panel: np.ndarray, params: Params, *, activations: np.ndarray | None = None
    ) -> dict[str, np.ndarray]:
        """Encode a panel: f32 values of a region that is aligned to the grain and spans the undivided axes.

        May raise CodecError with code `range` for values that it cannot represent; the core also refuses values that
        do not decode to finite ones.
        """
        raise self._decoded_only()

    def params_for(self, spec: TensorSpec, params: Params) -> Params:
        """Complete and check a user's parameters for encoding this tensor; CodecError if the codec only decodes."""
        if type(self).encode is Encodes.encode:
            raise self._decoded_only()
        return params

    def needs_activations(self, params: Params) -> bool:
        """Whether encoding with these parameters needs `activations`: f32 [columns of the panel], the mean
        magnitude of the inputs of each column."""
        return False

    def fit_params(self, panels: Callable[[], Iterator[np.ndarray]], spec: TensorSpec, params: Params) -> Params:
        """Complete the parameters that depend on the values, such as counts and bases, before anything is written.

        `panels` iterates over the values in their own dtype and in row order, on each call.
        """
        return params

    def params_of_panel(self, arrays: Mapping[str, np.ndarray], params: Params) -> Params:
        """Parameters of one encoded panel; they differ from `params` if one is a count over the whole tensor."""
        return params

    def error_bound(self, params: Params) -> Exactness:
        """Error bound of encoding and decoding."""
        return Exactness("bounded")

    def _decoded_only(self) -> CodecError:
        hint = "`squish codecs` lists all codecs; choose one that encodes, such as int4 or f16."
        return CodecError(f"{self.id} has no encoder", code=ErrorCode.ENCODE, hint=hint)


class Repacks:
    """The methods of a codec with stored integers, which other codecs and kernels use without decoding values."""

    def code_layout(self, spec: TensorSpec, params: Params) -> CodeLayout | None:
        """Layout of this tensor's `codes`, declared without reading data; None if there are none.

        Formats that do not know the codec use it to decide how to store the codes.
        """
        return None

    def examine(self, parts: Parts, spec: TensorSpec, codec: CodecSpec) -> CodecSpec:
        """The specification with what only the data show, such as zero points that are all the middle of the codes.

        It must stay the same for `canonical`. Reads as little as possible.
        """
        return codec

    def codes(self, parts: Parts, spec: TensorSpec, params: Params, region: Region) -> Codes | None:
        """The stored integers of a region, in the declared `code_layout`; None if the data have no such form."""
        return None

    def from_codes(
        self, codes: Codes, spec: TensorSpec, params: Params
    ) -> tuple[dict[str, np.ndarray], Exactness] | None:
        """Parts that represent exactly these codes; None if the codec cannot."""
        return None

    def holds(self, codes: Codes, spec: TensorSpec, params: Params) -> Exactness | None:
        """The exactness that `from_codes` would return; called for every panel before anything is written."""
        result = self.from_codes(codes, spec, params)
        return None if result is None else result[1]

    def column_permuted(self, spec: TensorSpec, params: Params) -> CodecSpec | None:
        """A codec for the same tensor with permuted columns that compiled kernels support; None if there is none."""
        return None

    def permute_columns(
        self, parts: Parts, spec: TensorSpec, params: Params
    ) -> tuple[Codec, Mapping[str, PartArray], np.ndarray | None]:
        """The `column_permuted` codec, its parts, and the source column of each of its columns (None: unchanged).

        Raises CodecError with code `ErrorCode.UNCOVERED` if the data have no such form.
        """
        raise NotImplementedError


class Wraps:
    """The methods of a codec around another one: it overrides `wrap`."""

    def wrap(self, inner: Codec, params: Params) -> Codec:
        """This codec, bound to the one it wraps and to its parameters."""
        raise CodecError("this codec does not wrap another one", code="wrap")

    def lossless_params(self, params: Params) -> Params | None:
        """Parameters for wrapping another encoding of the same values without changing any, as a mask does; None if
        there are none."""
        return None


class Codec(Encodes, Repacks, Wraps):
    """A tensor codec. Parameters are plain data from the file; `parts` declares shapes for the core to check.

    A codec overrides `parts`, `grain` and `decode`. If it also encodes, has stored integers or wraps another codec, it
    overrides what `Encodes`, `Repacks` and `Wraps` list; their defaults say that it does not. `id` is the declared id,
    since one class may implement several codecs.

    Parameters
    ----------
    spec
        Of methods: the tensor, with its logical shape.
    params
        Of methods: parameters of the codec.
    parts
        Of methods: role -> stored array, read on indexing.
    region, out
        Of methods: one slice per axis, and the array of that shape to fill.
    inner
        Of methods: the wrapped codec.
    panel, panels
        Of methods: f32 values of a region; a function that iterates over all regions in row order on each call.
    activations
        Of methods: activation statistics, f32 [columns of the panel], or None.
    codes, arrays
        Of methods: stored integers with their scales; the parts of one encoded panel.
    codec
        Of methods: the specification of this codec, with the wrapped one.

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

    unsliced_parts: tuple[str, ...] = ()
    """Roles that every region may read as a whole: they locate the bytes of the other parts."""

    def parts(self, spec: TensorSpec, params: Params) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Role -> (dtype, shape) of every stored part; CodecError if the tensor's shape is not supported."""
        raise NotImplementedError

    def grain(self, spec: TensorSpec, params: Params) -> tuple[int | None, ...]:
        """Smallest independently decodable step along each logical axis; None if the axis cannot be divided."""
        raise NotImplementedError

    def encode_grain(self, spec: TensorSpec, params: Params) -> tuple[int | None, ...]:
        """Smallest panel that can be encoded alone, such that the parts of consecutive panels can be concatenated.

        Panels advance along the first axis that is not None; a codec that stores matrices transposed has
        (None, step). The grain is coarser than `grain` if a scale spans several decodable blocks.
        """
        return self.grain(spec, params)

    def decode(self, parts: Parts, spec: TensorSpec, params: Params, *, region: Region, out: np.ndarray) -> None:
        """Decode a region into `out` (C-contiguous, in the region's shape).

        `region` is aligned to the grain, and `out` has the codec's `value_dtype`. Read only what the region needs.
        """
        raise NotImplementedError

    def value_dtype(self, spec: TensorSpec, params: Params) -> str:
        """Dtype of decoded values; f32 for quantized codecs."""
        return "f32"

    def check_parts(self, parts: Parts, spec: TensorSpec, params: Params) -> None:
        """Raise the CodecError that `decode` would raise for these contents, such as indices, counts and masks.

        Called before parts are copied without decoding. A codec that can decode any contents need not override it.
        """

    def doubts(self, parts: Parts, spec: TensorSpec, params: Params) -> Iterator[str]:
        """Sentences about contents that decode but that no writer means, for `verify(deep=True)`; none by default."""
        return iter(())

    def canonical(self, params: Params) -> Params:
        """Normalize parameters, such as by removing defaults, so that those of two formats compare equal."""
        return params

    def zero_share(self, parts: Parts, spec: TensorSpec, params: Params) -> float | None:
        """Share of pruned values, computed from the smallest part that shows it; None if the codec does not prune."""
        return None


class Encoder(Protocol):
    """The encoding half of a codec, declared by `EncoderInfo`. The constructor raises if it cannot run here."""

    def params_for(self, spec: TensorSpec, params: Params) -> Params: ...

    def encode(
        self, panel: np.ndarray, params: Params, *, activations: np.ndarray | None = None
    ) -> dict[str, np.ndarray]: ...


@runtime_checkable
class MeasuringEncoder(Protocol):
    """An encoder that also decodes what it encoded, faster than the codec does."""

    def compare(
        self, codec: Codec, values: np.ndarray, parts: Mapping[str, np.ndarray], spec: TensorSpec, params: Params
    ) -> tuple[float, float, float, float] | None:
        """Compare encoded parts with their source values without decoding them.

        Returns the largest error, and the sums in f64 of squared errors, squared values and squared decoded values.
        None if that needs decoding, or if a value or decoded value is not finite.
        """
        ...

    def decoder(
        self, codec: Codec, parts: Mapping[str, np.ndarray], spec: TensorSpec, params: Params
    ) -> Decoder | None:
        """A faster decoder than `codec` for arrays of f32, f16 or bf16, with equal values rounded once; None if there
        is none."""
        ...
