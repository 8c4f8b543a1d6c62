"""What each tensor costs: the divergence of the base with one tensor, or group of tensors, of the compressed model."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import lru_cache
from typing import Any

import torch
from attrs import frozen
from torch import nn

from squish_core.api import Distance, File, panels

from ..replacement import EXPERT_PLACES, WEIGHT
from .language_model import LanguageModel
from .resume_file import ResumeFile
from .scores import divergences, log_softmax, slices
from .windows import Progress, Windows
from .workers import Processes, Setup, loaded, one_at_a_time

SECTION = "tensors"
"""The part of a resume file that belongs to this module."""

GROUPS: dict[str, Callable[[str], str]] = {
    "tensor": lambda name: name,
    "layer": lambda name: match[0] if (match := re.match(r".*?\.\d+(?=\.)", name)) else name,
    "kind": lambda name: re.sub(r"\.\d+(?=\.)", ".*", name),
}
"""How tensors are grouped -> the label of a tensor's group."""


class Replacement:
    """Tensors that are replaced together, and what that costs.

    Attributes
    ----------
    label
        Name of the tensor, or of the group.
    tensors
        Their names in the compressed model.
    modules
        Path -> module that has them.
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
        """Bytes that the compressed model has less."""
        return self.base_nbytes - self.nbytes

    @property
    def kl_per_byte(self) -> float:
        """What each saved byte costs; 0 where none is saved."""
        return self.kl / self.saved if self.saved > 0 else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "tensor": self.label, "kl": self.kl, "nmse": self.nmse, "bytes": self.nbytes,
            "base_bytes": self.base_nbytes, "kl_per_byte": self.kl_per_byte,
        }  # fmt: skip


def exchanges(replacements: Iterable[Replacement]) -> list[Replacement]:
    """Those best taken from the base, by descending KL divergence for each byte more."""
    return sorted((each for each in replacements if each.kl_per_byte > 0), key=lambda each: -each.kl_per_byte)


def measure_tensors(
    model: LanguageModel, base: LanguageModel, windows: Windows, by: str, journal: ResumeFile | None = None,
    progress: Progress | None = None, processes: Processes | None = None,
) -> list[Replacement]:  # fmt: skip
    """Replacements by descending KL divergence; those that change no value are not run and cost 0.

    The base runs once for each window, then once more for each replacement: in this process, or in others.
    """
    replacements = replacements_of(model, base, by)
    for replacement in replacements:
        compare(replacement, model.file, base.file)
    active = [each for each in replacements if not each.distance.equal]
    state = journal.load(SECTION) if journal else {}
    done, positions = state.get("count", 0), state.get("positions", 0)
    for replacement in active:
        replacement.kl = state.get("kl", {}).get(replacement.label, 0.0)
    rest = range(done, len(windows))
    if processes is None:
        answers = runs(base, windows, rest, active)
    else:
        items = [Run(processes.setup, by, replacement.label, number) for number in rest for replacement in active]
        answers = processes.map(run_replacement, items)
    with closing(answers):
        for number in rest:
            positions += len(windows[number].targets)
            for place, replacement in enumerate(active, number * len(active)):
                if progress is not None:
                    progress(replacement.label, place * windows.size, windows.total * len(active))
                for value in next(answers):
                    replacement.kl += value
            if journal is not None:
                kl = {each.label: each.kl for each in active}
                journal.save(SECTION, {"count": number + 1, "positions": positions, "kl": kl})
    for replacement in active:
        replacement.kl /= positions
    return sorted(replacements, key=lambda each: (-each.kl, each.label))


def runs(
    base: LanguageModel, windows: Windows, numbers: range, replacements: Sequence[Replacement]
) -> Generator[list[float], None, None]:
    """The divergences of each replacement in each window."""
    for number in numbers:
        base_logits = base.logits(windows[number])
        for replacement in replacements:
            yield divergence_sums(base, windows, number, replacement, base_logits)


def divergence_sums(
    base: LanguageModel, windows: Windows, number: int, replacement: Replacement, base_logits: torch.Tensor
) -> list[float]:
    """The divergence of the base with a replacement from itself in one window, slice by slice."""
    with replaced(base.model, replacement.modules):
        logits = base.logits(windows[number])
    return [
        float(divergences(log_softmax(base_logits[part]), log_softmax(logits[part])).sum()) for part in slices(logits)
    ]


@frozen
class Run:
    """A run of the base with a replacement on a window, for a worker process."""

    setup: Setup
    by: str
    label: str
    window: int


def run_replacement(run: Run) -> list[float]:
    """What a worker process answers."""
    with one_at_a_time:
        torch.set_num_threads(run.setup.threads)
        (_, base), windows = loaded(run.setup)
        replacement = loaded_replacements(run.setup, run.by)[run.label]
        return divergence_sums(base, windows, run.window, replacement, base_logits(run.setup, run.window))


@lru_cache(maxsize=1)
def loaded_replacements(setup: Setup, by: str) -> dict[str, Replacement]:
    """Label -> replacement, in a worker process."""
    (model, base), _ = loaded(setup)
    return {replacement.label: replacement for replacement in replacements_of(model, base, by)}


@lru_cache(maxsize=1)
def base_logits(setup: Setup, number: int) -> torch.Tensor:
    """The base's logits in the window that a worker process runs on."""
    (_, base), windows = loaded(setup)
    return base.logits(windows[number])


def replacements_of(model: LanguageModel, base: LanguageModel, by: str) -> list[Replacement]:
    """The replacements of a model, in the order of its modules."""
    replacements: dict[str, Replacement] = {}
    modules = dict(base.model.named_modules())
    for path, tensor, names in tensor_places(model.model, model.file):
        label = GROUPS[by](tensor)
        replacement = replacements.setdefault(label, Replacement(label))
        replacement.tensors += [name for name in names if name not in replacement.tensors]
        own = replacement.modules.get(path, modules[path])
        replacement.modules[path] = with_tensor(own, model.model.get_submodule(path), path, tensor)
    return list(replacements.values())


def tensor_places(model: nn.Module, file: File) -> Iterator[tuple[str, str, list[str]]]:
    """Path of a module, the tensor that it has, and the names in the file; experts of a layer count as one tensor."""
    ties = dict(getattr(model, "all_tied_weights_keys", {}))
    experts = ""
    for path, module in model.named_modules():
        if experts and path.startswith(f"{experts}."):
            continue
        if hasattr(module, "num_experts") and (hasattr(module, "act_fn") or hasattr(module, "gate_up_proj")):
            experts = path
            prefixes = tuple(f"{path}.".replace(own, other) for own, other in EXPERT_PLACES)
            yield path, path, [name for name in file if name.startswith(prefixes)]
            continue
        for parameter in module._parameters:
            if module._parameters[parameter] is None or parameter.startswith("weight_"):
                continue
            name = f"{path}.{parameter}"
            tensor = name if name in file else ties.get(name, name)
            if tensor in file:
                yield path, tensor, [tensor]


def with_tensor(own: nn.Module, other: nn.Module, path: str, tensor: str) -> nn.Module:
    """A copy of `own` with a tensor of `other`; both share their parameters with the copy."""
    if tensor == path:
        return other
    parameter = tensor.rpartition(".")[2]
    if parameter != WEIGHT.removeprefix("."):
        module = copy.copy(own)
        module._parameters = {**own._parameters, parameter: other._parameters[parameter]}
        return module
    module = copy.copy(other)
    module._parameters = {
        name: value if name.startswith(parameter) else own._parameters[name]
        for name, value in other._parameters.items()
    }
    return module


def compare(replacement: Replacement, file: File, base: File) -> None:
    """Add the errors and the bytes of a replacement's tensors."""
    for name in replacement.tensors:
        tensor = file[name]
        replacement.elements += tensor.spec.elements
        replacement.nbytes += tensor.bound.encoding.stored
        replacement.base_nbytes += base[name].bound.encoding.stored if name in base else 0
        if name not in base:
            replacement.distance.take(float("inf"), float("inf"), 0.0, 0.0)
            continue
        for region in panels(tensor.shape, (1,) * len(tensor.shape), 8):
            replacement.distance.add(base[name][region], tensor[region])


@contextmanager
def replaced(model: Any, modules: dict[str, nn.Module]) -> Iterator[None]:
    """Put modules into a model, and the model's own back at the end."""
    own = {path: model.get_submodule(path) for path in modules}
    try:
        for path, module in modules.items():
            model.set_submodule(path, module)
        yield
    finally:
        for path, module in own.items():
            model.set_submodule(path, module)
