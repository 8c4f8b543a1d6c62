"""Options of llama-quantize and mlx_lm.convert as rules of `--encode`; `--graph` as options of `--to onnx`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated
from urllib.parse import quote

import typer

from squish_core.codes import ErrorCode
from squish_core.errors import UsageError

TensorType = Annotated[
    list[str] | None,
    typer.Option("--tensor-type", metavar="REGEX=TYPE", help="llama-quantize: type of the tensors whose names match."),
]
OutputType = Annotated[
    str | None, typer.Option("--output-tensor-type", metavar="TYPE", help="llama-quantize: type of output.weight.")
]
EmbeddingType = Annotated[
    str | None,
    typer.Option("--token-embedding-type", metavar="TYPE", help="llama-quantize: type of the token embeddings."),
]
Pure = Annotated[bool, typer.Option("--pure", help="llama-quantize: one type for all tensors, no mix.")]
Bits = Annotated[int | None, typer.Option("--q-bits", metavar="BITS", help="mlx_lm.convert: bits per weight.")]
GroupSize = Annotated[
    int | None, typer.Option("--q-group-size", metavar="SIZE", help="mlx_lm.convert: weights per group.")
]
Mode = Annotated[
    str | None, typer.Option("--q-mode", metavar="MODE", help="mlx_lm.convert: affine, mxfp4, mxfp8 or nvfp4.")
]
Graph = Annotated[
    str | None,
    typer.Option(
        "--graph",
        metavar="MODEL.onnx",
        help="ONNX: put the weights into this model's graph. --names FILE maps tensors to initializers (JSON).",
    ),
]

GENERIC = "llama-quantize"
WORDS, PREFIXES = ("keep", "hf", "gguf"), ("hf:", "gguf:")
"""Values of `--names` that are not files."""
MODES = {"affine": (4, 64), "mxfp4": (4, 32), "mxfp8": (8, 32), "nvfp4": (4, 16)}
"""mlx_lm's modes with their default bits and group size; only affine takes others."""
AFFINE_BITS = (2, 3, 4, 5, 6, 8)
AFFINE_GROUPS = (32, 64, 128)


def preset_rules(
    encode: Sequence[str], types: Sequence[str], output: str | None, embedding: str | None, pure: bool
) -> list[str]:
    """The rules of `--encode`, with llama-quantize's options added to the preset as parameters."""
    pairs = [text.rpartition("=") for text in types]
    if invalid := [text for text, (pattern, _, kind) in zip(types, pairs) if not pattern or not kind]:
        raise _error("--tensor-type takes REGEX=TYPE", repr(invalid[0]))
    preset_options = {"output": output, "embedding": embedding, "pure": "yes" if pure else None}
    params = [f"{key}={value}" for key, value in preset_options.items() if value]
    params += [f"{escape(pattern)}={kind}" for pattern, _, kind in pairs]
    if not params:
        return list(encode)
    presets = [index for index, rule in enumerate(encode) if "=" not in rule.partition(":")[0]]
    if len(presets) != 1:
        raise _error(
            "--tensor-type, --output-tensor-type, --token-embedding-type and --pure need one preset in --encode",
            None,
        )
    rules = list(encode)
    name, _, preset_params = rules[presets[0]].partition(":")
    rules[presets[0]] = ":".join((GENERIC, ",".join(filter(None, (*_type(name), preset_params, *params)))))
    return rules


def mlx_rules(
    encode: Sequence[str], to: str | None, bits: int | None, group_size: int | None, mode: str | None
) -> list[str]:
    """A rule from mlx_lm's options, then the rules of `--encode`, so that `--encode` wins."""
    if bits is None and group_size is None and mode is None:
        return list(encode)
    if (to or "").partition(":")[0] != "mlx":
        raise UsageError(
            "--q-bits, --q-group-size and --q-mode are for MLX targets", expected="--to mlx",
            found=f"--to {to}" if to else "no --to", code=ErrorCode.USAGE,
        )  # fmt: skip
    name = mode or "affine"
    if name not in MODES:
        raise UsageError("no such --q-mode", found=repr(name), expected=", ".join(MODES), code=ErrorCode.USAGE)
    defaults = MODES[name]
    actual = defaults[0] if bits is None else bits, defaults[1] if group_size is None else group_size
    if name != "affine":
        if actual != defaults:
            raise UsageError(
                f"{name} always has {defaults[0]} bits in groups of {defaults[1]}", code=ErrorCode.USAGE,
                found="--q-bits {} --q-group-size {}".format(*actual),
            )  # fmt: skip
        return [name, *encode]
    if actual[0] not in AFFINE_BITS:
        raise UsageError(
            "no such --q-bits", found=actual[0], expected=", ".join(map(str, AFFINE_BITS)), code=ErrorCode.USAGE
        )
    if actual[1] not in AFFINE_GROUPS:
        raise UsageError(
            "no such --q-group-size", found=actual[1], expected=", ".join(map(str, AFFINE_GROUPS)), code=ErrorCode.USAGE
        )
    return ["q{}:group_size={}".format(*actual), *encode]


def graph_target(to: str | None, graph: str | None, names: str | None) -> tuple[str | None, str | None]:
    """`--to` and `--names`; with a graph, `onnx` with its options, and `--names` may be a file."""
    if graph is None:
        return to, names
    format_id, _, target_options = (to or "onnx").partition(":")
    if format_id != "onnx":
        raise UsageError("--graph is for ONNX targets", found=f"--to {to}", expected="--to onnx", code=ErrorCode.USAGE)
    is_file = names is not None and names not in WORDS and not names.startswith(PREFIXES)
    options = [target_options, f"graph={graph}", f"names={names}" if is_file else ""]
    return f"onnx:{','.join(filter(None, options))}", None if is_file else names


def escape(pattern: str) -> str:
    """A regular expression as a parameter name: characters of the grammar become %XX."""
    return quote(pattern.lower(), safe="!#$&'*+/;<>?@[\\]^_`{|}~. ")


def _type(name: str) -> list[str]:
    return [] if name == GENERIC else [f"type={name.lower()}"]


def _error(message: str, text: str | None) -> UsageError:
    return UsageError(
        message, found=text, code=ErrorCode.USAGE,
        hint="For example --encode q4_k_m --tensor-type attn_v=q8_0 --output-tensor-type q6_k.",
    )  # fmt: skip
