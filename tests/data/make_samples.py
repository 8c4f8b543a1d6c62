"""Make the small files beside this script, each with the format's own software (`make env` first).

PYTHONPATH=tests python tests/data/make_samples.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import oracles

HERE = Path(__file__).parent


def write_safetensors(path: str) -> None:
    """Runs in the peer: safetensors 0.8.0."""
    from safetensors.numpy import save_file

    rng = np.random.default_rng(0)
    arrays = {"norm": np.ones(8, np.float32), "weight": rng.standard_normal((4, 8)).astype(np.float16)}
    save_file(arrays, path, {"made": "by safetensors"})


def write_gguf(path: str) -> None:
    """Runs in the peer: gguf 0.19.0."""
    import gguf

    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_array("tokenizer.ggml.tokens", ["a", "b", "c"])
    writer.add_tensor("blk.0.attn_norm.weight", np.ones(64, np.float32))
    writer.add_tensor("blk.0.ffn_up.weight", rng.standard_normal((4, 64)).astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_ztensor(path: str) -> None:
    """Runs in the peer: ztensor 1.1.1."""
    from ztensor.numpy import save_file

    rng = np.random.default_rng(0)
    save_file({"norm": np.ones(8, np.float32), "weight": rng.standard_normal((4, 8)).astype(np.float16)}, path)


if __name__ == "__main__":
    oracles.peer("safetensors").run(write_safetensors, path=str(HERE / "sample.safetensors"))
    oracles.peer("gguf").run(write_gguf, path=str(HERE / "sample.gguf"))
    oracles.peer("ztensor-1.1.1").run(write_ztensor, path=str(HERE / "sample.zt"))
