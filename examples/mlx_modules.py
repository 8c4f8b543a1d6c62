"""Fill an mlx-lm style tree of modules from a file of any format, without unpacking its weights.

    python examples/mlx_modules.py [FILE]

Without a FILE a small model is written first, as zTensor with INT4 weights. Needs squish-metal (on Linux its extra
`cpu`); the names of a file's tensors must be those of the modules.
"""

import sys
import tempfile
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from squish_metal.modules import fill

import squish_core as squish

WIDTH, HIDDEN, WORDS = 256, 512, 64


class Block(nn.Module):
    """What mlx-lm calls an MLP, with the norm before it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH)
        self.gate_proj = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.up_proj = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down_proj = nn.Linear(HIDDEN, WIDTH, bias=False)

    def __call__(self, x: mx.array) -> mx.array:
        y = self.norm(x)
        return x + self.down_proj(nn.silu(self.gate_proj(y)) * self.up_proj(y))


class Model(nn.Module):
    """An embedding, two blocks, and logits by the embedding's transpose."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(WORDS, WIDTH)
        self.layers = [Block() for _ in range(2)]

    def __call__(self, ids: mx.array) -> mx.array:
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x)
        return self.embed_tokens.as_linear(x)


def write_model(folder: Path) -> Path:
    """A file with random weights under the names of the modules."""
    from mlx.utils import tree_flatten

    unconverted = folder / "plain.safetensors"
    mx.random.seed(0)
    mx.save_safetensors(str(unconverted), dict(tree_flatten(Model().parameters())), {"format": "mlx"})
    squish.convert(unconverted, folder / "model.zt", encode="int4")
    return folder / "model.zt"


def main(path: str | None = None) -> None:
    """Print what became of each layer, and how far the result is from that of the decoded weights."""
    with tempfile.TemporaryDirectory() as folder, squish.open(path or write_model(Path(folder))) as file:
        model, ids = Model(), mx.arange(8)
        names = fill(model, file)
        reference = Model()
        reference.load_weights([(name, mx.array(file[name].numpy().astype(np.float32))) for name in names])
        for name, module in model.named_modules():
            if isinstance(module, (nn.QuantizedLinear, nn.QuantizedEmbedding)):
                print(f"{name}: {type(module).__name__}, {module.bits} bits in groups of {module.group_size}")
        difference = mx.abs(model(ids) - reference(ids)).max() / mx.abs(reference(ids)).max()
        print(f"{len(names)} tensors; largest difference {float(difference):.1e} of the largest logit")


if __name__ == "__main__":
    main(*sys.argv[1:2])
