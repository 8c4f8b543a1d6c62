"""The model `squish` of lm-eval: importing this module registers it.

import squish_torch.lm_eval
lm_eval.simple_evaluate(model="squish", model_args="pretrained=model.gguf", tasks=["arc_easy"])
"""

from __future__ import annotations

from collections import Counter
from hashlib import sha256
from typing import Any

from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM

from squish_core.api import File

from .generation import chains_of
from .pretrained import from_pretrained, named_file, tokenizer_of

STEP = 1 << 22
"""Bytes to hash at a time."""


@register_model("squish")
class SquishLM(HFLM):
    """A model of any format, under lm-eval.

    Parameters
    ----------
    pretrained
        A file or folder of any format.
    backend
        Backend id for the weights; the best for each tensor by default.
    batch_size, max_batch_size, device, options
        As in lm-eval's `hf`. The default device is the CPU.

    Raises
    ------
    SquishError
        As of `from_pretrained` and `tokenizer_of`.
    """

    def __init__(
        self,
        pretrained: Any,
        backend: str | None = None,
        batch_size: int | str | None = 1,
        max_batch_size: int | None = None,
        device: str | None = None,
        **options: Any,
    ) -> None:
        self.file = named_file(pretrained)
        model = from_pretrained(self.file, backend=backend, device=device or "cpu")
        super().__init__(
            pretrained=model,
            tokenizer=tokenizer_of(self.file),
            batch_size=batch_size or 1,
            max_batch_size=max_batch_size or 64,
            **options,
        )

    def get_model_info(self) -> dict[str, Any]:
        """Describe the model: digests of its files, codecs and chains; nothing is looked up online."""
        return {
            "model_num_parameters": sum(tensor.spec.elements for tensor in self.file.values()),
            "model_dtype": str(self._model.dtype),
            "squish": description_of(self.file),
        }


def description_of(file: File) -> dict[str, Any]:
    """Return the digests of a model's files, its codecs and its chains, as plain data."""
    tensors, stored = Counter[str](), Counter[str]()
    for tensor in file.values():
        codec = str(tensor.bound.encoding.codec)
        tensors[codec] += 1
        stored[codec] += tensor.bound.encoding.stored
    return {
        "files": [{"name": ref.name, "sha256": _digest(file, number)} for number, ref in enumerate(file.index.files)],
        "codecs": [{"codec": codec, "tensors": count, "bytes": stored[codec]} for codec, count in tensors.items()],
        "chains": [{"tensors": count, **chain.to_dict()} for count, chain in chains_of(file)],
    }


def _digest(file: File, number: int) -> str:
    """Return the SHA-256 of one file of a model."""
    source, digest = file.source_for(number), sha256()
    for start in range(0, source.size, STEP):
        digest.update(source.read(start, min(STEP, source.size - start)))
    return digest.hexdigest()
