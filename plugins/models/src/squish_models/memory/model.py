"""A GGUF as llama.cpp loads it: its hyperparameters, and the tensors of each layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from attrs import field, frozen

from squish_core.api import File, FormatError, Typed

from ..engines.llama_cpp.keys import ARCHITECTURES, Hyperparameters
from ..engines.llama_cpp.loader import size_problems

ATTENTION, LATENT, CONVOLUTION, MAMBA, MAMBA2, DELTA = (
    "attention", "latent attention", "short convolution", "Mamba", "Mamba 2", "gated delta net",
)  # fmt: skip
STATES = {
    "shortconv.in_proj": CONVOLUTION, "ssm_alpha": DELTA, "ssm_ba": DELTA, "ssm_x": MAMBA, "ssm_in": MAMBA2,
}  # fmt: skip
"""The tensor by which a recurrent layer is known -> its kind; the first one decides."""
ENCODERS = (
    "bert", "nomic-bert", "nomic-bert-moe", "jina-bert-v2", "jina-bert-v3", "modern-bert", "eurobert", "t5encoder",
    "gemma-embedding",
)  # fmt: skip
"""Architectures that generate no text: they have no cache."""
OTHERS = ("deepseek4", "deepseek32", "glm-dsa", "kimi-linear", "laguna", "exaone4", "gemma3n")
"""Architectures whose caches or graphs these modules do not describe."""


@frozen(kw_only=True)
class Layer:
    """A layer: its number, the shapes of its tensors by their names without `blk.N.`, and its hyperparameters."""

    number: int
    shapes: Mapping[str, tuple[int, ...]] = field(repr=False)
    numbers: Hyperparameters = field(repr=False)

    def has(self, *names: str) -> bool:
        """Return whether the layer has one of these matrices or vectors of weights."""
        return any(f"{name}.weight" in self.shapes for name in names)

    def width(self, name: str) -> int:
        """Return the number of values that a matrix computes for a token; 0 without it."""
        return self.shapes.get(f"{name}.weight", (0, 0))[-2]

    def of(self, key: str) -> int:
        """Return a hyperparameter of this layer."""
        return self.numbers.of_layer(key, self.number)

    @property
    def state(self) -> str | None:
        """The kind of its recurrent state, if it has one."""
        return next((kind for name, kind in STATES.items() if self.has(name)), None)

    @property
    def attention(self) -> str | None:
        """ATTENTION or LATENT, if it attends to the tokens before."""
        if self.has("attn_kv_a_mqa"):
            return LATENT
        own = self.has("attn_q", "attn_qkv") and self.state != DELTA
        return ATTENTION if own else None

    @property
    def window(self) -> int:
        """The number of tokens before that it attends to; 0 for all."""
        return self.of("attention.sliding_window") if self.numbers.has_window(self.number) else 0


@frozen(kw_only=True)
class ServedModel:
    """A model under GGUF's names.

    Attributes
    ----------
    name
        The name of the file, for errors.
    numbers
        Its hyperparameters.
    layers
        Its layers, without those behind the last one, which predict more tokens.
    vocabulary
        The number of tokens.
    """

    name: str
    numbers: Hyperparameters = field(repr=False)
    layers: tuple[Layer, ...] = field(repr=False)
    vocabulary: int

    @property
    def embedding(self) -> int:
        """The number of values of a token between layers."""
        return self.numbers.number("embedding_length")

    def loads(self, name: str) -> bool:
        """Return whether a tensor is loaded: those of layers behind the last one are not."""
        number = _layer_of(name)
        return number is None or number < len(self.layers)


def served_model(file: File, name: str) -> ServedModel:
    """Read what llama.cpp takes its sizes from; FormatError if it does not load the model, or nobody knows its sizes.

    Parameters
    ----------
    file
        A file under GGUF's names and with its keys.
    name
        The name of the file for errors.
    """
    meta = file.index.meta
    stored = meta.get("general.architecture")
    architecture = str(getattr(stored, "value", "a model without general.architecture"))
    if architecture not in ARCHITECTURES or architecture in (*OTHERS, *ENCODERS):
        kind = "an encoder, which generates no text" if architecture in ENCODERS else "not in the tables of squish fit"
        raise FormatError(
            f"{architecture} is {kind}: what llama-server takes for it is not known",
            file=name,
            code="family",
            hint="`squish families` lists the families, and whether llama.cpp runs them.",
        )
    lists = {key: Typed(value.type, np.asarray(value.value).tolist()) for key, value in meta.items() if _is_list(value)}
    numbers = Hyperparameters(architecture, {**meta, **lists})
    problem = next((each for each in numbers.problems() if each.severity == "error"), None)
    problem = problem or next((each for each in size_problems(file, numbers) if each.severity == "error"), None)
    if problem is not None:
        raise FormatError(
            problem.message,
            file=name,
            part=problem.where,
            code=problem.code,
            hint="`squish check-model FILE --for llama.cpp` lists what else a GGUF lacks.",
        )
    shapes = {tensor: spec.shape for tensor, spec in file.index.tensors.items()}
    of_layers: dict[int | None, dict[str, tuple[int, ...]]] = {}
    for tensor, shape in shapes.items():
        of_layers.setdefault(_layer_of(tensor), {})[tensor.split(".", 2)[-1]] = shape
    layers = tuple(
        Layer(number=number, shapes=of_layers.get(number, {}), numbers=numbers) for number in range(numbers.trunk)
    )
    return ServedModel(name=name, numbers=numbers, layers=layers, vocabulary=shapes["token_embd.weight"][0])


def _is_list(value: Any) -> bool:
    return isinstance(value, Typed) and value.type.startswith("array:") and value.type != "array:str"


def _layer_of(name: str) -> int | None:
    """Return the number of the layer that a tensor belongs to; None outside of layers."""
    prefix, _, rest = name.partition(".")
    number = rest.partition(".")[0]
    return int(number) if prefix == "blk" and number.isdigit() else None
