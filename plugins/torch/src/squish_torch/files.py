"""Files of any format behind the API of safetensors: `load_file`, `save_file`, `load_model`, `safe_open`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from squish_convert.api import save, with_names
from squish_safetensors.api import DTYPE_TAGS

from squish_core.api import ErrorCode, File, TensorError, UsageError
from squish_core.api import Tensor as StoredTensor
from squish_core.api import open as open_file

from .description import describe
from .modules import buffers_of, byte_shape, bytes_of
from .values import array_of, is_compressed, tensor_of, values_of

BACKENDS = {"mmap": True, "pread": False}
"""Safetensors' name of a read backend -> whether it maps the file."""


class CompressedTensor(NamedTuple):
    """The stored parts of a tensor (uint8 by role), and the description of their encoding."""

    description: str
    parts: dict[str, torch.Tensor]


def load_file(
    filename: str | os.PathLike[str],
    device: str | int | torch.device = "cpu",
    *,
    backend: str = "mmap",
    names: str | None = None,
    dtype: torch.dtype | None = None,
    compressed: bool = False,
) -> dict[str, Any]:
    """Load every tensor of a file or folder of any format.

    Parameters
    ----------
    filename
        A path, or anything else that `squish_core.open` takes.
    device
        Device of the tensors; on the CPU, dense tensors are private mappings of the file, without a copy.
    backend
        "mmap", or "pread": read the file into memory, so that later changes to it do not reach the tensors.
    names
        "hf" for the names and the row order of transformers; the file's own by default.
    dtype
        Dtype of decoded tensors: torch.float32 (the default), bfloat16 or float16.
    compressed
        Return compressed tensors as `CompressedTensor` instead of decoding them.

    Returns
    -------
    dict
        Name -> tensor; writing to it does not change the file.

    Raises
    ------
    SquishError
        The file cannot be read, or a tensor cannot be decoded here.
    """
    with _open(filename, names, backend) as file:
        read = stored_parts if compressed else decoded
        return {name: read(tensor, device, dtype) for name, tensor in file.items()}


def save_file(
    tensors: Mapping[str, torch.Tensor], filename: str | os.PathLike[str], metadata: Mapping[str, str] | None = None
) -> None:
    """Write tensors to a file, atomically; its suffix chooses the format.

    Parameters
    ----------
    tensors
        Name -> tensor.
    filename
        Target; an existing file is replaced.
    metadata
        Key -> text.

    Raises
    ------
    UsageError
        A value is not a tensor, or its dtype has no name.
    SquishError
        The format cannot hold a tensor, or the target cannot be written.
    """
    arrays = {name: array_of(name, tensor) for name, tensor in tensors.items()}
    save(filename, arrays, metadata=metadata)


def load_model(
    model: torch.nn.Module,
    filename: str | os.PathLike[str],
    strict: bool = True,
    device: str | int | torch.device = "cpu",
    *,
    backend: str = "mmap",
    names: str | None = None,
) -> tuple[set[str], list[str]]:
    """Load a file of any format into a model; tensors that the model shares may be stored once.

    Parameters
    ----------
    model
        The model; values are converted to its dtypes.
    filename, device, backend, names
        As in `load_file`.
    strict
        Fail where names are missing or unexpected.

    Returns
    -------
    tuple
        The names that are missing in the file, and those that are unexpected.

    Raises
    ------
    TensorError
        A shape differs, or with `strict` a name is missing or unexpected.
    """
    state = load_file(filename, device, backend=backend, names=names)
    parameters = model.state_dict(keep_vars=True)
    for name, tensor in state.items():
        if name in parameters and tensor.shape != parameters[name].shape:
            raise TensorError(
                "a tensor has another shape than the model's",
                file=str(filename),
                tensor=name,
                code="shape",
                expected=str(list(parameters[name].shape)),
                found=str(list(tensor.shape)),
            )
    missing, unexpected = model.load_state_dict(state, strict=False)
    filled = {id(value) for name, value in parameters.items() if name in state}
    unfilled = {name for name in missing if id(parameters[name]) not in filled}
    if strict and (unfilled or unexpected):
        mismatches = {"missing": sorted(unfilled), "unexpected": sorted(unexpected)}
        summary = "; ".join(f"{kind}: {', '.join(keys[:5])}" for kind, keys in mismatches.items() if keys)
        raise TensorError("the file does not fit the model", file=str(filename), code="state", found=summary)
    return unfilled, list(unexpected)


class Slice:
    """A tensor of an open file that reads on indexing, like safetensors' slices."""

    def __init__(self, tensor: StoredTensor, device: Any) -> None:
        self._tensor, self._device = tensor, device

    def get_shape(self) -> list[int]:
        """Return the shape.

        Returns
        -------
        list of int
            Sizes.
        """
        return list(self._tensor.shape)

    def get_dtype(self) -> str:
        """Return safetensors' name of the dtype; "F32" for compressed tensors.

        Returns
        -------
        str
            "BF16", "U8", ...
        """
        dtype = str(self._tensor.bound.dtype)
        return DTYPE_TAGS.get(dtype, dtype.upper())

    def __getitem__(self, key: Any) -> torch.Tensor:
        return tensor_of(self._tensor[key]).to(self._device)


class safe_open:  # noqa: N801 - safetensors' name
    """An open file of any format with the interface of safetensors, for a `with` statement.

    Parameters
    ----------
    filename
        A path.
    framework
        "pt" (or "torch"); others are refused.
    device
        Device of the tensors.
    backend, names
        As in `load_file`.
    """

    def __init__(
        self,
        filename: str | os.PathLike[str],
        framework: str = "pt",
        device: str | int | torch.device = "cpu",
        *,
        backend: str = "mmap",
        names: str | None = None,
    ) -> None:
        if framework not in ("pt", "torch"):
            raise UsageError("returns PyTorch tensors only", expected="'pt'", found=framework, code=ErrorCode.USAGE)
        self._file, self._device = _open(filename, names, backend), device

    def __enter__(self) -> safe_open:
        return self

    def __exit__(self, *exception: Any) -> None:
        self._file.close()

    def keys(self) -> list[str]:
        """Return the names of the tensors.

        Returns
        -------
        list of str
            Sorted.
        """
        return sorted(self._file)

    def offset_keys(self) -> list[str]:
        """Return the names of the tensors in the order of the file.

        Returns
        -------
        list of str
            In file order.
        """
        return list(self._file)

    def metadata(self) -> dict[str, str] | None:
        """Return the metadata entries with text values.

        Returns
        -------
        dict or None
            None if there is none.
        """
        return {key: value for key, value in self._file.meta.items() if isinstance(value, str)} or None

    def get_tensor(self, name: str) -> torch.Tensor:
        """Return one tensor, decoded if it is compressed.

        Parameters
        ----------
        name
            Its name.

        Returns
        -------
        torch.Tensor
            As in `load_file`.

        Raises
        ------
        KeyError
            There is no such tensor.
        """
        return values_of(self._file[name]).to(self._device)

    def get_tensors(self, names: Iterable[str] | None = None) -> dict[str, torch.Tensor]:
        """Return several tensors, all by default.

        Parameters
        ----------
        names
            Their names.

        Returns
        -------
        dict
            Name -> tensor.
        """
        return {name: self.get_tensor(name) for name in (self.keys() if names is None else names)}

    def get_slice(self, name: str) -> Slice:
        """Return a tensor that reads on indexing.

        Parameters
        ----------
        name
            Its name.

        Returns
        -------
        Slice
            With `get_shape`, `get_dtype` and `[...]`.

        Raises
        ------
        KeyError
            There is no such tensor.
        """
        return Slice(self._file[name], self._device)


def _open(filename: Any, names: str | None, backend: str) -> File:
    if backend not in BACKENDS:
        raise UsageError(
            "no such backend", expected=" or ".join(map(repr, BACKENDS)), found=repr(backend), code=ErrorCode.USAGE
        )
    if names not in (None, "hf"):
        raise UsageError("no such names", expected="'hf', or None for the file's own", found=repr(names), code="names")
    file = filename if isinstance(filename, File) else open_file(filename, mmap=BACKENDS[backend])
    return file if names is None else with_names(file, names)


def decoded(tensor: StoredTensor, device: Any, dtype: torch.dtype | None) -> torch.Tensor:
    """Decode a tensor on a device; `dtype` applies to compressed tensors, dense tensors keep theirs."""
    return values_of(tensor, dtype if is_compressed(tensor) else None).to(device)


def stored_parts(tensor: StoredTensor, device: Any, dtype: torch.dtype | None) -> torch.Tensor | CompressedTensor:
    """Return the parts of a compressed tensor, or the values of a dense tensor, on a device."""
    if not is_compressed(tensor):
        return decoded(tensor, device, dtype)
    encoding = tensor.bound.encoding
    description = describe(tensor.spec, encoding)
    buffers = buffers_of(tensor, description)
    parts = {role: bytes_of(buffers[role], byte_shape(description, role)).to(device) for role in encoding.parts}
    return CompressedTensor(description, parts)
