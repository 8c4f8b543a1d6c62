"""GGUFs of the layers behind the last one have the names, values and keys of llama.cpp's converter (`--mtp`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from layers_behind import MODELS, write
from oracles import converter, peer

import squish_core as squish

pytestmark = pytest.mark.oracle
EXPORTED = tuple(name for name in MODELS if name != "DeepSeek-V3")
"""The converter leaves these layers of DeepSeek 3 out."""
OURS = (
    "rope.dimension_count", "attention.key_length", "attention.value_length", "rope.freq_base", "expert_gating_func",
    "vocab_size", "feed_forward_length",
)  # fmt: skip
"""Keys that the converter leaves out, since llama.cpp takes the same values without them (docs/models.md)."""

THEIRS = ("expert_group_count", "expert_group_used_count")
"""Keys of GLM 4.5 that only the converter writes: one group, which is the same as none."""


def run(root: str, source: str, target: str) -> None:
    """Runs in the peer."""
    import contextlib
    import io
    import logging
    import sys
    from pathlib import Path

    import torch

    sys.path[:0] = [root, f"{root}/gguf-py"]
    from conversion import ModelBase, get_model_architecture, get_model_class  # type: ignore[import-not-found]
    from conversion.base import ModelType, gguf  # type: ignore[import-not-found]

    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    with torch.inference_mode(), contextlib.redirect_stderr(io.StringIO()):
        settings = ModelBase.load_hparams(Path(source), False)
        kind = get_model_class(get_model_architecture(settings, ModelType.TEXT))
        assert kind.supports_mtp_export
        kind.mtp_only, kind.set_vocab = True, lambda self: None
        kind(Path(source), gguf.LlamaFileType.ALL_F32, Path(target)).write()
        kind.mtp_only = False


def keys_of(file: squish.File) -> dict[str, Any]:
    keys = {key: np.asarray(value).tolist() for key, value in file.metadata.items()}
    left_out = ("tokenizer.", "squish.", "general.name", "general.file_type")
    return {key: value for key, value in keys.items() if not key.startswith(left_out)}


@pytest.mark.parametrize("name", EXPORTED)
def test_layers_behind_the_last_one_are_those_of_the_converter(name: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "model", name)
    theirs = tmp_path / "theirs.gguf"
    peer("torch").run(run, root=str(converter.fetch()), source=str(folder), target=str(theirs), timeout=600)
    squish.convert(folder, tmp_path / "mtp.gguf", part="mtp", encode="f32")
    with squish.open(theirs) as one, squish.open(tmp_path / "mtp.gguf") as other:
        assert {*one} == {*other}
        for tensor in one:
            np.testing.assert_allclose(other[tensor].numpy(), one[tensor].numpy(), rtol=1e-6, err_msg=tensor)
        whole, own = keys_of(one), keys_of(other)
        expected = {key: own.get(key) if key.partition(".")[2] in THEIRS else value for key, value in whole.items()}
        assert {key: own.get(key) for key in whole} == expected
        assert {key.partition(".")[2] for key in own.keys() - whole.keys()} <= {*OURS}
