"""The interface of allocators, which choose an encoding for each tensor of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from squish_core.codecs.base import Params
from squish_core.model import CodecSpec, TensorSpec

if TYPE_CHECKING:
    import numpy as np


PanelReader = Callable[[TensorSpec], Iterator["np.ndarray"]]
"""Reads the values of a tensor, panel by panel."""
AliasResolver = Callable[[str], CodecSpec]
"""Resolves a short name for `--encode` in the target format."""


@frozen
class EncodingOption:
    """A way to store a tensor: the codec (None: unchanged), the bytes in the target, and the error.

    The error is the sum of squares relative to that of the values, times their number, measured on a sample; activation
    statistics weigh the columns.
    """

    codec: CodecSpec | None
    nbytes: int
    error: float


class AllocationTarget:
    """What the target can store, for allocators that compare encodings; by default nothing is known."""

    def options(self, specs: Sequence[TensorSpec]) -> Mapping[str, Sequence[EncodingOption]]:
        """Name -> every encoding that the target stores and an encoder here writes, and that of an unchanged tensor."""
        return {spec.name: () for spec in specs}

    def size(self, choices: Mapping[str, CodecSpec | str]) -> int:
        """Bytes of all files of the target with these choices; CodecError if they are unknown before it is written."""
        raise NotImplementedError


@frozen
class ModelFacts:
    """Facts about the whole model for an allocator: names of all tensors in the target, metadata, names of the tensors
    with activation statistics (None without statistics), and what the target can store."""

    names: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(factory=dict)
    statistics: frozenset[str] | None = None
    target: AllocationTarget = field(factory=AllocationTarget)


class Allocator:
    """Chooses an encoding for each tensor; users select it with `encode=ID` (`AllocatorInfo`).

    Examples
    --------
    >>> from squish_core import api
    >>> class Wide(api.Allocator):
    ...     def choose(self, specs, params, values, short, model):
    ...         return {spec.name: short("q8_0") if len(spec.shape) > 1 else "not a matrix" for spec in specs}
    >>> spec = api.TensorSpec(name="norm", shape=(32,), dtype="f32")
    >>> Wide().choose([spec], {}, iter, api.CodecSpec, api.ModelFacts())
    {'norm': 'not a matrix'}
    """

    id: str = ""

    def choose(
        self, specs: Sequence[TensorSpec], params: Params, values: PanelReader, short: AliasResolver, model: ModelFacts
    ) -> Mapping[str, CodecSpec | str]:
        """Choose encodings: name -> codec, or the reason why the tensor stays unchanged.

        Parameters
        ----------
        specs, params
            The tensors to choose for, and the user's parameters.
        values, short
            A function from a tensor to an iterator over its row panels; a function that resolves a short name such as
            int4 for the target, or raises SquishError.
        model
            Facts about the whole model, including tensors that are not to be encoded.

        Raises
        ------
        CodecError
            The parameters are invalid.
        """
        raise NotImplementedError
