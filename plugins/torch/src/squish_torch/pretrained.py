"""Models of transformers over files and folders of any format."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from squish_convert.api import with_names
from transformers import GenerationConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from squish_core.api import ErrorCode, File, FormatError, TensorError
from squish_core.api import open as open_file

from .devices import CPU, device_named
from .quantizer import SquishConfig
from .state import LazyState

CONFIG, GENERATION = "config.json", "generation_config.json"
QUANTIZATION = "quantization_config"
VOCABULARIES = ("tokenizer.json", "tokenizer.model")
TOKENIZER_FILES = (
    CONFIG, *VOCABULARIES, "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "chat_template.jinja", "vocab.json", "vocab.txt", "merges.txt",
)  # fmt: skip
"""The files from which transformers makes a tokenizer; other files may take longer to compute."""


def from_pretrained(
    path: Any,
    *,
    config: Any = None,
    backend: str | None = None,
    device: Any = "cpu",
    dtype: torch.dtype = torch.float32,
    attn_implementation: str | None = None,
    on_unsupported: str = "error",
    copy: bool = False,
) -> Any:
    """Load a model of transformers whose weights stay compressed.

    Parameters
    ----------
    path
        A file or folder of any format, or an open `File`.
    config
        A config of transformers; the file's own by default.
    backend
        Backend id, with options for some; the best for each tensor by default.
    device
        Device of the model.
    dtype
        Dtype of activations, norms and biases.
    attn_implementation
        As in transformers.
    on_unsupported
        For a tensor that the backend does not run: "error", or "dense" to decode its values with a warning.
    copy
        Copy weights into memory, so that later changes to the file do not reach them; by default they are mapped.

    Returns
    -------
    PreTrainedModel
        In evaluation mode; `hf_quantizer` is set, so `dequantize()` returns a dense model.

    Raises
    ------
    FormatError
        The file has no config, or transformers lacks its model type.
    TensorError
        A tensor of the model is missing, or has another shape.
    UsageError
        The device is not available.
    SquishError
        The backend does not run a tensor.
    """
    where, file = device_named(device), named_file(path)
    quantization = SquishConfig(backend or "", on_unsupported=on_unsupported, copy=copy)
    config = config_of(file) if config is None else config
    model_class = class_of(config, file)
    state = LazyState(file, dtype, copy)
    options = {} if attn_implementation is None else {"attn_implementation": attn_implementation}
    model, report = model_class.from_pretrained(
        None,
        config=config,
        state_dict=state,
        dtype=dtype,
        output_loading_info=True,
        quantization_config=quantization.attach(state),
        **options,
    )
    check_complete(report, file)
    if GENERATION in file.assets:
        model.generation_config = GenerationConfig.from_dict(json.loads(bytes(file.assets[GENERATION].raw)))
    return model if where.type == CPU else model.to(where)


def config_of(path: Any) -> Any:
    """Return the config of a model, without its quantization.

    Parameters
    ----------
    path
        A file or folder of any format, or an open `File`.

    Returns
    -------
    PreTrainedConfig
        Of the class that transformers has for its `model_type`.

    Raises
    ------
    FormatError
        There is no config, or transformers lacks its model type.
    """
    file = named_file(path)
    if CONFIG not in file.assets:
        raise FormatError(
            "has no config",
            file=file.name,
            part=CONFIG,
            code=ErrorCode.CONFIG,
            hint="Put config.json beside it, or pass config=.",
        )
    settings = json.loads(bytes(file.assets[CONFIG].raw))
    settings.pop(QUANTIZATION, None)
    kind = settings.get("model_type")
    if kind not in CONFIG_MAPPING:
        raise FormatError(
            "transformers does not support this model type",
            file=file.name,
            part=CONFIG,
            code=ErrorCode.CONFIG,
            found=kind,
        )
    return CONFIG_MAPPING[kind].from_dict(settings)


def tokenizer_of(path: Any) -> Any:
    """Return the tokenizer of a model.

    Parameters
    ----------
    path
        A file or folder of any format, or an open `File`.

    Returns
    -------
    PreTrainedTokenizerBase
        As transformers makes it from the model's files.

    Raises
    ------
    FormatError
        There is no tokenizer.
    """
    file = named_file(path)
    if not any(name in file.assets for name in VOCABULARIES):
        raise FormatError(
            "has no tokenizer",
            file=file.name,
            part="tokenizer.json",
            code="tokenizer",
            hint="Put tokenizer.json beside it.",
        )
    with tempfile.TemporaryDirectory() as folder:
        for name in TOKENIZER_FILES:
            if name in file.assets:
                Path(folder, name).write_bytes(file.assets[name].raw)
        return transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)


def named_file(path: Any) -> File:
    """Open a file under transformers' names."""
    return with_names(path if isinstance(path, File) else open_file(path))


def class_of(config: Any, file: File) -> Any:
    """Return the class of the model: the config's first architecture, or the causal one of its type."""
    for name in getattr(config, "architectures", None) or ():
        if hasattr(transformers, name):
            return getattr(transformers, name)
    if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING:
        return MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    raise FormatError(
        "transformers has no causal model for its config",
        file=file.name,
        part=CONFIG,
        code=ErrorCode.CONFIG,
        found=config.model_type,
    )


def check_complete(report: Any, file: File) -> None:
    """Raise TensorError for a tensor of the model that is missing or has another shape."""
    for name in sorted(map(str, report["missing_keys"])):
        raise TensorError("a tensor of the model is missing", file=file.name, tensor=name, code="missing-tensor")
    for name, found, expected in sorted(report["mismatched_keys"], key=str):
        raise TensorError(
            "a tensor has another shape than the model's",
            file=file.name,
            tensor=str(name),
            code="shape",
            expected=str(list(expected)),
            found=str(list(found)),
        )
