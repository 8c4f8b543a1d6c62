"""The cost of each tensor or group: the divergence of the base with its compressed version in place."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import lru_cache
from itertools import groupby
from typing import Any

import torch
from attrs import frozen
from squish_convert.api import Distance
from torch import nn

from squish_core.api import File, panels

from ..replacement import EXPERT_PATHS, WEIGHT
from .language_model import LanguageModel
from .scores import divergences, log_softmax, slices
from .state_file import StateFile
from .windows import Progress, Windows
from .workers import Processes, Setup, load_models, one_at_a_time

SECTION = "tensors"
"""Section of the state file."""

GROUPS: dict[str, Callable[[str], str]] = {
    "tensor": lambda name: name,
    "layer": lambda name: match[0] if (match := re.match(r".*?\.\d+(?=\.)", name)) else name,
    "kind": lambda name: re.sub(r"\.\d+(?=\.)", ".*", name),
}
"""Grouping -> function from a tensor to the label of its group."""


class TensorGroup:
    """Tensors that are replaced together, and the divergence that this causes.

    Attributes
    ----------
    label
        Name of the tensor, or of the group.
    tensors
        Names of the tensors in the compressed model.
    modules
        Path -> module with these tensors.
    kl
        Mean KL divergence from the base.
    nmse
        Squared error over squared values of the base.
    elements
        Number of weights.
    nbytes, base_nbytes
        Stored bytes in the compressed model and in the base.
    """

    def __init__(self, label: str) -> None:
        self.label, self.tensors, self.modules = label, list[str](), dict[str, nn.Module]()
        self.distance, self.kl = Distance(), 0.0
        self.elements, self.nbytes, self.base_nbytes = 0, 0, 0

    @property
    def nmse(self) -> float:
        return self.distance.nmse

    @property
    def layer(self) -> int | None:
        """Number of the layer; None for tensors outside of layers, and for kinds."""
        match = re.search(r"\.(\d+)(?:\.|$)", self.label)
        return int(match[1]) if match else None

    @property
    def bits(self) -> float:
        """Stored bits per weight in the compressed model."""
        return 8 * self.nbytes / max(self.elements, 1)

    @property
    def saved(self) -> int:
        """Bytes that the compressed model saves."""
        return self.base_nbytes - self.nbytes

    @property
    def kl_per_byte(self) -> float:
        """KL divergence per saved byte; 0 if none is saved."""
        return self.kl / self.saved if self.saved > 0 else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "name": self.label,
            "kl": self.kl,
            "nmse": self.nmse,
            "size": self.nbytes,
            "base_size": self.base_nbytes,
            "kl_per_byte": self.kl_per_byte,
        }


def exchanges(groups: Iterable[TensorGroup]) -> list[TensorGroup]:
    """Return the groups that save bytes, by descending KL divergence per byte."""
    return sorted((group for group in groups if group.kl_per_byte > 0), key=lambda group: -group.kl_per_byte)


def measure_tensors(
    model: LanguageModel,
    base: LanguageModel,
    windows: Windows,
    by: str,
    state_file: StateFile | None = None,
    progress: Progress | None = None,
    processes: Processes | None = None,
    section: str = SECTION,
) -> list[TensorGroup]:
    """Return groups by descending KL divergence; groups that change no value cost 0 and are not run.

    For each window, the base runs once, then once per group, in this process or in others. The sums so far are saved
    in a section of the state file after each run.
    """
    groups = groups_of(model, base, by)
    for group in groups:
        compare(group, model.file, base.file)
    active = [group for group in groups if not group.distance.equal]
    if not active:
        return sorted(groups, key=lambda group: group.label)
    state = state_file.load(section) if state_file else {}
    done, positions = state.get("runs", 0), sum(len(window.targets) for window in windows)
    for group in active:
        group.kl = state.get("kl", {}).get(group.label, 0.0)
    pending = range(done, len(windows) * len(active))
    if processes is None:
        answers = runs(base, windows, pending, active)
    else:
        items = [Run(processes.setup, by, active[run % len(active)].label, run // len(active)) for run in pending]
        answers = processes.map(run_group, items)
    with closing(answers):
        for run in pending:
            group = active[run % len(active)]
            if progress is not None:
                progress(group.label, run * windows.size, windows.total * len(active))
            for value in next(answers):
                group.kl += value
            if state_file is not None:
                state_file.save(section, {"runs": run + 1, "kl": {each.label: each.kl for each in active}})
    for group in active:
        group.kl /= positions
    return sorted(groups, key=lambda group: (-group.kl, group.label))


def runs(
    base: LanguageModel, windows: Windows, pending: range, groups: Sequence[TensorGroup]
) -> Generator[list[float], None, None]:
    """Yield the divergences of each group in each window; `pending` are numbers of these runs."""
    for number, some in groupby(pending, lambda run: run // len(groups)):
        base_logits = base.logits(windows[number])
        for run in some:
            yield divergence_sums(base, windows, number, groups[run % len(groups)], base_logits)


def divergence_sums(
    base: LanguageModel, windows: Windows, number: int, group: TensorGroup, base_logits: torch.Tensor
) -> list[float]:
    """Return the divergence that replacing a group in the base causes in one window, slice by slice."""
    with exchange_modules(base.model, group.modules):
        logits = base.logits(windows[number])
    return [
        float(divergences(log_softmax(base_logits[part]), log_softmax(logits[part])).sum()) for part in slices(logits)
    ]


@frozen
class Run:
    """A window to run with one group replaced, for a worker process."""

    setup: Setup
    by: str
    label: str
    window: int


def run_group(run: Run) -> list[float]:
    """Measure a group on a window in a worker process."""
    with one_at_a_time:
        torch.set_num_threads(run.setup.threads)
        (_, base), windows = load_models(run.setup)
        group = worker_groups(run.setup, run.by)[run.label]
        return divergence_sums(base, windows, run.window, group, base_logits(run.setup, run.window))


@lru_cache(maxsize=1)
def worker_groups(setup: Setup, by: str) -> dict[str, TensorGroup]:
    """Return the groups of a worker process by label."""
    (model, base), _ = load_models(setup)
    return {group.label: group for group in groups_of(model, base, by)}


@lru_cache(maxsize=1)
def base_logits(setup: Setup, number: int) -> torch.Tensor:
    """Return the logits of the base on a window, cached in a worker process."""
    (_, base), windows = load_models(setup)
    return base.logits(windows[number])


def groups_of(model: LanguageModel, base: LanguageModel, by: str) -> list[TensorGroup]:
    """Return the groups of a model's tensors, in the order of its modules."""
    groups: dict[str, TensorGroup] = {}
    modules = dict(base.model.named_modules())
    for path, tensor, names in module_tensors(model.model, model.file):
        label = GROUPS[by](tensor)
        group = groups.setdefault(label, TensorGroup(label))
        group.tensors += [name for name in names if name not in group.tensors]
        module = group.modules.get(path, modules[path])
        group.modules[path] = with_tensor(module, model.model.get_submodule(path), path, tensor)
    return list(groups.values())


def module_tensors(model: nn.Module, file: File) -> Iterator[tuple[str, str, list[str]]]:
    """Yield each module path, its tensor and the names in the file; the experts of a layer count as one tensor."""
    ties = dict(getattr(model, "all_tied_weights_keys", {}))
    experts = ""
    for path, module in model.named_modules():
        if experts and path.startswith(f"{experts}."):
            continue
        if hasattr(module, "num_experts") and (hasattr(module, "act_fn") or hasattr(module, "gate_up_proj")):
            experts = path
            prefixes = tuple(f"{path}.".replace(in_model, in_file) for in_model, in_file in EXPERT_PATHS)
            yield path, path, [name for name in file if name.startswith(prefixes)]
            continue
        parameters = {**getattr(module, "_stored", {}), **module._parameters}  # parts lie aside of a form on a device
        for parameter in parameters:
            if parameters[parameter] is None or parameter.startswith("weight_"):
                continue
            name = f"{path}.{parameter}"
            tensor = name if name in file else ties.get(name, name)
            if tensor in file:
                yield path, tensor, [tensor]


def with_tensor(original: nn.Module, replacement: nn.Module, path: str, tensor: str) -> nn.Module:
    """Copy `original` with a tensor of `replacement`; the copy shares the parameters of both."""
    if tensor == path:
        return replacement
    parameter = tensor.rpartition(".")[2]
    if parameter != WEIGHT.removeprefix("."):
        result = copy.copy(original)
        result._parameters = {**original._parameters, parameter: replacement._parameters[parameter]}
        return result
    result = copy.copy(replacement)
    result._parameters = {
        name: value if name.startswith(parameter) else original._parameters[name]
        for name, value in replacement._parameters.items()
    }
    return result


def compare(group: TensorGroup, file: File, base: File) -> None:
    """Add the errors and the bytes of a group's tensors."""
    for name in group.tensors:
        tensor = file[name]
        group.elements += tensor.spec.elements
        group.nbytes += tensor.bound.encoding.stored
        group.base_nbytes += base[name].bound.encoding.stored if name in base else 0
        if name not in base:
            group.distance.take(float("inf"), float("inf"), 0.0, 0.0)
            continue
        for region in panels(tensor.shape, (1,) * len(tensor.shape), 8):
            group.distance.add(base[name][region], tensor[region])


@contextmanager
def exchange_modules(model: Any, modules: dict[str, nn.Module]) -> Iterator[None]:
    """Replace modules of a model within the context."""
    originals = {path: model.get_submodule(path) for path in modules}
    try:
        for path, module in modules.items():
            model.set_submodule(path, module)
        yield
    finally:
        for path, module in originals.items():
            model.set_submodule(path, module)
