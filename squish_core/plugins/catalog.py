"""Known packages and file types: the package to install for an id, and what an unrecognized file may be."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from squish_core.codes import ErrorCode
from squish_core.model import Refusal

# kind -> id or prefix of ids -> package of this repository
PACKAGES: dict[str, dict[str, str]] = {
    "container": {
        "gguf": "squish-gguf", "safetensors": "squish-safetensors", "ztensor": "squish-ztensor",
        "squizd": "squish-squizd", "uqff": "squish-uqff", "npydir": "squish-npydir",
        "mlx": "squish-mlx", "hf": "squish-hf", "mlpackage": "squish-ane", "onnx": "squish-onnx",
    },
    "codec": {
        "affine": "squish-codecs", "palette": "squish-codecs", "bitmask": "squish-codecs",
        "masked": "squish-codecs", "lowrank": "squish-codecs", "awq": "squish-codecs",
        "float8": "squish-codecs", "mx": "squish-codecs", "panels": "squish-codecs",
        "boxes": "squish-codecs", "reshaped": "squish-codecs", "squizd": "squish-codecs", "tca_tbe": "squish-codecs",
        "ggml": "squish-ggml", "zstd": "squish-zstd", "astc": "squish-astc",
        "zt": "squish-ztensor", "uqff": "squish-uqff", "hqq": "squish-codecs",
        "npydir": "squish-npydir", "ane": "squish-ane", "hf": "squish-hf",
    },
    "allocator": {
        "mixed": "squish-codecs", "llama-quantize": "squish-gguf",
        **dict.fromkeys(
            ("q2_k_s", "q3_k_s", "q3_k_m", "q3_k_l", "q4_k_s", "q4_k_m", "q5_k_s", "q5_k_m"), "squish-gguf"
        ),
    },
    "backend": {"cpu": "squish-cpu", "metal": "squish-metal", "ane": "squish-ane"},
    "source": dict.fromkeys(("http", "https", "s3", "gs", "az", "hf", "fsspec"), "squish-remote"),
    "scheduler": {"dask": "squish-dask"},
    "framework": {"torch": "squish-torch"},
    "family": dict.fromkeys(
        (
            "llama", "mixtral", "qwen2", "qwen2vl", "qwen3", "qwen3moe", "gemma2", "gemma3", "phi3", "granite", "olmo2",
            "glm4", "starcoder2", "deepseek2", "gpt2", "gpt-oss", "lfm2",
        ),
        "squish-models",
    ),
}  # fmt: skip

# command -> package of this repository
COMMANDS = {
    "cache build": "squish-npydir", "check-model": "squish-models", "edit": "squish-ztensor",
    **dict.fromkeys(("serve", "refs"), "squish-remote"),
    **dict.fromkeys(("run", "eval", "tune", "activations"), "squish-torch"),
}  # fmt: skip

DISTRIBUTIONS = frozenset(
    {"squish-core", *COMMANDS.values(), *(package for table in PACKAGES.values() for package in table.values())}
)
"""The distributions of this repository."""

# short name for `--encode` -> codec id, if the plugin is not installed
SHORT_NAMES = {
    **dict.fromkeys(("int8", "int4", "int3", "int2"), "affine"), "nf4": "palette",
    **dict.fromkeys(("mxfp4", "mxfp8", "nvfp4"), "mx"),
    **{name: f"ggml.{name}" for name in ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q1_0", "q2_0", "tq1_0", "tq2_0")},
    **{f"q{bits}_k": f"ggml.q{bits}_k" for bits in (2, 3, 4, 5, 6)},
    **{f"iq{kind}": f"ggml.iq{kind}" for kind in ("1_s", "1_m", "2_xxs", "2_xs", "2_s")},
    **{f"iq{kind}": f"ggml.iq{kind}" for kind in ("3_xxs", "3_s", "4_nl", "4_xs")},
    **{f"q{bits}k": f"ggml.q{bits}_k" for bits in (2, 3, 4, 5, 6, 8)},
    **{f"afq{bits}": "affine" for bits in (2, 3, 4, 6, 8)}, **{f"hqq{bits}": "hqq" for bits in (1, 2, 3, 4, 8)},
    **{f"lut{bits}": "palette" for bits in (1, 2, 3, 4, 6, 8)},
    **dict.fromkeys(("fp8", "fp8_row", "fp8_block"), "float8"),
}  # fmt: skip

# (offset, bytes, format id), if the plugin is not installed
SIGNATURES: tuple[tuple[int, bytes, str], ...] = (
    (0, b"GGUF", "gguf"), (0, b"SQZD", "squizd"), (0, b"ZTEN", "ztensor"), (0, b"\x89ZT2\r\n\x1a\n", "ztensor"),
    (8, b'{"', "safetensors"), (8, b"{}", "safetensors"),
)  # fmt: skip

# end of a file name in a folder -> format id, if the plugin is not installed
MEMBERS = {
    ".safetensors": "safetensors", ".uqff": "uqff", "model.onnx": "onnx", "Manifest.json": "mlpackage",
    "manifest.json": "npydir", ".squish_ready": "npydir", ".squish_4bit_ready": "npydir",
}  # fmt: skip

# files by which a folder is recognized where nothing lists it
STANDING = ("model.safetensors.index.json", "model.safetensors", "manifest.json", "Manifest.json", "config.json")

# suffix -> format id, if the plugin is not installed
SUFFIXES = {
    ".gguf": "gguf",
    ".safetensors": "safetensors",
    ".safetensors.index.json": "safetensors",
    ".zt": "ztensor",
    ".squizd": "squizd",
    ".uqff": "uqff",
    ".onnx": "onnx",
    ".mlpackage": "mlpackage",
}

# suffix of a compressed file -> byte codec, if the plugin is not installed
BYTE_SUFFIXES = {".zst": "zstd"}

# refinement -> base format, place of its declaration ("meta" or the name of an asset), and keys
DECLARATIONS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "uqff": ("safetensors", "meta", ("uqff.version",)),
    "hf": ("safetensors", "config.json", ("quantization_config", "quant_method")),
    "mlx": ("safetensors", "config.json", ("quantization",)),
}

# first bytes -> actual type of the file, and the next step
LOOKALIKES: tuple[tuple[bytes, str, str], ...] = (
    (b"version https://git-lfs", "a git-lfs pointer, not the weights", "Run `git lfs pull` to fetch the file."),
    (b"<!doctype html", "an HTML page, not weights", "The download was redirected; fetch the file again."),
    (b"<html", "an HTML page, not weights", "The download was redirected; fetch the file again."),
    (b"FUGG", "a GGUF file with swapped magic", "Write it again with a current converter."),
    (b"GGML", "an old GGML file (before GGUF)", "Convert it to GGUF with llama.cpp first."),
    (b"ggjt", "an old GGML file (before GGUF)", "Convert it to GGUF with llama.cpp first."),
    (b"PK\x03\x04", "a zip archive (a PyTorch checkpoint or .npz)",
     "Squish never unpickles; convert it to safetensors first."),
    *((bytes((0x80, protocol)), "a Python pickle", "Squish never unpickles; convert it to safetensors first.")
      for protocol in range(2, 6)),
    (b"\x93NUMPY", "a single NumPy array", "Open it with numpy.load(path, allow_pickle=False)."),
    *((magic, "a zstd-compressed file", "Install squish-zstd to open it, or decompress it (`zstd -d`).")
      for magic in (b"\x28\xb5\x2f\xfd", b"\x50\x2a\x4d\x18\4\0\0\0")),
    (b"\x1f\x8b", "a gzip-compressed file", "Decompress it first (`gunzip`)."),
    (b"\x89HDF", "an HDF5 file", "Convert it to safetensors first."),
    (b"\x7fELF", "a program", "Check the path."),
    (bytes(16), "a file that begins with zeros (an interrupted download?)", "Fetch the file again."),
)  # fmt: skip


REFERENCES = re.compile(rb'"refs"\s*:\s*\{')
"""In the first bytes of a reference manifest (kerchunk JSON, version 1)."""


def package_for(kind: str, name: str) -> str | None:
    """The package of this repository that provides an id; `ggml.q4_k` is listed under its prefix `ggml`."""
    table = PACKAGES.get(kind, {})
    return table.get(name) or table.get(name.split(".")[0])


def install_command(*packages: str, extra: str = "") -> str:
    """Return the command that installs packages of this repository, from the checkout of squish-core if there is one.

    Parameters
    ----------
    *packages
        Names of distributions. From a checkout, the command also lists the plugins that they require, since pip does
        not search a checkout.
    extra
        Extra of the last package (`[fsspec]`).

    Returns
    -------
    str
        Quoted for a shell.

    Examples
    --------
    >>> install_command("squish-gguf", "squish-remote", extra="[fsspec]")
    "pip install ... ...squish-remote[fsspec]..."
    """
    import shlex

    folders = plugin_folders()
    names = [
        name
        for package in packages
        for name in (*(_missing_dependencies(package) if package in folders else ()), package)
    ]
    targets = [_path(folders[name]) if name in folders else name for name in dict.fromkeys(names)]
    targets[-1] += extra
    return f"pip install {' '.join(map(shlex.quote, targets))}"


@cache
def checkout() -> Path | None:
    """The checkout of this repository that squish-core was installed from, if it still exists."""
    import json
    from importlib.metadata import PackageNotFoundError, distribution
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    try:
        origin = distribution("squish-core").read_text("direct_url.json")
    except PackageNotFoundError:
        origin = None
    url = urlsplit(json.loads(origin).get("url", "")) if origin else None
    root = Path(__file__).resolve().parent.parent
    if url is not None and url.scheme == "file":
        root = Path(url2pathname(url.path))
    return root if (root / "squish_core").is_dir() and (root / "plugins").is_dir() else None


def plugin_folders() -> dict[str, Path]:
    """Package -> folder in the checkout; empty if squish-core came from a package index."""
    root = checkout()
    files = sorted(root.glob("plugins/*/pyproject.toml")) if root else []
    return {str(_project(file)["name"]): file.parent for file in files}


@cache
def _project(file: Path) -> dict[str, Any]:
    import tomllib

    project: dict[str, Any] = tomllib.loads(file.read_text("utf-8"))["project"]
    return project


def _missing_dependencies(package: str) -> list[str]:
    """Plugins that a package of the checkout requires and that are not installed, dependencies first."""
    from importlib.metadata import PackageNotFoundError, version

    folders, packages = plugin_folders(), list[str]()
    for requirement in _project(folders[package] / "pyproject.toml").get("dependencies", ()):
        name = re.split(r"[^\w-]", requirement)[0]
        if name in folders:
            try:
                version(name)
            except PackageNotFoundError:
                packages += [*_missing_dependencies(name), name]
    return packages


def _path(folder: Path) -> str:
    """A folder for a shell command: relative if it is below the current one."""
    here = Path.cwd()
    return f"./{folder.relative_to(here).as_posix()}" if folder.is_relative_to(here) else str(folder)


def absent(kind: str, name: str) -> Refusal:
    """The refusal for an id that no installed plugin provides."""
    package, noun = package_for(kind, name), {"container": "format"}.get(kind, kind)
    why = f"the {noun} {name!r} is not installed"
    if package is None:
        why = f"there is no {noun} {name!r} here, and no known package provides it"
    return Refusal(why=why, code=ErrorCode.NOT_INSTALLED, install=install_command(package) if package else None)


def lookalike(head: bytes, *, text: bool = False) -> tuple[str, str] | None:
    """Return what a file is that is commonly mistaken for weights.

    Parameters
    ----------
    head
        Its first bytes.
    text
        Also report JSON and plain text, for a format that is neither.

    Returns
    -------
    tuple of str or None
        The type of the file, and the next step.

    Examples
    --------
    >>> lookalike(b"<!DOCTYPE html><html>")
    ('an HTML page, not weights', 'The download was redirected; fetch the file again.')
    """
    start = head.lstrip()[:64].lower()
    for magic, what, hint in LOOKALIKES:
        if head.startswith(magic) or (magic.isascii() and magic.startswith(b"<") and start.startswith(magic)):
            return what, hint
    if text and start.startswith(b"{") and REFERENCES.search(head):
        return (
            "a reference manifest, not weights: it may name any address, and is not opened",
            "Open the files that it was made from; zarr reads the manifest.",
        )
    if text and start.startswith(b"{") and start[1:].lstrip().startswith(b'"'):
        return "JSON, not weights", "Name the file with the weights, or the folder that contains both."
    line = head[:80].split(b"\n")[0].rstrip()
    if text and line and line.isascii() and line.decode().isprintable():
        return f"text, not weights: {line.decode()!r}", "Read it: it may be a server's error message."
    return None


def absent_format(head: bytes, members: tuple[str, ...] = ()) -> str | None:
    """Id of the known format that the first bytes or the names in a folder indicate."""
    for end, format_id in MEMBERS.items():
        if any(name.endswith(end) for name in members):
            return format_id
    for offset, magic, format_id in SIGNATURES:
        if head[offset : offset + len(magic)] == magic:
            return format_id
    return None
