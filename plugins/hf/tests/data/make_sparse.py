"""Make the sparse-bitmask checkpoint: `python make_sparse.py DEST` with torch 2.13 and compressed-tensors 0.11.0, which
still has that compressor; adds its values to expected.json, as take.py does."""

import json
import sys
from pathlib import Path

import torch
from compressed_tensors.compressors.sparse_compressors.sparse_bitmask import BitmaskCompressor
from safetensors.torch import save_file
from take import digest

NAME = "compressed-tensors-legacy_sparse_bitmask"


def main(target):
    torch.manual_seed(0)
    dense = {}
    for name, shape, dtype in (("q_proj", (64, 72), torch.bfloat16), ("k_proj", (24, 72), torch.float8_e4m3fn)):
        values = torch.randn(shape) * (torch.rand(shape) < 0.4)
        values[3] = 0
        dense[f"model.layers.0.self_attn.{name}.weight"] = values.to(dtype)
    scale = torch.rand(24, 1) + 0.5
    compressor = BitmaskCompressor()
    stored = compressor.compress(dense)
    folder = target / NAME
    folder.mkdir()
    save_file(
        {**stored, "model.layers.0.self_attn.k_proj.weight_scale": scale, "lm_head.weight": torch.ones(4, 72)},
        folder / "model.safetensors",
    )
    sparsity = {"format": "sparse-bitmask", "global_sparsity": 0.6, "sparsity_structure": "unstructured"}
    declared = {
        "quant_method": "compressed-tensors", "version": "0.11.0", "format": "dense", "config_groups": {},
        "quantization_status": "compressed", "ignore": [], "sparsity_config": {**sparsity, "targets": ["Linear"]},
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps({"quantization_config": declared}, indent=1) + "\n")
    values = {"lm_head.weight": torch.ones(4, 72)}
    for name, weight in compressor.decompress_from_state_dict(stored):
        values[name] = weight.float() * (scale if "k_proj" in name else 1)
    expected = json.loads((target / "expected.json").read_text())
    expected[NAME] = {name: [list(tensor.shape), digest(tensor.numpy())] for name, tensor in values.items()}
    (target / "expected.json").write_text(json.dumps(dict(sorted(expected.items())), indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
