"""Replacement of the modules of a model by compressed ones, and back."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any, cast

import torch
from attrs import Factory, field, frozen
from torch import nn

from squish_core.api import ErrorCode, File, SquishError, UsageError
from squish_core.api import Tensor as StoredTensor

from .description import describe
from .experts import BIAS, DOWN, GATE_UP, PROJECTIONS, CompressedExperts, CompressedExpertStack, CompressedStack
from .modules import Compressed, CompressedEmbedding, CompressedLinear, part_names
from .values import is_compressed

WEIGHT = ".weight"
EXPERT_PATHS = ((".mlp.", ".mlp."), (".mlp.", ".block_sparse_moe."))
"""Path of the experts in transformers' models, and in the files of a family."""
EXPERT_NAMES = (PROJECTIONS, ("w1", "w3", "w2"))
"""Gate, up and down of an expert."""
ROWS_ARE_OUTPUTS = "mxfp4"
"""The quantization that stores stacks as [experts, out, in] where transformers has [experts, in, out]."""
UNSUPPORTED = ("error", "dense")


@frozen
class ModuleOptions:
    """How to load weights.

    Attributes
    ----------
    backend
        Backend id, with options for some; the best for each tensor by default.
    on_unsupported
        "error", or "dense": decode the tensors that the backend does not run, with a warning.
    copy
        Copy stored parts into memory, so that later changes to the file do not reach them.
    """

    backend: str = ""
    on_unsupported: str = field(default="error")
    copy: bool = False

    @on_unsupported.validator
    def _check(self, attribute: Any, value: str) -> None:
        if value not in UNSUPPORTED:
            raise UsageError(
                "invalid on_unsupported",
                expected=" or ".join(map(repr, UNSUPPORTED)),
                found=repr(value),
                code=ErrorCode.USAGE,
            )

    def runs(self, tensor: StoredTensor, rank: int = 2) -> bool:
        """Return whether a tensor stays compressed; raise SquishError if it cannot and must not be decoded."""
        if len(tensor.shape) != rank or not is_compressed(tensor):
            return False
        try:
            tensor.plan(self.backend or None, op="linear" if rank == 2 else "experts")
        except SquishError as error:
            if self.on_unsupported == "error":
                raise
            warnings.warn(f"{tensor.name} is decoded: {error.message}", stacklevel=2)
            return False
        return True


@frozen
class Replacement:
    """A module that replaces one of transformers', on meta, and the tensors of the file for it.

    Attributes
    ----------
    path, module
        The path in the model, and the module.
    compressed
        Path of each compressed module (this one or a submodule) -> its tensor.
    dense
        Uncompressed parameter -> its tensor.
    owner
        Path of the module that this one is tied to, if any.
    """

    path: str
    module: nn.Module
    compressed: dict[str, str]
    dense: dict[str, str] = Factory(dict)
    owner: str | None = None


def replacements(model: Any, file: File, options: ModuleOptions, dtype: torch.dtype) -> list[Replacement]:
    """Return replacements for the model's modules whose tensors are compressed; `dtype` is that of activations.

    Raises
    ------
    SquishError
        No backend runs a tensor, and the options do not allow decoding it.
    """
    groups = (
        _layers(model, file, options, dtype), _experts(model, file, options, dtype), _stacks(model, file, options),
    )  # fmt: skip
    return [replacement for group in groups for replacement in group]


def _layers(model: Any, file: File, options: ModuleOptions, dtype: torch.dtype) -> Iterator[Replacement]:
    """Yield linear and embedding modules; a tied one uses the tensor of its owner."""
    ties = dict(getattr(model, "all_tied_weights_keys", {}))
    for path, module in model.named_modules():
        name = f"{path}{WEIGHT}"
        source = name if name in file else ties.get(name)
        if source is None or source not in file or not is_replaceable(module) or not options.runs(file[source]):
            continue
        new = compressed_module(module, file[source], options.backend, dtype)
        bias = f"{path}.bias"
        dense = {bias: bias} if getattr(module, "bias", None) is not None and bias in file else {}
        owner = None if source == name else source.removesuffix(WEIGHT)
        yield Replacement(path, new, {path: source}, dense, owner)


def _experts(model: Any, file: File, options: ModuleOptions, dtype: torch.dtype) -> Iterator[Replacement]:
    """Yield experts with a tensor for each projection of each expert."""
    for path, module in model.named_modules():
        if not _has_experts(module):
            continue
        for (in_model, in_file), names in product(EXPERT_PATHS, EXPERT_NAMES):
            prefix = f"{path}.".replace(in_model, in_file)
            tensors = [[f"{prefix}{number}.{name}{WEIGHT}" for name in names] for number in range(module.num_experts)]
            if not all(name in file for group in tensors for name in group):
                continue
            runs = {name: options.runs(file[name]) for group in tensors for name in group}
            if any(runs.values()):
                yield _separate_experts(path, module, file, tensors, runs, options.backend, dtype)
            break


def _separate_experts(
    path: str,
    module: Any,
    file: File,
    tensors: list[list[str]],
    runs: Mapping[str, bool],
    backend: str,
    dtype: torch.dtype,
) -> Replacement:
    groups: list[Any] = []
    compressed, dense = dict[str, str](), dict[str, str]()
    for number, names in enumerate(tensors):
        projections = []
        for projection, name in zip(EXPERT_NAMES[0], names):
            rows, columns = file[name].shape
            linear = nn.Linear(columns, rows, bias=False, device="meta", dtype=dtype)
            module_path = f"{path}.{number}.{projection}"
            if runs[name]:
                projections.append(compressed_module(linear, file[name], backend, dtype))
                compressed[module_path] = name
            else:
                projections.append(linear)
                dense[f"{module_path}{WEIGHT}"] = name
        groups.append(projections)
    return Replacement(path, CompressedExperts(groups, module.act_fn), compressed, dense)


def _stacks(model: Any, file: File, options: ModuleOptions) -> Iterator[Replacement]:
    """Yield experts with one tensor for each projection: [experts, out, in]."""
    for path, module in model.named_modules():
        names = [f"{path}.{GATE_UP}", f"{path}.{DOWN}"]
        if not (_has_experts(module) and hasattr(module, "_apply_gate") and all(name in file for name in names)):
            continue
        if getattr(module, "is_transposed", False) and file.index.version != ROWS_ARE_OUTPUTS:
            continue  # the file stores [experts, in, out], as transformers does
        if not all(options.runs(file[name], rank=3) for name in names):
            continue
        texts = [describe(file[name].spec, file[name].bound.encoding) for name in names]
        stacks = [CompressedStack(text, backend=options.backend, device="meta") for text in texts]
        dense = {f"{name}{BIAS}": f"{name}{BIAS}" for name in names if f"{name}{BIAS}" in file}
        yield Replacement(path, CompressedExpertStack(module, *stacks), dict(zip(names, names)), dense)


def _has_experts(module: nn.Module) -> bool:
    return all(hasattr(module, name) for name in (GATE_UP, DOWN, "num_experts"))


def is_replaceable(module: nn.Module) -> bool:
    """Return whether a compressed module can replace this one; a subclass may compute something else."""
    if type(module) in (nn.Linear, nn.Embedding):
        return True
    return isinstance(module, nn.Embedding) and hasattr(module, "scalar_embed_scale")


def compressed_module(module: nn.Module, tensor: StoredTensor, backend: str, dtype: torch.dtype) -> nn.Module:
    """Return the compressed module that replaces a module, on meta."""
    description = describe(tensor.spec, tensor.bound.encoding)
    options: dict[str, Any] = {"backend": backend, "device": "meta", "dtype": dtype}
    if isinstance(module, nn.Linear):
        return CompressedLinear(description, bias=module.bias is not None, **options)
    return CompressedEmbedding(description, scale=getattr(module, "scalar_embed_scale", None), **options)


def tied_parts(replacement: Replacement) -> dict[str, str]:
    """Return a map from the parameters of a tied module to those of its owner."""
    names = part_names(cast(Compressed, replacement.module).description).values()
    return {f"{replacement.path}.{name}": f"{replacement.owner}.{name}" for name in names}


def dequantize_modules(model: nn.Module, dtype: torch.dtype) -> None:
    """Replace compressed modules by dense ones with the decoded values; ties are kept."""
    decoded: dict[int, nn.Parameter] = {}
    for path, module in list(model.named_modules()):
        if isinstance(module, CompressedExperts):
            module.drop_stacks()
        if isinstance(module, CompressedExpertStack):
            model.set_submodule(path, module.dequantized(dtype))
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
