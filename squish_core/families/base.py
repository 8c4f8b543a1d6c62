"""The interface of a family of models: its tensors, what each layout calls and makes of them, and its settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from attrs import field, frozen

from squish_core.formats.base import Dropped, Options

if TYPE_CHECKING:
    import numpy as np

    from squish_core.families.model import Model

HF, GGUF, MLX, UQFF = LAYOUTS = ("hf", "gguf", "mlx", "uqff")
"""Layouts of whole models: those of Hugging Face, llama.cpp, mlx-lm and mistral.rs."""

ANY = "*"
"""In the shape of a tensor, stands for any size."""


@frozen
class FamilyTensor:
    """A tensor of a family under its Hugging Face name; `{n}` stands for the layer, `{e}` for the expert.

    `shape` names sizes of the model (`Family.sizes`), or ANY. A tensor that is not `required` may be absent, and so may
    one that is `tied_to` another, where the settings say so (`Family.is_tied`).
    """

    name: str
    shape: tuple[str, ...]
    required: bool = True
    tied_to: str | None = None


@frozen
class Permute:
    """The rows of each head in the order of llama.cpp's `llama`: both halves interleaved. `heads` names their number.

    Row `2 * i + j` of a head of `d` rows is row `j * d / 2 + i` of Hugging Face's.
    """

    of: Expression
    heads: str


@frozen
class Add:
    """The values plus a constant, in f32."""

    of: Expression
    constant: float


@frozen
class Stack:
    """The same tensor of all experts (`{e}`), along a new first axis."""

    of: Expression


@frozen
class Join:
    """Tensors one after the other along the rows, each with the size that counts its rows."""

    of: tuple[tuple[Expression, str], ...]


Expression = str | Permute | Add | Stack | Join
"""A tensor of another layout, made of the family's tensors: a name, or an operation. Each operation has an inverse."""


@frozen
class Rule:
    """What a layout calls a tensor, and how it is made of those of Hugging Face.

    `dtype` is the type that the layout's engine wants of plain values. A rule for `reading` is a form that occurs in
    files and that is not written.
    """

    name: str
    of: Expression
    dtype: str | None = None
    reading: bool = False


@frozen(kw_only=True)
class Carried:
    """What surrounds the tensors of a mapped model: metadata, whole files, tensors made from the settings.

    `kept` are files of the source that stay as they are. `vectors` is the type of the plain vectors that the model had
    in Hugging Face's layout, where it is known. `dropped` has no place in the target, `missing` is what the target's
    engine will lack, `notes` are for the report.
    """

    meta: Mapping[str, Any] = field(factory=dict)
    assets: Mapping[str, bytes] = field(factory=dict)
    kept: tuple[str, ...] = ()
    vectors: str | None = None
    constants: Mapping[str, np.ndarray] = field(factory=dict)
    dropped: tuple[Dropped, ...] = ()
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Family:
    """A family of models: what each engine calls their tensors and settings.

    Attributes
    ----------
    tensors
        All tensors of a model, under their Hugging Face names.
    names
        Layout -> rules. A tensor without a rule keeps its Hugging Face name, but in GGUF every tensor needs one.
    constants
        Tensors of GGUF that stand for settings, not for weights.
    leftovers
        Patterns of tensors that no target takes, being made anew by every engine.
    beside
        Patterns of the tensors of other modalities, which the text part leaves behind.
    prefixes
        What precedes the Hugging Face names of a model that is part of a larger one, and what it stands for.

    Examples
    --------
    >>> import squish_core as squish
    >>> rules = squish.registry().family("qwen2").names["gguf"]
    >>> next(rule for rule in rules if rule.name == "blk.{n}.ffn_up.weight").of
    'model.layers.{n}.mlp.up_proj.weight'
    """

    id: str = ""
    tensors: Sequence[FamilyTensor] = ()
    names: Mapping[str, Sequence[Rule]] = {}
    constants: ClassVar[Sequence[str]] = ()
    leftovers: ClassVar[Sequence[str]] = ()
    beside: ClassVar[Sequence[str]] = ()
    prefixes: ClassVar[Mapping[str, str]] = {}

    def settings(self, model: Model) -> Mapping[str, Any]:
        """Read the model's settings from either side.

        Parameters
        ----------
        model
            Metadata, files and tensors; `model.layout` says which of them are to be read.

        Returns
        -------
        Mapping
            Keys of `config.json`, in the spelling that all engines read.

        Raises
        ------
        FormatError
            A setting is missing, is no number, or contradicts another.
        """
        raise NotImplementedError

    def sizes(self, settings: Mapping[str, Any]) -> Mapping[str, int]:
        """Name the sizes of a model.

        Parameters
        ----------
        settings
            What `settings` gives.

        Returns
        -------
        Mapping
            The sizes that shapes and rules name; `layers` and `experts` are the numbers of `{n}` and `{e}`.
        """
        raise NotImplementedError

    def adapter(self) -> Family | None:
        """Give the family of the adapters (LoRA) of these models.

        Returns
        -------
        Family or None
            Tensors and rules of adapters; None, the default, where they are not mapped.
        """
        return None

    def is_tied(self, settings: Mapping[str, Any], tensor: FamilyTensor) -> bool:
        """Whether the settings say that another tensor takes the place of this one.

        Parameters
        ----------
        settings
            What `settings` gives.
        tensor
            A tensor that is `tied_to` another.

        Returns
        -------
        bool
            False by default.
        """
        return False

    def carry(self, model: Model, settings: Mapping[str, Any], layout: str, options: Options) -> Carried:
        """Make the metadata and files of the model in another layout.

        Parameters
        ----------
        model
            The model in its own layout.
        settings
            What `settings` gives.
        layout
            One of `LAYOUTS`.
        options
            Options of the format that is written.

        Returns
        -------
        Carried
            Metadata, files and tensors made from the settings, and what has no place there.

        Raises
        ------
        FormatError
            The layout cannot say what a setting says.
        """
        raise NotImplementedError
