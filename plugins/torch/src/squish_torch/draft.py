"""The draft head (EAGLE-3) of a model as modules."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from squish_core.api import File, FormatError
from squish_core.api import Tensor as StoredTensor
from squish_core.api import open as open_file

from .modules import CompressedEmbedding, CompressedLinear
from .replacement import WEIGHT
from .values import TYPES, is_compressed, values_of

EMBEDDING, FUSION = "embed_tokens", "fc.weight"
TOKEN_MAPS = {"d2t": torch.int64, "t2d": torch.bool}
"""Maps between the vocabularies of head and model; some files store them as floats."""


def load_draft(path: Any, *, backend: str = "", dtype: torch.dtype = torch.float32) -> nn.Module:
    """Load the draft head of a model: a module for each matrix, under the names of the file.

    The modules form a tree, as the names do (`head.midlayer.self_attn.q_proj`), without a `forward`; `Drafter` runs a
    head whose config states the number of attention heads.

    Parameters
    ----------
    path
        A file with a draft head (SQUIZD), a head's own file or folder, or an open `File`.
    backend
        Backend id, with options for some; the best by default.
    dtype
        Dtype of norms, biases and uncompressed matrices.

    Returns
    -------
    torch.nn.Module
        With compressed and dense linear modules, an embedding for `embed_tokens`, parameters for norms, and buffers
        for the maps between vocabularies (`d2t`, `t2d`).

    Raises
    ------
    FormatError
        The file has no draft head.
    SquishError
        The backend does not run a tensor.
    """
    head = head_of(path)
    root = nn.Module()
    for name in head:
        _add(root, name, head[name], backend, dtype)
    return root.eval()


def head_of(path: Any) -> File:
    """Return the draft head inside a file, or the file if it is a draft head; raise FormatError otherwise."""
    file = (path if isinstance(path, File) else open_file(path)).original
    try:
        return file.draft()
    except KeyError:
        if FUSION in file:
            return file
        raise FormatError(
            "has no draft head",
            file=file.name,
            code="draft",
            expected=f"a file with a draft head, such as SQUIZD, or an EAGLE-3 head with a tensor {FUSION}",
            hint="Write such a file: squish convert MODEL OUT.squizd --to squizd:draft=HEAD.",
        ) from None


def _add(root: nn.Module, name: str, tensor: StoredTensor, backend: str, dtype: torch.dtype) -> None:
    """Add the module, parameter or buffer of a tensor."""
    path, _, leaf = name.rpartition(".")
    if leaf in TOKEN_MAPS or not TYPES[tensor.spec.dtype].is_floating_point:
        values = values_of(tensor)
        _parent(root, path).register_buffer(leaf, values.to(TOKEN_MAPS.get(leaf, values.dtype)))
    elif len(tensor.shape) == 2:
        module_path = name.removesuffix(WEIGHT)
        parent, _, module_name = module_path.rpartition(".")
        _parent(root, parent).add_module(module_name, _matrix(module_name, tensor, backend, dtype))
    else:
        values = values_of(tensor, None if is_compressed(tensor) else dtype).to(dtype)
        _parent(root, path).register_parameter(leaf, nn.Parameter(values, requires_grad=False))


def _matrix(name: str, tensor: StoredTensor, backend: str, dtype: torch.dtype) -> nn.Module:
    is_embedding = name == EMBEDDING
    if is_compressed(tensor):
        compressed = CompressedEmbedding if is_embedding else CompressedLinear
        module: nn.Module = compressed.of(tensor, backend=backend).to(dtype)
        return module
    rows, columns = tensor.shape
    options = {"device": "meta", "dtype": dtype}
    dense: Any = nn.Embedding(rows, columns, **options) if is_embedding else nn.Linear(columns, rows, False, **options)
    dense.weight = nn.Parameter(values_of(tensor, dtype), requires_grad=False)
    return dense


def _parent(root: nn.Module, path: str) -> nn.Module:
    """Return the module at a path; add missing modules."""
    for name in path.split(".") if path else ():
        if name not in root._modules:
            root.add_module(name, nn.Module())
        child = root._modules[name]
        assert child is not None
        root = child
    return root
