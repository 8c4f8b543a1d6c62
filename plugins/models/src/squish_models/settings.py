"""The settings of text models: a family as a table, read from config.json or from GGUF's keys."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, ClassVar

from squish_convert.api import Family, FamilyTensor, Model, Rule, source_names

from squish_core.api import ErrorCode, FormatError, LimitError, UsageError

from .config.gguf_defaults import LoadedKeys
from .config.keys import Key, check_settings, settings_of
from .config.rope import ignored_scaling, rope_settings
from .config.spelling import all_layers, old_spelling, text_config
from .config.values import check_parts, check_values
from .engines.mistralrs.settings import has_class
from .engines.needs import EngineNeeds
from .tables import Row
from .tokenizer.pretokenizers import Pretokenizer, add_pretokenizers

CONFIG = "config.json"
HEAD = "lm_head.weight"
INEXPRESSIBLE = "inexpressible"
"""Key in the settings of a GGUF: the error for what no config.json can express."""
LEFT_OUT = "layers_left_out"
"""Key in the settings of a GGUF: how many layers behind the last one it has that the family does not map."""
WINDOWS = "attention.sliding_window_pattern"
"""GGUF's key for the layers with a window."""
MOST_BLOCKS = 1 << 18
"""Maximum number of layers times experts, ten times that of the largest model in use."""
BARE = {part: f"model.{part}" for part in ("embed_tokens.", "layers.", "norm.")}
"""Prefixes of names in files of the base model class, such as embedding models."""
MODULES_OF_POOLING = "[0-9]*_*/*"
"""Tensors of the modules of sentence-transformers behind the pooling, by the folders before their names."""
IGNORED = ("use_sliding_window",)
"""Settings that llama.cpp ignores; the report says so."""
ENGINES = {"gguf": "llama.cpp", "mlx": "mlx-lm"}
"""Engines that ignore the windows of some families."""
WRITTEN_FOR = {"mlx": "mlx", "uqff": "mistralrs"}
"""Layout -> the engine that alone reads it."""
TITLES = {"mlx": "mlx-lm", "mistralrs": "mistral.rs"}
ELSEWHERE = "Convert it to a GGUF or to a folder of Hugging Face, or keep the names: {option:rename=keep}."
"""The next step for a model that an engine does not run."""


class TextSettings(Family):
    """A family as a table; subclasses define what differs.

    Attributes
    ----------
    model_type, architecture, class_name
        The names of the family in config.json and GGUF.
    mlx_type
        The name in config.json for mlx-lm, if it has another one.
    mlx_part
        What precedes the names for mlx-lm, if it has the text model only as a part, with settings in `text_config`.
    rows
        Its weights.
    more
        Layout -> additional rules: other forms in files and stacks of experts.
    keys
        Settings that GGUF has keys for.
    fixed
        Settings without a GGUF key, equal for all models of the family.
    unstated
        Transformers' defaults of settings that config.json does not state.
    biases
        Setting -> the projections that have biases only if it is true.
    must_state
        Settings without such a default in a table.
    own_names
        Usual name of a setting -> the name in this family's config.json.
    derived
        Settings that follow from others or belong to other modalities, which are not keys of config.json.
    layer_counts
        Settings that default to the number of layers.
    own_lists
        Lists with a value for each layer, which engines read as they are.
    tied_by_default
        Whether embeddings are tied if config.json does not state it.
    rotated_by_default
        The share of a head that is rotated if config.json does not state it.
    windowless
        Layouts whose engines attend beyond the sliding window.
    unadapted
        Projections to which llama.cpp applies no adapter.
    headless
        Whether no layer has attention; the sizes of heads are then 1.
    generates
        Whether its models continue a text; others have neither a generation_config.json nor ids of its first and last
        token in config.json.
    pooling
        llama.cpp's number for the pooling of all its models, if they have one.
    gemma_tokenizer
        Whether the tokenizer merges by id and has runs of spaces as tokens.
    merging
        The pre-tokenizer of a SentencePiece-style tokenizer whose merges GGUF stores instead of scores.
    pretokenizers
        Pre-tokenizers of its models that squish-models does not have.
    engines
        Engine -> what it needs of the family's models, for a family that squish-models does not have.
    """

    model_type: ClassVar[str]
    architecture: ClassVar[str]
    class_name: ClassVar[str]
    mlx_type: ClassVar[str] = ""
    mlx_part: ClassVar[str] = ""
    rows: ClassVar[Sequence[Row]]
    more: ClassVar[Mapping[str, Sequence[Rule]]] = {}
    keys: ClassVar[Sequence[Key]]
    fixed: ClassVar[Mapping[str, Any]] = {}
    unstated: ClassVar[Mapping[str, Any]] = {}
    biases: ClassVar[Mapping[str, Sequence[str]]] = {}
    must_state: ClassVar[Sequence[str]] = ()
    own_names: ClassVar[Mapping[str, str]] = {}
    derived: ClassVar[Sequence[str]] = ("rotary_dim", "mrope_section", "kv_heads")
    layer_counts: ClassVar[Sequence[str]] = ()
    own_lists: ClassVar[Sequence[str]] = ()
    tied_by_default: ClassVar[bool] = False
    rotated_by_default: ClassVar[float] = 1.0
    windowless: ClassVar[Sequence[str]] = ("gguf",)
    unadapted: ClassVar[Sequence[str]] = ()
    headless: ClassVar[bool] = False
    prefixes: ClassVar[Mapping[str, str]] = BARE
    generates: ClassVar[bool] = True
    pooling: ClassVar[int | None] = None
    gemma_tokenizer: ClassVar[bool] = False
    merging: ClassVar[str] = ""
    pretokenizers: ClassVar[Sequence[Pretokenizer]] = ()
    engines: ClassVar[Mapping[str, EngineNeeds]] = {}
    leftovers: ClassVar[Sequence[str]] = ("*.rotary_emb.inv_freq", "*.attn.bias", "*.attn.masked_bias")

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        add_pretokenizers(cls.pretokenizers)

    @cached_property
    def tensors(self) -> Sequence[FamilyTensor]:  # type: ignore[override]
        return tuple(tensor for row in self.rows for tensor in row.tensors())

    @cached_property
    def names(self) -> Mapping[str, Sequence[Rule]]:  # type: ignore[override]
        templates = {tensor.name for tensor in self.tensors}
        more = {
            layout: tuple(rule for rule in rules if templates.issuperset(source_names(rule.of)))
            for layout, rules in self.more.items()
        }
        own = tuple(rule for row in self.rows for rule in row.rules())
        if self.mlx_part:
            more["mlx"] = tuple(Rule(f"{self.mlx_part}{name}", name) for name in sorted(templates))
        return {**more, "gguf": (*own, *more.get("gguf", ()))}

    def settings(self, model: Model) -> dict[str, Any]:
        settings = self._from_keys(model) if model.layout == "gguf" else self._from_config(model)
        heads = settings["num_attention_heads"]
        if settings.get("num_key_value_heads") is None:
            settings["num_key_value_heads"] = heads
        if settings.get("head_dim") is None:
            if settings["hidden_size"] % heads:
                raise FormatError(
                    "is not a multiple of the attention heads, and there is no size of a head",
                    part=self._place("hidden_size", model.layout),
                    code=ErrorCode.CONFIG,
                    expected=f"a multiple of {heads}, the {self._place('num_attention_heads', model.layout)}",
                    found=settings["hidden_size"],
                    hint="Correct one of the two numbers there.",
                )
            settings["head_dim"] = settings["hidden_size"] // heads
        groups = settings["num_key_value_heads"]
        if groups < 1 or heads % groups:
            raise FormatError(
                "is not a multiple of the key-value heads",
                part=self._place("num_attention_heads", model.layout),
                code=ErrorCode.CONFIG,
                expected=f"a multiple of the {self._place('num_key_value_heads', model.layout)}, {groups}, at least 1",
                found=heads,
                hint="Correct one of the two numbers there.",
            )
        return settings

    def _place(self, setting: str, layout: str) -> str:
        """Where a model states a setting: the key in config.json, or in a GGUF."""
        if layout != "gguf":
            return f"{CONFIG} {self.own_names.get(setting, setting)}"
        names = (key.gguf for key in self.keys if key.hf == self.own_names.get(setting, setting))
        return f"{self.architecture}.{next(names, setting)}"

    def sizes(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        head_dim, heads, groups = (settings[key] for key in ("head_dim", "num_attention_heads", "num_key_value_heads"))
        named = (
            "hidden_size", "intermediate_size", "moe_intermediate_size", "vocab_size", "head_dim",
            "num_attention_heads", "num_key_value_heads",
        )  # fmt: skip
        q_rows, kv_rows = heads * head_dim, groups * head_dim
        return {
            **{name: settings[name] for name in named if name in settings},
            "layers": all_layers(settings),
            "experts": self.expert_count(settings),
            "q_rows": q_rows,
            "kv_rows": kv_rows,
            "qkv_rows": q_rows + 2 * kv_rows,
            "group_rows": heads // groups * head_dim,
            "two_hidden": 2 * settings["hidden_size"],
            "gate_up_rows": 2 * settings.get("intermediate_size", 0),
        }

    def left_out(self, settings: Mapping[str, Any]) -> Collection[str]:
        return () if any("/" in row.hf for row in self.rows) else (MODULES_OF_POOLING,)

    def is_tied(self, settings: Mapping[str, Any], tensor: FamilyTensor) -> bool:
        return tensor.tied_to is not None and bool(settings["tie_word_embeddings"])

    def absent(self, settings: Mapping[str, Any]) -> Collection[str]:
        layers = range(all_layers(settings))
        others = {
            kind: {*layers}.difference(self.layers_of(kind, settings))
            for kind in {kind for row in self.rows for kind in row.kinds}
        }
        count = max(self.expert_count(settings), 1)
        return {
            tensor.name.replace("{n}", str(layer)).replace("{e}", str(expert))
            for row in self.rows
            for tensor in row.tensors()
            for layer in set().union(*(others[kind] for kind in row.kinds))
            for expert in range(count if "{e}" in tensor.name else 1)
        }

    def layers_of(self, kind: str, settings: Mapping[str, Any]) -> Collection[int]:
        """The numbers of the layers of a kind."""
        return [layer for layer, each in enumerate(self.layer_kinds(settings)) if each == kind]

    def layer_kinds(self, settings: Mapping[str, Any]) -> Sequence[str]:
        """Return the kind of each layer, if there are several kinds."""
        return ()

    def implied(self, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the settings that llama.cpp assumes for every model of these sizes."""
        return self.fixed

    def check_for_gguf(self, settings: Mapping[str, Any]) -> None:
        """Raise FormatError for a setting without a GGUF key for which llama.cpp assumes another value."""
        for key, value in self.implied(settings).items():
            stated = settings.get(key, self.unstated.get(key, value))
            if key not in IGNORED and stated != value:
                raise FormatError(
                    f"has a {key}, for which GGUF has no key",
                    part=CONFIG,
                    code=ErrorCode.CONFIG,
                    expected=f"{value!r}, as llama.cpp computes",
                    found=repr(stated)[:60],
                    hint="The written file would describe a different model.",
                )

    def agrees(self, settings: Mapping[str, Any]) -> bool:
        """Return whether a config.json with these settings, kept in a GGUF, can be that of the tensors beside it."""
        return True

    def pooling_of(self, config: Mapping[str, Any]) -> int | None:
        """Return llama.cpp's number for the pooling of a model's own code, if it has one."""
        return self.pooling

    def is_for_mlx(self, config: Mapping[str, Any]) -> bool:
        return bool(self.mlx_type) and config.get("model_type") == self.mlx_type and "text_config" not in config

    def check_for_folder(self, settings: Mapping[str, Any]) -> None:
        """Raise FormatError for the settings of a GGUF that no config.json can express."""
        if INEXPRESSIBLE in settings:
            raise settings[INEXPRESSIBLE]

    def is_run(self, layout: str, settings: Mapping[str, Any]) -> bool:
        """Return whether the engine that alone reads a layout, if there is one, has such models."""
        engine = WRITTEN_FOR.get(layout, "")
        if engine in self.engines:
            return self.engines[engine].supported
        classes = settings.get("architectures") or [self.class_name]
        return engine != "mistralrs" or has_class(classes[0])

    def check_engine(self, layout: str, settings: Mapping[str, Any]) -> None:
        """Raise UsageError for a layout whose only engine does not have such models."""
        if not self.is_run(layout, settings):
            raise UsageError(
                f"is a model of the family {self.id}, which {TITLES[WRITTEN_FOR[layout]]} does not have",
                code=ErrorCode.ENGINE,
                hint=ELSEWHERE,
            )

    def ignored(self, settings: Mapping[str, Any], layout: str) -> tuple[str, ...]:
        """Return settings that the engine of a layout ignores."""
        notes = []
        window = settings.get("sliding_window")
        is_used = settings.get("use_sliding_window") is not False and layout in self.windowless
        if window is not None and is_used and window < settings["max_position_embeddings"]:
            notes.append(f"{ENGINES[layout]} ignores the sliding window of {window}: it attends to older tokens, too")
        return (*notes, *ignored_scaling(settings, layout))

    @cached_property
    def head(self) -> str:
        """The name of the head's weight."""
        return next((row.module(row.suffix) for row in self.rows if row.gguf == "output"), HEAD)

    @property
    def experts(self) -> str | None:
        """The setting with the number of experts."""
        return next((key.hf for key in self.keys if key.gguf == "expert_count"), None)

    def expert_count(self, settings: Mapping[str, Any]) -> int:
        """The number of experts in a layer; 0 in a model without any."""
        return settings.get(self.experts or "") or 0

    def spelled(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of a config.json in the spelling that all engines read."""
        check_parts(config)
        stated = text_config({**self.unstated, **config})
        own = {name: stated.pop(name) for name in self.own_lists if name in stated}
        lists_windows = any(key.gguf == WINDOWS for key in self.keys)
        settings = self.usual({**old_spelling(stated, self.experts, lists_windows=lists_windows), **own})
        check_values(settings, self.own_names)
        return settings

    def usual(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings, with the usual names added for the family's own names."""
        return {**settings, **{name: settings[own] for name, own in self.own_names.items() if own in settings}}

    def _from_config(self, model: Model) -> dict[str, Any]:
        config = self.spelled(model.config())
        check_settings([*self.keys, *(Key(name, "", "") for name in self.must_state)], config, CONFIG)
        self._check_counts(config, "hf")
        self._check_biases(config, model)
        tied = config.get("tie_word_embeddings")
        has_head = any(name.endswith(self.head) for name in model.tensors)
        if tied is None or (tied is False and not has_head and _is_base_model(model.config())):
            tied = self.tied_by_default or not has_head
        if not isinstance(tied, bool):
            raise FormatError(
                "is neither true nor false",
                part=f"{CONFIG} tie_word_embeddings",
                found=repr(tied),
                code=ErrorCode.CONFIG,
            )
        check_settings([Key("vocab_size", "vocab_size")], config, CONFIG)
        settings = {**config, "tie_word_embeddings": tied}
        if settings.get("rope_theta") is None:
            settings["rope_theta"] = self.unstated.get("rope_theta", 10000.0)
        settings["rotary_dim"] = self._rotary(settings)
        return settings

    def _check_counts(self, settings: Mapping[str, Any], layout: str) -> None:
        """Raise SquishError for a model without heads, or with more layers and experts than any model has."""
        experts = self.expert_count(settings)
        used = settings.get("num_experts_per_tok") if experts else None
        for name, number, most in (
            ("num_attention_heads", settings["num_attention_heads"], math.inf),
            ("num_experts_per_tok", used, experts),
        ):
            if number is not None and not 1 <= number <= most:
                raise FormatError(
                    "is not a number that a model can have",
                    part=self._place(name, layout),
                    code=ErrorCode.CONFIG,
                    expected="at least 1" if most == math.inf else f"1 to {most}, the number of experts",
                    found=number,
                )
        blocks = settings["num_hidden_layers"] * max(experts, 1)
        if blocks > MOST_BLOCKS:
            raise LimitError(
                "has too many layers or experts",
                part=self._place("num_hidden_layers", layout),
                code="count",
                expected=f"at most {MOST_BLOCKS}",
                found=blocks,
            )

    def _check_biases(self, settings: Mapping[str, Any], model: Model) -> None:
        """Raise FormatError for biases that Transformers does not load: config.json says that there are none."""
        others = self.other_modalities
        for setting, modules in self.biases.items():
            names = tuple(f"{module}.bias" for module in modules)
            named = (name for name in model.tensors if name.endswith(names))
            bias = next((name for name in named if not any(fnmatchcase(name, each) for each in others)), None)
            if settings.get(setting) is False and bias is not None:
                raise FormatError(
                    f"is false, but there is {bias}",
                    part=f"{CONFIG} {setting}",
                    code=ErrorCode.CONTRADICTION,
                    expected="true, or no biases",
                    found=False,
                )

    def _rotary(self, settings: Mapping[str, Any]) -> int:
        size = settings.get("head_dim") or settings["hidden_size"] // settings["num_attention_heads"]
        return int(size * (settings.get("partial_rotary_factor") or self.rotated_by_default))

    def _from_keys(self, model: Model) -> dict[str, Any]:
        read = self.usual(settings_of(self.keys, self.architecture, model.meta))
        read |= {"num_attention_heads": 1} if self.headless else {}
        self._check_counts(read, "gguf")
        embeddings = model.tensors.get("token_embd.weight")
        settings: dict[str, Any] = {
            "architectures": [self.class_name], "model_type": self.model_type, **read,
            "tie_word_embeddings": "output.weight" not in model.tensors,
        }  # fmt: skip
        if embeddings is not None and len(embeddings.shape) == 2:
            settings["vocab_size"] = embeddings.shape[0]
        elif "vocab_size" not in settings:
            raise FormatError(
                "is missing or not a matrix, so the number of tokens is unknown",
                code=ErrorCode.UNMAPPED,
                part="token_embd.weight",
                expected=f"a matrix, or the key {self.architecture}.vocab_size",
            )
        settings.setdefault("rope_theta", 10000.0)
        for name in self.layer_counts:
            settings.setdefault(name, settings["num_hidden_layers"])
        if settings.get("head_dim") is None:
            settings["head_dim"] = settings["hidden_size"] // settings["num_attention_heads"]
        head_dim = settings["head_dim"]
        rotary = settings.setdefault("rotary_dim", head_dim)
        if head_dim and (rotary != head_dim or self.rotated_by_default != 1):
            settings["partial_rotary_factor"] = rotary / head_dim
        biases = {"attention_bias": "attn_q.bias", "mlp_bias": "ffn_gate.bias"}
        stated = {name: any(tensor.endswith(bias) for tensor in model.tensors) for name, bias in biases.items()}
        settings = {**stated, **self.implied(settings), **settings}
        loaded = LoadedKeys(self.architecture, model.meta)
        scaling, inexpressible = rope_settings(loaded, model.vectors, settings)
        for name in loaded.inexpressible([key.gguf for key in self.keys]):
            inexpressible = self._inexpressible(name, found=str(loaded[name])[:60])
        return settings | scaling | ({INEXPRESSIBLE: inexpressible} if inexpressible else {})

    def _inexpressible(self, key: str, message: str = "", **facts: Any) -> FormatError:
        """Return the error about a key of a GGUF that no config.json can express."""
        return FormatError(
            message or f"cannot be expressed in the config.json of a {self.model_type}",
            part=f"{self.architecture}.{key}",
            code=ErrorCode.CONFIG,
            hint="Convert it to a GGUF, or keep the names with {option:rename=keep}.",
            **facts,
        )


def _is_base_model(config: Mapping[str, Any]) -> bool:
    """Return whether a config names a class without a head."""
    names = config.get("architectures")
    return (
        isinstance(names, list)
        and [*names] != []
        and all(str(name).endswith("Model") and "LMHead" not in str(name) for name in names)
    )
