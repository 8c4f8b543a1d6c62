"""A state dict over an open file, whose values are read when transformers indexes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from squish_safetensors.api import DTYPE_TAGS

from squish_core.api import File
from squish_core.api import Tensor as StoredTensor

from .description import describe
from .modules import buffers_of, byte_shape, bytes_of, part_names
from .replacement import Replacement
from .values import NAMES, values_of

EXTRA = "_extra_state"


class LazyValue:
    """A value of a state dict; `[...]` reads it."""

    dtype = torch.uint8

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = torch.Size(shape)

    def get_shape(self) -> list[int]:
        """Return the shape, as a slice of safetensors does."""
        return list(self.shape)

    def get_dtype(self) -> str:
        """Return the dtype, as a slice of safetensors does."""
        return DTYPE_TAGS[NAMES[self.dtype]]

    def __getitem__(self, key: Any) -> torch.Tensor:
        raise NotImplementedError


class PartValue(LazyValue):
    """A stored part, as bytes: mapped, or copied."""

    def __init__(self, tensor: StoredTensor, role: str, description: str, copy: bool) -> None:
        super().__init__(byte_shape(description, role))
        self._tensor, self._role, self._description, self._copy = tensor, role, description, copy

    def __getitem__(self, key: Any) -> torch.Tensor:
        buffers = buffers_of(self._tensor, self._description)
        part = bytes_of(buffers[self._role], tuple(self.shape))[key]
        return part.clone() if self._copy else part


class DescriptionValue(LazyValue):
    """A description, as bytes."""

    def __init__(self, description: str) -> None:
        self._data = description.encode()
        super().__init__((len(self._data),))

    def __getitem__(self, key: Any) -> torch.Tensor:
        return torch.frombuffer(bytearray(self._data), dtype=torch.uint8)[key]


class DecodedValue(LazyValue):
    """A tensor, decoded if it is compressed."""

    def __init__(self, tensor: StoredTensor, dtype: torch.dtype, copy: bool) -> None:
        super().__init__(tensor.shape)
        self._tensor, self.dtype, self._copy = tensor, dtype, copy

    def __getitem__(self, key: Any) -> torch.Tensor:
        values = values_of(self._tensor, self.dtype)[key]
        return values.clone() if self._copy else values


class LazyState(Mapping[str, LazyValue]):
    """The state dict of a model over an open file.

    Parameters
    ----------
    file
        A file with transformers' names.
    dtype
        Dtype of decoded values.
    copy
        Copy values instead of mapping them.
    """

    def __init__(self, file: File, dtype: torch.dtype, copy: bool = False) -> None:
        self.file, self.dtype, self.copy = file, dtype, copy
        self.compressed: dict[str, str] = {}
        """Module -> its compressed tensor; filled when modules are replaced."""
        self.tied: set[str] = set()
        """Modules that share the parts of another."""
        self.renamed: dict[str, str] = {}
        """Tensor -> the parameter for its values, if its name differs."""

    def include(self, replacement: Replacement) -> None:
        """Add the stored parts of a module's tensors under its parameters."""
        self.compressed |= replacement.compressed
        self.renamed |= {tensor: name for name, tensor in replacement.dense.items() if tensor != name}
        if replacement.owner is not None:
            self.tied.add(replacement.path)

    def _values(self) -> Iterator[tuple[str, LazyValue]]:
        direct = set(self.compressed.values())
        for name in self.file:
            if name not in direct:
                yield self.renamed.get(name, name), DecodedValue(self.file[name], self.dtype, self.copy)
        for module, name in self.compressed.items():
            tensor = self.file[name]
            description = describe(tensor.spec, tensor.bound.encoding)
            yield f"{module}.{EXTRA}", DescriptionValue(description)
            if module not in self.tied:
                for role, parameter in part_names(description).items():
                    yield f"{module}.{parameter}", PartValue(tensor, role, description, self.copy)

    def __iter__(self) -> Iterator[str]:
        return (key for key, _ in self._values())

    def items(self) -> Any:
        """Return the keys and values, built on each call."""
        return list(self._values())

    def __len__(self) -> int:
        return sum(1 for _ in self._values())

    def __getitem__(self, key: str) -> LazyValue:
        return dict(self._values())[key]
