"""One whole message for each class of error, and for each plugin: what a user reads.

Other tests compare fields, so a message is reworded here and in few other places.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import squish_core as squish
from squish_core import api
from squish_core.limits import Limits

DATA = Path(__file__).parents[1] / "data"
ONES = np.ones((2, 64), np.float32)


def opened(name: str = "sample.gguf", **options: Any) -> squish.File:
    return squish.open(name, **options)


def written(name: str, data: bytes) -> str:
    Path(name).parent.mkdir(exist_ok=True, parents=True)
    Path(name).write_bytes(data)
    return name


def cut(name: str, size: int) -> str:
    return written(f"cut{Path(name).suffix}", Path(name).read_bytes()[:size])


def changed(name: str, offset: int, data: bytes) -> str:
    """A copy with other bytes at an offset."""
    old = Path(name).read_bytes()
    offset %= len(old)
    return written(f"changed{Path(name).suffix}", old[:offset] + data + old[offset + len(data) :])


def folder(config: dict[str, Any], *roles: str) -> str:
    """A checkpoint with one layer."""
    written("m/config.json", json.dumps(config).encode())
    squish.save("m/model.safetensors", {f"layer.{role}": ONES for role in roles})
    return "m"


def closed() -> None:
    file = opened()
    file.close()
    file.numpy()


twin = SimpleNamespace(
    squish_containers=api.hookimpl(
        lambda: [api.ContainerInfo(id="twin", title="twin", factory="x:X", signatures=(api.Signature(b"GGUF"),))],
        specname="squish_containers",
    )
)
"""A plugin whose format begins as GGUF does."""


MESSAGES: dict[str, tuple[Callable[[], Any], type[squish.SquishError], str]] = {
    "core, an argument": (
        lambda: opened(limits=3),
        squish.UsageError,
        "limits must be a Limits (expected Limits(...), found 3)",
    ),
    "core, a file that is missing": (
        lambda: opened("absent.gguf"),
        squish.MissingFileError,
        "absent.gguf: no such file or folder. Check the name.",
    ),
    "core, a file that cannot be read": (
        lambda: opened("loop"),
        squish.FileAccessError,
        "loop: cannot be opened: Too many levels of symbolic links",
    ),
    "core, a target": (
        lambda: squish.save("sample.zt/x.gguf", {"w": ONES}),
        squish.WriteError,
        "sample.zt: is not a folder. Name a file in a folder.",
    ),
    "core, a file of another kind": (
        lambda: opened(written("page.gguf", b"<!DOCTYPE html><html>")),
        squish.UnknownFormatError,
        "page.gguf: is an HTML page, not weights. The download was redirected; fetch the file again.",
    ),
    "core, a file of no kind": (
        lambda: opened(written("data.bin", bytes(range(64)))),
        squish.UnknownFormatError,
        (
            "data.bin: is not in any installed format (found first bytes "
            "b'\\x00\\x01\\x02\\x03\\x04\\x05\\x06\\x07'). Installed formats: ...; `squish formats` describes"
            " them."
        ),
    ),
    "core, a limit": (
        lambda: opened(limits=Limits(tensors=1)),
        squish.LimitError,
        (
            "sample.gguf: tensor_count has too many tensors (at byte 24, expected at most 1, found "
            "2). If you trust the file, set SQUISH_LIMITS=tensors=... or pass "
            "limits=Limits(tensors=...)."
        ),
    ),
    "core, an index": (
        lambda: opened()["blk.0.attn_norm.weight"][64],
        squish.RangeError,
        "sample.gguf: blk.0.attn_norm.weight: an index is out of range (expected -64..63, found 64)",
    ),
    "core, a whole model": (
        lambda: opened().load(),
        squish.TensorError,
        "sample.gguf: has no encoding of the whole model. Load its tensors: file[name].load().",
    ),
    "core, a codec": (
        lambda: squish.save("x.gguf", {"w": ONES}, encode="f32:x=1"),
        squish.UsageError,
        "f32 takes no parameters (found x)",
    ),
    "core, a closed file": (closed, squish.ClosedError, "sample.gguf: the file is closed. Open it again."),
    "core, a package": (
        lambda: opened(registry=squish.Registry("-squish-torch")).to_torch(),
        squish.MissingPluginError,
        "the framework 'torch' is not installed. Run `pip install ...`.",
    ),
    "core, a format that is absent": (
        lambda: opened(registry=squish.Registry("-squish-gguf")),
        squish.UnknownFormatError,
        "sample.gguf: looks like gguf, whose plugin is not installed. Run `pip install ...`.",
    ),
    "core, settings": (
        lambda: squish.Registry("nonsense"),
        squish.ConflictError,
        (
            "invalid plugin settings (found 'nonsense'). SQUISH_PLUGINS takes +name (only these), "
            "-name (not this) and id=distribution, with commas."
        ),
    ),
    "core, a refinement": (
        lambda: opened("sample.safetensors", format="mlx"),
        squish.FormatError,
        "sample.safetensors: does not declare itself as mlx",
    ),
    "core, two formats": (
        lambda: opened(written("m", Path("sample.gguf").read_bytes()), registry=squish.Registry(extra=[twin])),
        squish.AmbiguousFormatError,
        "m: several formats match (expected one format, found gguf, twin). Choose one with format=...",
    ),
    "astc": (
        lambda: squish.save("x.squizd", {"w": ONES}, encode="astc:x=1"),
        squish.UsageError,
        "invalid astc parameters (expected footprint, and quality one of fastest, fast, medium, thorough, found x=1)",
    ),
    "ane": (
        lambda: opened(written("m.mlpackage/Manifest.json", b"{}").rpartition("/")[0]),
        squish.FormatError,
        "m.mlpackage/Manifest.json: the manifest does not name the model (found KeyError: 'itemInfoEntries')",
    ),
    "codecs": (
        lambda: squish.save("x.zt", {"w": ONES}, encode="affine:bits=9"),
        squish.UsageError,
        (
            "invalid bits (expected an integer from 1 to 8, found 9). "
            f"{api.site_page('reference/codecs')} describes the parameters."
        ),
    ),
    "cpu": (
        lambda: opened()["blk.0.ffn_up.weight"].load("cpu:x=1"),
        squish.SquishError,
        "invalid cpu option (expected threads=NUMBER, activations=f32, bf16 or int8, repack=none or rows, found x=1)",
    ),
    "ggml": (
        lambda: squish.save("x.gguf", {"w": np.ones((2, 33), "f4")}, encode="q8_0"),
        squish.TensorError,
        (
            "<arrays>: no tensor can be encoded as ggml.q8_0: rows do not divide into Q8_0 blocks "
            "(found 1 of 1 tensor with this reason). Leave the rule out to keep all codes, or ask "
            "for another encoding; see `squish codecs`."
        ),
    ),
    "gguf, truncated": (
        lambda: opened(cut("sample.gguf", 100)),
        squish.TruncatedError,
        (
            "cut.gguf: truncated in metadata 'llama.block_count': the file has 100 of 102 bytes (at "
            "byte 98). The file is truncated (an interrupted download?) or damaged; fetch it again."
        ),
    ),
    "gguf, a version": (
        lambda: opened(changed("sample.gguf", 4, b"\x09")),
        squish.UnsupportedVersionError,
        (
            "changed.gguf: unsupported GGUF version 9 (at byte 4, expected version 2 or 3, found 9). "
            "A newer squish-gguf may read it."
        ),
    ),
    "hf": (
        lambda: opened(folder({"quantization_config": {"quant_method": "gptq", "bits": "x"}}, "qweight"))[
            "layer.weight"
        ].numpy(),
        squish.TensorError,
        (
            "m: layer.weight: config.json: invalid quantization setting bits (expected an integer, "
            "found 'x'). parts() returns its stored bytes."
        ),
    ),
    "mlx": (
        lambda: opened(folder({"quantization": {"bits": "x", "group_size": 64}}, "weight", "scales"))[
            "layer.weight"
        ].numpy(),
        squish.TensorError,
        (
            "m: layer.weight: config.json: invalid quantization setting bits (expected 1 or 2 or 3 or"
            " 4 or 5 or 6 or 8 for affine, found 'x'). parts() returns its stored bytes."
        ),
    ),
    "models": (
        lambda: squish.convert(folder({"model_type": "llama"}, "weight"), "x.gguf", rename="gguf"),
        squish.FormatError,
        "m: config.json: has no max_position_embeddings, and the model cannot be run without it",
    ),
    "metal": (
        lambda: opened()["blk.0.ffn_up.weight"].load("metal:x=1"),
        squish.UsageError,
        "backend 'metal' takes no options (found x)",
    ),
    "npydir": (
        lambda: opened(written("m/tensors/a__pt.npy", b"").partition("/")[0], format="npydir"),
        squish.FormatError,
        (
            "m/manifest.json: missing, so the npy directory is incomplete. The conversion of the "
            "model was not finished; convert it again."
        ),
    ),
    "onnx": (
        lambda: opened(cut("sample.onnx", 100)),
        squish.FormatError,
        (
            "cut.onnx: corrupt protobuf message: field exceeds its message (at byte 2, expected at "
            "most 95 bytes, found 132)"
        ),
    ),
    "remote": (
        lambda: opened("htp://example.org/m.gguf"),
        squish.UsageError,
        (
            "no source opens addresses of this scheme (expected https, s3, gs, az, hf, or a scheme of "
            "fsspec, such as sftp, found htp://example.org/m.gguf). Check the scheme."
        ),
    ),
    "safetensors": (
        lambda: opened(changed("sample.safetensors", 0, b"\xff" * 8)),
        squish.LimitError,
        (
            "changed.safetensors: not a safetensors file: the header length is out of range (at byte "
            "0, expected 1..100000000 bytes, found 18446744073709551615 bytes). If it should be one, "
            "it is damaged; download it again."
        ),
    ),
    "squizd": (
        lambda: opened(changed("sample.squizd", 4, b"\xff" * 2)),
        squish.UnsupportedVersionError,
        "changed.squizd: version: unsupported version of SQUIZD [P1] (at byte 4, expected 1, found 65535)",
    ),
    "uqff": (
        lambda: opened(cut("sample.uqff", 200)),
        squish.TruncatedError,
        (
            "cut.uqff: truncated: the file ends within the header (at byte 8, expected at least 1376 "
            "bytes, found 200 bytes). Download the file again."
        ),
    ),
    "zstd": (
        lambda: opened(written("m.gguf.zst", b"\x28\xb5\x2f\xfd" + bytes(8))),
        squish.CodecError,
        "m.gguf.zst: truncated zstd data (at byte 12, expected at least 15 bytes, found 12 bytes)",
    ),
    "ztensor": (
        lambda: opened(cut("sample.zt", 200)),
        squish.TruncatedError,
        (
            "cut.zt: no footer magic: a truncated v1.1 or v1.2 file, or a damaged v1.0 file (at byte "
            "192, expected b'ZTEN1000', found b'\\xa2gversio'). Download the file again."
        ),
    ),
}


@pytest.mark.parametrize("case", MESSAGES)
def test_the_message_is_as_a_user_reads_it(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for sample in DATA.glob("sample.*"):
        if sample.is_file():
            shutil.copy(sample, tmp_path)
    monkeypatch.chdir(tmp_path)
    Path("loop").symlink_to("loop")
    if case == "cpu":
        pytest.importorskip("squish_cpu", reason="the compiled plugin is not installed")
    action, kind, text = MESSAGES[case]
    with pytest.raises(kind) as caught:
        action()
    assert type(caught.value) is kind
    pattern = ".*".join(map(re.escape, text.split("...")))  # what depends on the installation
    assert re.fullmatch(pattern, str(caught.value)), f"\n{caught.value}\n{text}"
