"""Interfaces of tensor codecs (stored parts to values and back) and of external encoders."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

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


class Encoder:
    """The encoding half of a codec, or an alternative one that `EncoderInfo` declares.

    It overrides `encode`, and the others where their defaults do not fit. Its constructor raises if it cannot run here.
    """

    id: str = ""
    """The declared id: one class may implement several codecs, and is subclassed for each."""
    wraps: bool = False
    """Whether the codec wraps another one."""
    params: Params = {}  # noqa: RUF012 - never written
    """The parameters as in the file."""
    inner: Codec | None = None
    """The wrapped codec."""
    encoder_only_params: tuple[str, ...] = ()
    """Parameters that affect encoding but are not stored; formats never see them."""
    data_params: tuple[str, ...] = ()
    """Parameters that describe the stored codes (`Codec.examine`); an encoder applies them only on request."""

    @classmethod
    def from_params(cls, params: Params, inner: Codec | None = None) -> Self:
        """The codec with the parameters of a file; CodecError if they are invalid. `Registry.codec` caches it."""
        if inner is not None and not cls.wraps:
            raise CodecError("this codec does not wrap another one", code="wrap")
        if inner is None and cls.wraps:
            expected = f"the inner codec in brackets, such as {cls.id}(int4)"
            raise CodecError(f"{cls.id} needs an inner codec", code=ErrorCode.PARAMS, expected=expected)
        codec = cls()
        codec.params, codec.inner = params, inner
        codec.bind()
        return codec

    def bind(self) -> None:
        """Check what does not depend on a tensor in `params` and `inner`, and store what is computed from them."""

    @property
    def specification(self) -> CodecSpec:
        """The specification that makes this codec."""
        return CodecSpec(self.id, self.params, None if self.inner is None else self.inner.specification)

    def encode(self, panel: np.ndarray, *, activations: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """Encode a panel: f32 values of a region that is aligned to the grain and spans the undivided axes.

        May raise CodecError with code `range` for values that it cannot represent; the core also refuses values that
        do not decode to finite ones.
        """
        raise self._decoded_only()

    @classmethod
    def params_for(cls, spec: TensorSpec, options: Params) -> Params:
        """Return a user's parameters, completed and checked for a tensor; CodecError if the codec only decodes."""
        if cls.encode is Encoder.encode:
            raise cls._decoded_only()
        return options

    @classmethod
    def needs_activations(cls, options: Params) -> bool:
        """Whether it needs `activations`: f32 [columns of the panel], the mean magnitude of each column's inputs."""
        return False

    def fit_params(self, panels: Callable[[], Iterator[np.ndarray]], spec: TensorSpec) -> Params:
        """The parameters with those that depend on the values, such as counts and bases, before anything is written.

        `panels` iterates over the values in their own dtype and in row order, on each call.
        """
        return self.params

    def params_of_panel(self, arrays: Mapping[str, np.ndarray]) -> Params:
        """Parameters of one encoded panel; they differ from `self.params` if one is a count over the whole tensor."""
        return self.params

    @property
    def error_bound(self) -> Exactness:
        """Exactness of a round trip."""
        return Exactness("bounded")

    @classmethod
    def _decoded_only(cls) -> CodecError:
        hint = "`squish codecs` lists all codecs; choose one that encodes, such as int4 or f16."
        return CodecError(f"{cls.id} has no encoder", code=ErrorCode.ENCODE, hint=hint)


class Codec(Encoder):
    """A tensor codec with its parameters. `parts` declares the dtypes and shapes of the stored parts.

    A codec overrides `parts`, `grain` and `decode`, and `bind` to check its parameters. One that encodes or has stored
    integers overrides `encode` or `codes` and what belongs to them; by default it has neither. One that wraps
    another codec is a `Wrapper`. A codec serves several threads: after `bind`, methods change nothing.

    Parameters
    ----------
    spec
        Of methods: the tensor, with its logical shape.
    parts
        Of methods: role -> stored array, read on indexing.
    region, out
        Of methods: one slice per axis, and the array of that shape to fill.
    params, options, inner
        Of methods of the class: the parameters of a file, those that a user gave, and the wrapped codec.
    panel, panels
        Of methods: f32 values of a region; a function that iterates over all regions in row order on each call.
    activations
        Of methods: activation statistics, f32 [columns of the panel], or None.
    codes, arrays
        Of methods: stored integers with their scales; the parts of one encoded panel.

    Examples
    --------
    >>> from squish_core import api
    >>> class Scaled(api.Codec):
    ...     def parts(self, spec):
    ...         return {"data": ("f16", spec.shape)}
    ...     def grain(self, spec):
    ...         return (1,) * len(spec.shape)
    ...     def decode(self, parts, spec, *, region, out):
    ...         out[...] = parts["data"][region] * self.params["factor"]
    >>> out, spec = np.empty((1, 3), "f4"), api.TensorSpec(name="w", shape=(2, 3), dtype="f32")
    >>> codec = Scaled.from_params({"factor": 2})
    >>> codec.decode({"data": np.ones((2, 3), "f2")}, spec, region=np.s_[0:1, 0:3], out=out)
    >>> out.tolist()
    [[2.0, 2.0, 2.0]]
    """

    unsliced_parts: tuple[str, ...] = ()
    """Roles that every region may read as a whole, such as tables; a wrapper does not repeat those of `inner`."""

    def parts(self, spec: TensorSpec) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Role -> (dtype, shape) of every stored part; CodecError if the tensor's shape is not supported."""
        raise NotImplementedError

    def grain(self, spec: TensorSpec) -> tuple[int | None, ...]:
        """Smallest independently decodable step along each logical axis; None if the axis cannot be divided."""
        raise NotImplementedError

    def encode_grain(self, spec: TensorSpec) -> tuple[int | None, ...]:
        """Smallest panel that can be encoded alone, such that the parts of consecutive panels can be concatenated.

        Panels advance along the first axis that is not None; a codec that stores matrices transposed has
        (None, step). The grain is coarser than `grain` if a scale spans several decodable blocks.
        """
        return self.grain(spec)

    def decode(self, parts: Parts, spec: TensorSpec, *, region: Region, out: np.ndarray) -> None:
        """Decode a region into `out` (C-contiguous, in the region's shape).

        `region` is aligned to the grain, and `out` has the codec's `value_dtype`. Read only what the region needs.
        """
        raise NotImplementedError

    def value_dtype(self, spec: TensorSpec) -> str:
        """Dtype of decoded values; f32 for quantized codecs."""
        return "f32"

    def check_parts(self, parts: Parts, spec: TensorSpec) -> None:
        """Raise the CodecError that `decode` would raise for these contents, such as indices, counts and masks.

        Called before parts are copied without decoding. A codec that can decode any contents need not override it.
        """

    def doubts(self, parts: Parts, spec: TensorSpec) -> Iterator[str]:
        """Warnings about contents that decode but are probably wrong, for `verify(deep=True)`; none by default."""
        return iter(())

    @property
    def canonical(self) -> Params:
        """Normalized parameters, such as without defaults, so that those of two formats compare equal."""
        return self.params

    @property
    def lossless_params(self) -> Params | None:
        """Parameters for wrapping another encoding of the same values without changing any, as a mask does; None if
        there are none."""
        return None

    def zero_share(self, parts: Parts, spec: TensorSpec) -> float | None:
        """Share of pruned values, computed from the smallest part that shows it; None if the codec does not prune."""
        return None

    def code_layout(self, spec: TensorSpec) -> CodeLayout | None:
        """Layout of this tensor's stored integers (`codes`), declared without reading data; None if there are none.

        Formats that do not know the codec use it to decide how to store the codes.
        """
        return None

    def examine(self, parts: Parts, spec: TensorSpec) -> CodecSpec:
        """The specification with what only the data show, such as zero points that are all the middle of the codes.

        It must stay the same for `canonical`. Reads as little as possible.
        """
        return self.specification

    def codes(self, parts: Parts, spec: TensorSpec, region: Region) -> Codes | None:
        """Return the stored integers of a region, in the declared `code_layout`; None if the data have no such form."""
        return None

    def from_codes(self, codes: Codes, spec: TensorSpec) -> tuple[dict[str, np.ndarray], Exactness] | None:
        """Parts that represent exactly these codes; None if the codec cannot."""
        return None

    def holds(self, codes: Codes, spec: TensorSpec) -> Exactness | None:
        """Return the exactness that `from_codes` would return; called for every panel before anything is written."""
        result = self.from_codes(codes, spec)
        return None if result is None else result[1]

    def column_permuted(self, spec: TensorSpec) -> CodecSpec | None:
        """A codec for the same tensor with permuted columns that compiled kernels support; None if there is none."""
        return None

    def permute_columns(
        self, parts: Parts, spec: TensorSpec
    ) -> tuple[Codec, Mapping[str, PartArray], np.ndarray | None]:
        """The `column_permuted` codec, its parts, and the source column of each of its columns (None: unchanged).

        Raises CodecError with code `ErrorCode.UNCOVERED` if the data have no such form.
        """
        raise NotImplementedError


class Wrapper(Codec):
    """A codec around another one, `inner`, which reads the parts of it for the tensor `wrapped(spec)`.

    It overrides `decode`, and what differs from `inner`.
    """

    wraps = True
    inner: Codec

    def wrapped(self, spec: TensorSpec) -> TensorSpec:
        """Return the tensor of `inner`; CodecError if the parameters do not fit the shape."""
        return spec

    def parts(self, spec: TensorSpec) -> dict[str, tuple[str, tuple[int, ...]]]:
        return self.inner.parts(self.wrapped(spec))

    def grain(self, spec: TensorSpec) -> tuple[int | None, ...]:
        return self.inner.grain(self.wrapped(spec))

    def value_dtype(self, spec: TensorSpec) -> str:
        return self.inner.value_dtype(self.wrapped(spec))

    def check_parts(self, parts: Parts, spec: TensorSpec) -> None:
        self.inner.check_parts(parts, self.wrapped(spec))

    @property
    def error_bound(self) -> Exactness:
        return self.inner.error_bound


@runtime_checkable
class MeasuringEncoder(Protocol):
    """An encoder that also decodes what it encoded, faster than the codec does."""

    def compare(
        self, codec: Codec, values: np.ndarray, parts: Mapping[str, np.ndarray], spec: TensorSpec
    ) -> tuple[float, float, float, float] | None:
        """Compare encoded parts with their source values without decoding them.

        Returns the largest error, and the sums in f64 of squared errors, squared values and squared decoded values.
        None if that needs decoding, or if a value or decoded value is not finite.
        """

    def decoder(self, codec: Codec, parts: Mapping[str, np.ndarray], spec: TensorSpec) -> Decoder | None:
        """A faster decoder than `codec` for arrays of f32, f16 or bf16, with equal values rounded once; None if there
        is none."""
