"""What `squish check-model`, `squish families` and `squish fit` print with `--json`.

Apart from the commands, because only `squish schema` imports these classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from squish_core.api import Problem


@frozen
class CheckModel:
    """Whether an engine would load a model.

    Attributes
    ----------
    loads
        Whether it loads the model, and computes what the model's authors meant.
    problems
        "error": it does not load; "warning": it computes something else; "note": no more than that it may matter.
    """

    file: str
    engine: str
    family: str
    problems: tuple[Problem, ...]
    loads: bool


@frozen
class MappedTensor:
    """A tensor under the names of each layout.

    Attributes
    ----------
    shape
        Settings or numbers.
    changes
        What GGUF changes in it.
    """

    hf: str
    gguf: str | None
    mlx: str
    uqff: str
    shape: tuple[str | int, ...]
    required: bool
    changes: tuple[str, ...]


@frozen
class MappedSetting:
    """A setting of config.json, and GGUF's key for it."""

    config: str
    gguf: str
    type: str
    required: bool


@frozen
class ListedFamily:
    """A family of models.

    Attributes
    ----------
    architecture
        GGUF's `general.architecture`.
    layouts
        The only targets, for models whose tensors are copied.
    engines
        Engine -> whether it ran the family's small models: ok, part, no, or -.
    components
        Component -> "mapped" or "left out".
    present, absent
        Keys and tensors by which GGUF's files of one architecture differ.
    gguf_tensors
        Tensors that only GGUF has.
    left_out
        Patterns of tensors of other components.
    fixed, unstated
        Settings that have one value, and those that the engine takes if config.json is silent.
    runs
        Small model -> formats that it was converted to -> what the last one's engine did.
    """

    id: str
    title: str
    package: str
    model_types: tuple[str, ...]
    architecture: str
    layouts: tuple[str, ...]
    engines: Mapping[str, str]
    components: Mapping[str, str]
    present: tuple[str, ...]
    absent: tuple[str, ...]
    tensors: tuple[MappedTensor, ...]
    gguf_tensors: tuple[str, ...]
    left_out: tuple[str, ...]
    settings: tuple[MappedSetting, ...]
    fixed: Mapping[str, Any]
    unstated: Mapping[str, Any]
    pretokenizers: tuple[str, ...]
    runs: Mapping[str, Mapping[str, str]]


@frozen
class Families:
    """The families of models."""

    families: tuple[ListedFamily, ...]


@frozen
class LayerCache:
    """What layers of one kind keep of the tokens before.

    Attributes
    ----------
    kind
        "attention", "sliding window", "latent attention", "short convolution", "Mamba", "Mamba 2" or
        "gated delta net".
    cells
        The number of tokens that a layer keeps; 1 for a state.
    size
        Bytes of all layers.
    """

    kind: str
    layers: int
    cells: int
    size: int


@frozen
class FitRow:
    """What llama-server takes for a model in one form, in bytes.

    Attributes
    ----------
    preset
        The preset, or "as it is" for the file's own codes.
    cache, states, compute, logits
        Keys and values, recurrent states, values of the graph, and logits.
    longest
        The longest context that fits; 0 if none does.
    command
        What makes the GGUF, or serves one that is here as it is.
    """

    preset: str
    weights: int
    cache: int
    states: int
    compute: int
    logits: int
    total: int
    fits: bool
    longest: int
    command: str


@frozen
class FitModel:
    """Which forms of a model llama-server can serve in a given memory.

    Attributes
    ----------
    architecture
        GGUF's `general.architecture`.
    memory
        Bytes.
    context
        Tokens, rounded up as llama.cpp does.
    longest
        The longest context of the model, by its settings.
    rows
        The largest weights first.
    best
        The preset of the first row that fits; null if none does.
    """

    file: str
    architecture: str
    memory: int
    context: int
    longest: int
    caches: tuple[LayerCache, ...]
    rows: tuple[FitRow, ...]
    best: str | None
