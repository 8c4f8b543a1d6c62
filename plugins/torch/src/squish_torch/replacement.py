"""Which modules of a model become compressed ones, and back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from squish_core.api import DENSE, File, describe
from squish_core.api import Tensor as StoredTensor

from .modules import CompressedEmbedding, CompressedExperts, CompressedLinear, part_names

WEIGHT = ".weight"
EXPERT_PLACES = ((".mlp.", ".mlp."), (".mlp.", ".block_sparse_moe."))
"""What a path of transformers has, and what the files of a family have there."""
EXPERT_NAMES = (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"))
"""Gate, up and down of an expert."""


def replaceable(model: Any, file: File) -> Iterator[tuple[str, nn.Module, str]]:
    """Path, module and tensor of each linear or embedding module whose tensor is a compressed matrix; a tied one's
    tensor is that of the module it is tied to."""
    ties = dict(getattr(model, "all_tied_weights_keys", {}))
    for path, module in list(model.named_modules()):
        name = f"{path}{WEIGHT}"
        source = name if name in file else ties.get(name)
        if source is not None and source in file and is_replaceable(module) and is_compressed(file[source]):
            yield path, module, source


def is_compressed(tensor: StoredTensor) -> bool:
    """Whether a tensor is a matrix that has to be decoded."""
    return len(tensor.shape) == 2 and tensor.bound.encoding.codec != DENSE


def is_replaceable(module: nn.Module) -> bool:
    """Whether a compressed module computes the same: a subclass may compute something else."""
    if type(module) in (nn.Linear, nn.Embedding):
        return True
    return isinstance(module, nn.Embedding) and hasattr(module, "scalar_embed_scale")


def compressed_module(module: nn.Module, tensor: StoredTensor, backend: str, dtype: torch.dtype) -> nn.Module:
    """The compressed module in the place of a plain one; on meta, without the parts."""
    description = describe(tensor.spec, tensor.bound.encoding)
    options: dict[str, Any] = {"backend": backend, "device": "meta", "dtype": dtype}
    if isinstance(module, nn.Linear):
        return CompressedLinear(description, bias=module.bias is not None, **options)
    return CompressedEmbedding(description, scale=getattr(module, "scalar_embed_scale", None), **options)


def tied_parts(module: nn.Module, path: str, source: str) -> dict[str, str]:
    """Parameter of a tied module -> that of the module which has the tensor."""
    assert isinstance(module, (CompressedLinear, CompressedEmbedding))
    owner = source.removesuffix(WEIGHT)
    return {f"{path}.{name}": f"{owner}.{name}" for name in part_names(module.description).values()}


def replaceable_experts(model: Any, file: File) -> Iterator[tuple[str, nn.Module, list[tuple[str, str, str]]]]:
    """Path, module and tensor names (gate, up and down of each expert) of each module of experts, where any of its
    tensors is compressed."""
    for path, module in list(model.named_modules()):
        if not (hasattr(module, "gate_up_proj") and hasattr(module, "down_proj") and hasattr(module, "num_experts")):
            continue
        for (own, other), names in ((place, names) for place in EXPERT_PLACES for names in EXPERT_NAMES):
            prefix = f"{path}.".replace(own, other)
            tensors = [
                tuple(f"{prefix}{number}.{name}{WEIGHT}" for name in names) for number in range(module.num_experts)
            ]
            if all(name in file for group in tensors for name in group):
                if any(is_compressed(file[name]) for group in tensors for name in group):
                    yield path, module, tensors  # type: ignore[misc]
                break


def dequantize_modules(model: nn.Module, dtype: torch.dtype) -> None:
    """Put plain modules with the decoded values in the place of the compressed ones; ties stay ties."""
    decoded: dict[int, nn.Parameter] = {}
    for path, module in list(model.named_modules()):
        if not isinstance(module, (CompressedLinear, CompressedEmbedding)):
            continue
        key = module.parts[0].data_ptr()
        if key not in decoded:
            decoded[key] = nn.Parameter(module.dequantize(dtype), requires_grad=False)
        rows, columns = module.shape
        if isinstance(module, CompressedLinear):
            new: nn.Module = nn.Linear(columns, rows, bias=module.bias is not None, device="meta", dtype=dtype)
            new.bias = module.bias
        elif module.scale:
            new = ScaledEmbedding(rows, columns, module.scale)
        else:
            new = nn.Embedding(rows, columns, device="meta", dtype=dtype)
        new.weight = decoded[key]
        model.set_submodule(path, new)


class ScaledEmbedding(nn.Embedding):
    """An embedding whose rows are multiplied by a constant."""

    def __init__(self, rows: int, columns: int, scale: float) -> None:
        super().__init__(rows, columns, device="meta")
        self.scalar_embed_scale = scale

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows = super().forward(ids)
        return rows * torch.tensor(self.scalar_embed_scale, dtype=rows.dtype, device=rows.device)


def experts_module(
    module: nn.Module, tensors: list[tuple[str, str, str]], file: File, backend: str, dtype: torch.dtype
) -> CompressedExperts:
    """The experts of a layer, each projection compressed where its tensor is."""

    def projection(name: str) -> nn.Module:
        rows, columns = file[name].shape
        linear = nn.Linear(columns, rows, bias=False, device="meta", dtype=dtype)
        return compressed_module(linear, file[name], backend, dtype) if is_compressed(file[name]) else linear

    groups = [(projection(gate), projection(up), projection(down)) for gate, up, down in tensors]
    return CompressedExperts(groups, module.act_fn)
