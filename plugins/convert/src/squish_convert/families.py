"""The interface of a model family: its tensors, names, forms and settings."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from attrs import field, frozen

from squish_core.codes import ErrorCode
from squish_core.errors import FormatError
from squish_core.formats.base import Options
from squish_core.formats.dropped import Dropped
from squish_core.formats.json import load_json
from squish_core.formats.metadata import untyped
from squish_core.guard import guarded
from squish_core.limits import Limits, default
from squish_core.model import TensorSpec

from .expressions import Expression

if TYPE_CHECKING:
    import numpy as np

CONFIG_FILE = "config.json"
MAX_JSON_ENTRY = 4 << 20


@frozen(kw_only=True)
class Model:
    """A model before mapping. `layout` is that of its names; `vectors` has values of vectors as f32.

    `rows` reads rows of a matrix, where the model is an open file.
    """

    name: str
    layout: str
    meta: Mapping[str, Any]
    assets: Mapping[str, bytes]
    tensors: Mapping[str, TensorSpec]
    vectors: Mapping[str, Any]
    limits: Limits | None = None
    rows: Callable[[str, Sequence[int]], np.ndarray] | None = None

    def value(self, key: str, default: Any = None) -> Any:
        """Return a metadata value without its stored type."""
        return untyped(self.meta[key]) if key in self.meta else default

    def config(self, name: str = CONFIG_FILE) -> dict[str, Any]:
        """One of the model's JSON files, empty if missing; FormatError if it cannot be read."""
        if name not in self.assets:
            return {}
        with guarded(FormatError, "reading a JSON file", part=name):
            return load_json(self.assets[name], "file", self.limits or default(), piece=MAX_JSON_ENTRY, constants=True)


HF, GGUF, MLX, UQFF = LAYOUTS = ("hf", "gguf", "mlx", "uqff")
"""Model layouts: names, rows and settings as Hugging Face, llama.cpp, mlx-lm and mistral.rs have them."""
ENGINES = {HF: "transformers", GGUF: "llama.cpp", MLX: "mlx-lm", UQFF: "mistral.rs"}
"""Layout -> the engine that loads it."""

TEXT, VISION, AUDIO, MTP = COMPONENTS = ("text", "vision", "audio", "mtp")
"""Components of a model: its text layers, towers of other modalities, and layers that predict more tokens."""

ANY = "*"
"""In the shape of a tensor, stands for any size."""


@frozen
class FamilyTensor:
    """A tensor of a family under its Hugging Face name; `{n}` is the layer, `{e}` the expert.

    `shape` refers to sizes of the model by name (`Family.sizes`), or is ANY. A tensor may be absent if it is not
    `required`, or if it is `tied_to` another one and the settings say so (`Family.is_tied`). Its values are floats, or
    `integers`, such as numbers of experts.
    """

    name: str
    shape: tuple[str, ...]
    required: bool = True
    tied_to: str | None = None
    integers: bool = False


@frozen
class Rule:
    """Name of a tensor in a layout, and its expression in Hugging Face's tensors.

    `dtype` is the type that the layout's engine expects of dense values. A rule with `reading` describes a form that
    files may have and that is never written.
    """

    name: str
    of: Expression
    dtype: str | None = None
    reading: bool = False


@frozen(kw_only=True)
class Carried:
    """A mapped model without its tensors: metadata, files, and tensors computed from the settings.

    `storage`: keys of `meta` that describe how a file stores its tensors (types, framework) rather than the model.
    `assets` may compute a file when it is read. `vectors` is the dtype of the model's dense vectors in Hugging Face's
    layout, if known. The target cannot store `dropped`, its engine will lack `missing`, and `notes` go into the report.
    `left_out`: patterns of the family's tensors that the target's engine does not load.
    `rows`: the rows that a `Cut` left out in the source's layout, by the name of their number.
    `coded`: the target stores codes of tensors that it transposes only if dense. `dense_only`: regexes of names of
    tensors that the target's engine loads only if dense.
    """

    meta: Mapping[str, Any] = field(factory=dict)
    storage: tuple[str, ...] = ()
    assets: Mapping[str, bytes] = field(factory=dict)
    vectors: str | None = None
    constants: Mapping[str, np.ndarray] = field(factory=dict)
    rows: Mapping[str, np.ndarray] = field(factory=dict)
    coded: bool = False
    dense_only: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    dropped: tuple[Dropped, ...] = ()
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@frozen(kw_only=True)
class Whole:
    """What the checkpoint of a whole model has that neither of two components states.

    `text_names`, `own_names`: prefixes of the family's names -> those in it, of the text layers and of the component.
    `assets`: files for both, such as config.json. `text`: the family of the text layers, if it has other tensors there.
    """

    text: Family | None = None
    text_names: Mapping[str, str] = field(factory=dict)
    own_names: Mapping[str, str] = field(factory=dict)
    assets: Mapping[str, bytes] = field(factory=dict)


class Family:
    """A model family, or one component of its models: the names of its tensors and settings in each engine.

    Attributes
    ----------
    tensors
        All tensors of a model, under their Hugging Face names.
    names
        Layout -> rules. A tensor without a rule keeps its Hugging Face name; in GGUF every tensor needs a rule.
    constants
        GGUF tensors that represent settings rather than weights.
    extras
        Templates of required tensors that a whole model may lack, such as those of layers that predict more tokens.
    leftovers
        Patterns of tensors that no target stores because every engine computes them.
    other_modalities
        Patterns of tensors of other modalities, which a text model does not include.
    remainder
        Description of tensors of other modalities and of those left out, for reports.
    prefixes
        Prefix of the Hugging Face names in a larger, multimodal model -> its replacement.

    Examples
    --------
    >>> import squish_core as squish
    >>> rules = squish.registry().implementation("family", "qwen2").names["gguf"]
    >>> next(rule for rule in rules if rule.name == "blk.{n}.ffn_up.weight").of
    'model.layers.{n}.mlp.up_proj.weight'
    """

    id: str = ""
    tensors: Sequence[FamilyTensor] = ()
    names: Mapping[str, Sequence[Rule]] = {}
    constants: ClassVar[Sequence[str]] = ()
    extras: Collection[str] = ()
    leftovers: ClassVar[Sequence[str]] = ()
    other_modalities: ClassVar[Sequence[str]] = ()
    prefixes: ClassVar[Mapping[str, str]] = {}
    remainder: ClassVar[str] = "not part of the text model"

    def fits(self, config: Mapping[str, Any]) -> bool:
        """Return whether a config.json is of this family, and not of another one of the same model type.

        Asked only if the family's `FamilyInfo.by_config` is true.

        Parameters
        ----------
        config
            The content of config.json; its model type is one of the family's.

        Returns
        -------
        bool
            True by default.
        """
        return True

    def settings(self, model: Model) -> Mapping[str, Any]:
        """Read the model's settings from either layout.

        Parameters
        ----------
        model
            Metadata, files and tensors; `model.layout` decides which of them to read.

        Returns
        -------
        Mapping
            Keys of `config.json`, in the spelling that all engines accept.

        Raises
        ------
        FormatError
            A setting is missing, is not a number, or contradicts another one.
        """
        raise NotImplementedError

    def sizes(self, settings: Mapping[str, Any]) -> Mapping[str, int | Sequence[int]]:
        """Return the sizes of a model by name.

        Parameters
        ----------
        settings
            The result of `settings`.

        Returns
        -------
        Mapping
            Sizes that shapes and rules refer to; `layers` and `experts` bound `{n}` and `{e}`. A size that differs
            between layers is a sequence with a number for each layer.
        """
        raise NotImplementedError

    def factors(self, settings: Mapping[str, Any]) -> Mapping[str, Sequence[tuple[int, float]]]:
        """Return the numbers by which rows are multiplied, by name.

        Parameters
        ----------
        settings
            The result of `settings`.

        Returns
        -------
        Mapping
            Name in a `Scale` -> pairs of a number of rows and their factor, from the first row to the last; empty by
            default.
        """
        return {}

    def is_for_mlx(self, config: Mapping[str, Any]) -> bool:
        """Tell whether a folder is one for mlx-lm, which Transformers would read as another model.

        Parameters
        ----------
        config
            Its config.json.

        Returns
        -------
        bool
        """
        return False

    def own_name(self, name: str) -> str:
        """Translate a tensor's name in a larger model to the name in this family.

        Parameters
        ----------
        name
            A name in a file.

        Returns
        -------
        str
            Without the prefix of a multimodal model; unchanged if it has none of `prefixes`.
        """
        for prefix, replacement in self.prefixes.items():
            if name.startswith(prefix):
                return replacement + name.removeprefix(prefix)
        return name

    def moved(self, settings: Mapping[str, Any]) -> Mapping[str, str]:
        """Return the prefixes of names outside GGUF that depend on the settings.

        Parameters
        ----------
        settings
            The result of `settings`.

        Returns
        -------
        Mapping
            Prefix in files -> that of the family's own name, both ways, such as "mtp.layers.0." for
            "model.layers.24."; empty by default.
        """
        return {}

    def adapter(self) -> Family | None:
        """Return the family of the adapters (LoRA) of these models.

        Returns
        -------
        Family or None
            Tensors and rules of adapters; None, the default, if they are not mapped.
        """
        return None

    def is_tied(self, settings: Mapping[str, Any], tensor: FamilyTensor) -> bool:
        """Return whether the settings say that another tensor replaces this one.

        Parameters
        ----------
        settings
            The result of `settings`.
        tensor
            A tensor with `tied_to`.

        Returns
        -------
        bool
            False by default.
        """
        return False

    def absent(self, settings: Mapping[str, Any]) -> Collection[str]:
        """Name the required tensors that some layers lack, because layers are of several kinds.

        Parameters
        ----------
        settings
            The result of `settings`.

        Returns
        -------
        Collection
            Full names; empty by default.
        """
        return ()

    def optional(self, settings: Mapping[str, Any]) -> Collection[str]:
        """Name the required tensors that some layers may lack, because no engine reads them there.

        Parameters
        ----------
        settings
            The result of `settings`.

        Returns
        -------
        Collection
            Full names; empty by default.
        """
        return ()

    def left_out(self, settings: Mapping[str, Any]) -> Collection[str]:
        """Name the tensors of modules that engines do not load, such as those that predict more tokens.

        Parameters
        ----------
        settings
            The result of `settings`.

        Returns
        -------
        Collection
            Patterns of names; empty by default. Reports list these tensors like those of other modalities.
        """
        return ()

    def behind(self, settings: Mapping[str, Any]) -> Collection[str]:
        """Name the tensors of the layers behind the last one, which predict more tokens: the component `mtp`.

        Parameters
        ----------
        settings
            The result of `settings`.

        Returns
        -------
        Collection
            Patterns of the family's names; empty by default, and for a model without such layers.
        """
        return ()

    def with_behind(self, model: Model, other: Model) -> tuple[Mapping[str, Any], Collection[str]]:
        """Add the layers behind the last one to a GGUF that lacks them.

        Parameters
        ----------
        model
            The GGUF.
        other
            The GGUF of these layers, of the same architecture.

        Returns
        -------
        tuple of (Mapping, Collection)
            The keys of the whole model, and the tensors to add.

        Raises
        ------
        FormatError
            The files do not belong together, or the family has no such layers.
        """
        raise FormatError(f"the family {self.id} joins no layers", file=other.name, code=ErrorCode.UNMAPPED)

    def beside(self, model: Model, text: Family, text_model: Model) -> Whole:
        """Describe the checkpoint of the whole model that this component and text layers belong to.

        Parameters
        ----------
        model, text, text_model
            The GGUF of this component, the family of the text layers, and their GGUF.

        Returns
        -------
        Whole
            Names and files.

        Raises
        ------
        FormatError
            The component belongs to another model, or the family's components are not joined.
        """
        raise FormatError(f"the family {self.id} is not joined with text", file=model.name, code=ErrorCode.UNMAPPED)

    def carry(self, model: Model, settings: Mapping[str, Any], layout: str, options: Options) -> Carried:
        """Compute the metadata and files of the model in another layout.

        Parameters
        ----------
        model
            The model in its current layout.
        settings
            The result of `settings`.
        layout
            One of `LAYOUTS`; the model's own if its names stay, when only `missing` and `notes` count.
        options
            Write options of the target format.

        Returns
        -------
        Carried
            Metadata, files and tensors computed from the settings, and what the layout cannot store.

        Raises
        ------
        FormatError
            The layout cannot express a setting, or the tokenizer contradicts itself.
        """
        raise NotImplementedError
