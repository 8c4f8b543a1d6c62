"""Files of every format and codec: the test data of plugins, and a small model in every format and encoding."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Collection, Iterator, Mapping
from itertools import product
from pathlib import Path

import numpy as np
from ml_dtypes import bfloat16

import squish_core as squish
from squish_core.file import File

ROOT = Path(__file__).resolve().parents[2]
ARCHIVES = ("plugins/npydir/tests/data/squish-9.34.15.tar.xz", "plugins/ane_backend/tests/data/packages.zip")
SUFFIXES = (".gguf", ".safetensors", ".zt", ".squizd", ".uqff", ".onnx")
WRITERS = {
    "gguf": "gguf", "hf": "hf", "mlpackage": "mlpackage", "mlpackage-ios16": "mlpackage:target=iOS16", "mlx": "mlx",
    "npydir": "npydir", "safetensors": "safetensors", "safetensors-shards": "safetensors:max_shard_size=8KiB",
    "squizd": "squizd", "uqff": "uqff", "uqff-0.1.3": "uqff:version=0.1.3", "ztensor": "ztensor",
    "ztensor-compatible": "ztensor:flavor=compatible,digest=sha256", "ztensor-zstd": "ztensor:encoding=zstd",
    "ztensor-2": "ztensor:wire=2", "ztensor-2-zstd": "ztensor:wire=2,flavor=aligned,encoding=zstd",
}  # fmt: skip
"""Every format that can be written, with the options that change how tensors are stored."""
ENCODINGS = (
    "f64", "f32", "f16", "bf16", "f8_e4m3", "int8", "int4", "int4:group_size=32", "int3", "int2:group_size=16", "q4_0",
    "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "tq1_0", "tq2_0", "q1_0", "q2_0", "mxfp4",
    "mxfp8", "nvfp4", "nf4", "palette:bits=3", "float8", "bitmask", "lowrank:rank=2(int4)", "squizd.int4:group_size=8",
    "squizd.int2", "tca_tbe", "hqq", "uqff.f8q8", "zt.sparse_coo", "zt.sparse_csr", "panels", "astc", "mixed",
)  # fmt: skip


def suffix(writer: str) -> str:
    """The suffix that a writer's target must have."""
    return ".mlpackage" if WRITERS[writer].startswith("mlpackage") else ""


NAMES = {
    "gguf": ("blk.0.attn_q.weight", "blk.0.ffn_down.weight", "blk.0.attn_norm.weight"),
    "hf": ("model.layers.0.self_attn.q_proj.weight", "model.layers.0.mlp.down_proj.weight", "model.norm.weight"),
}


def written_files(folder: Path) -> dict[str, Path]:
    """The files and folders in the plugins' test data, archives unpacked into `folder`; by a name that stays."""
    sources = {}
    for archive in ARCHIVES:
        unpacked = folder / Path(archive).name
        if not unpacked.exists():
            shutil.unpack_archive(ROOT / archive, unpacked)
        models = (path for path in unpacked.rglob("*") if path.suffix == ".mlpackage" or (path / "tensors").is_dir())
        sources |= {f"{unpacked.name}/{path.relative_to(unpacked)}": path for path in sorted(models)}
    for data in sorted([*ROOT.glob("plugins/*/tests/data"), ROOT / "tests/data"]):
        sources |= {str(path.relative_to(ROOT)): path for path in files_below(data)}
    return sources


def files_below(data: Path) -> list[Path]:
    """The weight files in a folder, and the folders in it that are one model."""
    return sorted({path if path.suffix in SUFFIXES else path.parent for path in _models(data)})


def _models(data: Path) -> Iterator[Path]:
    yield from data.rglob("config.json")
    yield from data.rglob("manifest.json")
    yield from (path for path in data.rglob("*") if path.suffix in SUFFIXES and not _in_checkpoint(path))


def _in_checkpoint(path: Path) -> bool:
    return path.suffix == ".safetensors" and (path.parent / "config.json").exists()


def base_models() -> dict[str, bytes]:
    """Small dense models under the names of two families, in three dtypes; some zeros, and rows of one value."""
    rng = np.random.default_rng(0)
    matrix, vector = rng.standard_normal((8, 256), np.float32), rng.standard_normal(64).astype(np.float32)
    narrow = rng.standard_normal((6, 64), np.float32)
    matrix[2], matrix[3, ::2], narrow[1] = 0, 0, 0.5
    models = {}
    for family, names in NAMES.items():
        for dtype in ("f32", "f16", "bf16"):
            arrays = [array.astype(_numpy(dtype)) for array in (matrix, narrow, vector)]
            models[f"{family}-{dtype}"] = _safetensors(dict(zip(names, arrays)), dtype.upper())
    return models


def _numpy(dtype: str) -> np.dtype:
    return np.dtype(bfloat16) if dtype == "bf16" else np.dtype(f"<{dtype[0]}{int(dtype[1:]) // 8}")


def _safetensors(arrays: Mapping[str, np.ndarray], tag: str) -> bytes:
    header, data = {}, b""
    for name, array in arrays.items():
        header[name] = {"dtype": tag, "shape": array.shape, "data_offsets": [len(data), len(data) + array.nbytes]}
        data += array.tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data


def generated_files(folder: Path, models: Collection[str] = ()) -> dict[str, Path]:
    """These base models (all by default) by every writer in every encoding it can hold: one file for each set of codecs
    that comes out.

    Made once for a folder, which lists them in `made.json`.
    """
    listing = folder / "made.json"
    if not listing.exists():
        folder.mkdir(parents=True, exist_ok=True)
        listing.write_text(json.dumps(_make(folder, models or base_models())))
    return {name: folder / name for name in json.loads(listing.read_text())}


def _make(folder: Path, models: Collection[str]) -> list[str]:
    kinds: dict[tuple[str, tuple[str, ...]], str] = {}
    sources = {family: squish.open(model) for family, model in base_models().items() if family in models}
    for (family, source), (writer, to), encoding in product(sources.items(), WRITERS.items(), (None, *ENCODINGS)):
        name = f"{writer}_{family}_{len(kinds)}{suffix(writer)}"
        target = folder / name
        try:
            squish.convert(source, target, to, encoding)
            with squish.open(target) as file:
                kind = (writer, codecs_of(file))
        except squish.SquishError:
            continue
        if kind not in kinds:
            kinds[kind] = name
        elif target.is_dir():
            shutil.rmtree(target)
        else:
            target.unlink()
    return list(kinds.values())


def cover(sources: Mapping[str, Path]) -> dict[str, Path]:
    """Of these files a few that have every format and codec among them: the smallest file for each pair."""
    smallest: dict[tuple[str, str], tuple[int, str]] = {}
    for name, path in sources.items():
        with squish.open(path) as file:
            for codec in codecs_of(file):
                pair, entry = (file.format, codec), (file.size, name)
                smallest[pair] = min(entry, smallest.get(pair, entry))
    return {name: sources[name] for _, name in sorted(set(smallest.values()))}


def codecs_of(file: File) -> tuple[str, ...]:
    """The ids of the codecs in a file."""
    return tuple(sorted({encoding.codec.id for spec in file.index.tensors.values() for encoding in spec.encodings}))


def readable(sources: Mapping[str, Path]) -> dict[str, Path]:
    """Those that open."""
    opened = {}
    for name, path in sources.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                squish.open(path).close()
            except squish.SquishError:
                continue
        opened[name] = path
    return opened
