"""Falcon-H1: attention and Mamba 2 side by side in every layer, and a number for each projection to multiply it by.

GGUF has no keys for the numbers: its weights are multiplied, and so are those of mlx-lm, which multiplies queries and
keys alike where it does so itself. Back from them, all numbers are 1.

Source: llama.cpp, `FalconH1Model` in conversion/falcon_h1.py; mlx-lm, `sanitize` in models/falcon_h1.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from attrs import evolve
from squish_convert.api import Carried, Family, Model, Reshape, Rule, Scale

from squish_core.api import ErrorCode, FormatError, Options

from ..config.keys import COMMON, VOCABULARY, Key
from ..config_file import dump_json
from ..declared import Layers
from ..settings import CONFIG, TextSettings
from ..tables import LAYER, Row, attention, norm
from .hybrid import GRANITE, GROUPS, HEADS, INNER, ONE, ROWS, STATE, TAPS, USUAL, Mamba2Layers, mamba2, state_keys

NORMED = "normed"
SCALES = {
    "embed_tokens": ("embedding_multiplier",), "lm_head": ("lm_head_multiplier",),
    "q_proj": ("attention_in_multiplier",), "k_proj": ("attention_in_multiplier", "key_multiplier"),
    "v_proj": ("attention_in_multiplier",), "o_proj": ("attention_out_multiplier",),
    "out_proj": ("ssm_out_multiplier",), "in_proj": ("ssm_in_multiplier",), "gate_proj": (), "down_proj": (),
}  # fmt: skip
"""Last part of a module's name -> the settings whose product its weights are multiplied by."""
NUMBERS = [name for names in SCALES.values() for name in names]
LISTS = {"mlp_multipliers": 2, "ssm_multipliers": 5}
"""Those of the gate and of the projection down; those of the runs of rows of `in_proj`."""
ONES = {**dict.fromkeys(NUMBERS, 1.0), **{name: [1.0] * count for name, count in LISTS.items()}}
CONVOLUTION = "mamba.conv1d.weight"


def _rows() -> tuple[Row, ...]:
    rows = (
        Row("model.embed_tokens", "token_embd", ("vocab_size", "hidden_size"), top=True),
        norm("model.final_layernorm", "output_norm", top=True),
        Row("lm_head", "output", ("vocab_size", "hidden_size"), tied_to="model.embed_tokens.weight", top=True),
        norm("input_layernorm", "attn_norm"),
        *attention(bias=False),
        *mamba2("mamba", "", normed=NORMED),
        evolve(norm("pre_ff_layernorm", "ffn_norm"), gguf_suffix=""),
        Row("feed_forward.gate_proj", "ffn_gate", ("intermediate_size", "hidden_size")),
        Row("feed_forward.up_proj", "ffn_up", ("intermediate_size", "hidden_size")),
        Row("feed_forward.down_proj", "ffn_down", ("hidden_size", "intermediate_size")),
    )
    parts = [row.hf.rpartition(".")[2] for row in rows]
    return tuple(evolve(row, scale=part) if part in SCALES else row for row, part in zip(rows, parts))


class FalconH1(Mamba2Layers):
    """Falcon-H1, all its models."""

    model_type, architecture, class_name = "falcon_h1", "falcon-h1", "FalconH1ForCausalLM"
    rows = _rows()
    more: ClassVar[Mapping[str, Sequence[Rule]]] = {
        "mlx": (
            *(Rule(row.module(".weight"), Scale(row.module(".weight"), row.scale)) for row in rows if row.scale),
            Rule(f"{LAYER}{CONVOLUTION}", Reshape(f"{LAYER}{CONVOLUTION}", (ROWS, TAPS, ONE))),
        ),
    }
    keys: ClassVar[Sequence[Key]] = (
        *(key for key in COMMON if key.hf != "rotary_dim"),
        VOCABULARY,
        *state_keys(GRANITE),
    )
    own_names: ClassVar = GRANITE
    fixed: ClassVar = {
        "hidden_act": "silu", "mamba_conv_bias": True, "mamba_proj_bias": False, "projectors_bias": False,
        "attention_bias": False, "mlp_bias": False,
    }  # fmt: skip
    unstated: ClassVar = {**ONES, "mamba_rms_norm": False, "mamba_norm_before_gate": True}
    derived = (*TextSettings.derived, *USUAL)
    kinds: ClassVar[Mapping[str, Layers]] = {NORMED: Layers(when="mamba_rms_norm")}
    presence: ClassVar = {"mamba_rms_norm": "ssm_norm.weight"}

    def adapter(self) -> Family | None:
        return None  # the numbers multiply the product of A and B only where they multiply the weights

    def spelled(self, config: Mapping[str, Any]) -> dict[str, Any]:
        settings = super().spelled({**config, **{name: ONES[name] for name in LISTS if config.get(name) is None}})
        for name, one in ONES.items():
            values = settings[name] if isinstance(one, list) else [settings[name]]
            count = LISTS.get(name, 1)
            if not isinstance(values, list) or len(values) != count or not all(map(_is_factor, values)):
                raise FormatError(
                    "is not a number to multiply by" if count == 1 else "does not have a number to multiply by each",
                    part=f"{CONFIG} {name}",
                    code=ErrorCode.CONFIG,
                    expected="a number that is not 0" if count == 1 else f"{count} numbers, none of them 0",
                    found=str(settings[name])[:60],
                )
        return {**settings, "mamba_d_ssm": settings[INNER]}

    def settings(self, model: Model) -> dict[str, Any]:
        return super().settings(model) | (ONES if self._is_multiplied(model) else {})

    def factors(self, settings: Mapping[str, Any]) -> Mapping[str, Sequence[tuple[int, float]]]:
        sizes, gates = self.sizes(settings), settings["mlp_multipliers"]
        rows = {row.scale: sizes[row.shape[0]] for row in self.rows if row.scale}
        products = {"gate_proj": gates[0], "down_proj": gates[1]}
        for part, names in SCALES.items():
            for name in names:
                products[part] = products.get(part, 1.0) * settings[name]
        states = settings[GROUPS] * settings[STATE]
        runs = (settings[INNER], settings[INNER], states, states, settings[HEADS])
        own = [(size, products["in_proj"] * each) for size, each in zip(runs, settings["ssm_multipliers"])]
        return {**{part: [(rows[part], float(factor))] for part, factor in products.items()}, "in_proj": own}

    def agrees(self, settings: Mapping[str, Any]) -> bool:
        return all(settings[name] == one for name, one in ONES.items())

    def check_for_gguf(self, settings: Mapping[str, Any]) -> None:
        super().check_for_gguf(settings)
        self._check_ties(settings)
        if settings["mamba_rms_norm"] and settings["mamba_norm_before_gate"]:
            raise FormatError(
                "has a mamba_norm_before_gate, for which GGUF has no key",
                part=CONFIG,
                code=ErrorCode.CONFIG,
                expected="false, as llama.cpp computes",
                found="true",
            )

    def carry(self, model: Model, settings: Mapping[str, Any], layout: str, options: Options) -> Carried:
        if layout == "mlx":
            self._check_ties(settings)
        if model.layout != "gguf" and (layout == "mlx" or self._is_multiplied(model)):
            model = evolve(model, assets={**model.assets, CONFIG: dump_json({**model.config(), **ONES})})
        return super().carry(model, settings, layout, options)

    def _check_ties(self, settings: Mapping[str, Any]) -> None:
        """Raise FormatError for a head that is multiplied by another number than the embeddings it is tied to."""
        numbers = [settings[name] for name in ("embedding_multiplier", "lm_head_multiplier")]
        if settings["tie_word_embeddings"] and numbers[0] != numbers[1]:
            raise FormatError(
                "has another lm_head_multiplier than its embedding_multiplier, and tied embeddings",
                part=CONFIG,
                code=ErrorCode.CONFIG,
                expected=numbers[0],
                found=numbers[1],
                hint="The target multiplies the weights, which both share.",
            )

    def _is_multiplied(self, model: Model) -> bool:
        """Return whether a folder has the weights of mlx-lm, which turns the convolution when it multiplies them."""
        spec = next((spec for name, spec in model.tensors.items() if name.endswith(CONVOLUTION)), None)
        return (
            model.layout != "gguf" and spec is not None and len(spec.shape) == 3 and spec.shape[-1] == 1 < spec.shape[1]
        )

    def _from_keys(self, model: Model) -> dict[str, Any]:
        settings = super()._from_keys(model)
        return {**settings, **ONES, "mamba_d_ssm": settings[INNER], "mamba_norm_before_gate": False}


def _is_factor(value: Any) -> bool:
    return type(value) in (int, float) and 0 < abs(value) < float("inf")
