"""Known packages and file types: the package to install for an id, and what an unrecognized file may be."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from squish_core.codes import ErrorCode
from squish_core.model import Refusal

RELEASED = False
"""Whether the packages are in the package index: until then, no text names one as installable from there."""
REPOSITORY = "https://github.com/squish-weights/squish"
TABLE = Path(__file__).with_name("catalog.json")
"""What the plugins of this repository declare. `python tests/lint/catalog.py` writes it."""
KINDS = ("container", "codec", "allocator", "backend", "source", "scheduler", "family")
"""Kinds of plugins with packages to install."""

RELEASED_TOGETHER = {
    "squish_convert": "squish-convert", "squish_cli": "squish-core-cli", "squish_testing": "squish-testing",
}  # fmt: skip
"""Import package -> distribution, of those that are not plugins but are released together with squish-core."""

HEADS: tuple[tuple[int, bytes, str], ...] = (
    (0, b"ZTEN", "ztensor"), (8, b'{"', "safetensors"), (8, b"{}", "safetensors"),
)  # fmt: skip
"""(offset, bytes, format) of formats whose declared signatures are too precise or too short for a hint."""

# files by which a folder is recognized if it cannot be listed
STANDING = ("model.safetensors.index.json", "model.safetensors", "manifest.json", "Manifest.json", "config.json")

# refinement, base format, place of its declaration ("meta" or the name of an asset), and keys (none: the whole file)
DECLARATIONS: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    ("uqff", "safetensors", "meta", ("uqff.version",)),
    *(("hf", "safetensors", "config.json", (*part, key, "quant_method"))
      for key in ("quantization_config", "compression_config") for part in ((), ("text_config",), ("llm_config",))),
    *(("hf", "safetensors", name, ())
      for name in ("quantize_config.json", "quant_config.json", "hf_quant_config.json")),
    ("hf", "safetensors", "meta", ("_quantization_metadata",)),
    ("mlx", "safetensors", "config.json", ("quantization",)),
)  # fmt: skip

# refinement -> base format, suffix of its files, and patterns of names: of one tensor, or of all
NAMES: dict[str, tuple[str, str, str, str]] = {
    "uqff": ("safetensors", ".uqff", r"uqff\.version\.major", r"0|[1-9]\d{0,8}"),
}

_TO_SAFETENSORS = (
    "Squish never unpickles; write safetensors with PyTorch: "
    "`safetensors.torch.save_file(torch.load(FILE, weights_only=True), 'model.safetensors')`."
)
_DECOMPRESS = "Decompress it first"
_OLD_GGML = (
    ("ggml", "an old GGML file (before GGUF: whisper.cpp, or llama.cpp of 2023)",
     "Squish reads GGUF; convert the model's original checkpoint with the converter of its software."),
    ("ggmf", "an old GGML file (ggmf, before GGUF)", "Convert it with llama.cpp's convert_llama_ggml_to_gguf.py."),
    ("ggjt", "an old GGML file (ggjt, before GGUF)", "Convert it with llama.cpp's convert_llama_ggml_to_gguf.py."),
    ("ggla", "an old GGML adapter (ggla, a LoRA from before GGUF)",
     "Convert the adapter's original PEFT folder with llama.cpp's convert_lora_to_gguf.py."),
    ("ggsn", "a session of llama.cpp, not weights", "Open the GGUF file of its model."),
    ("ggsq", "a saved sequence of llama.cpp, not weights", "Open the GGUF file of its model."),
)  # fmt: skip
"""Names of GGML's formats, which are stored as numbers: the bytes are in reverse on little-endian machines."""

# first bytes -> actual type of the file, and the next step
LOOKALIKES: tuple[tuple[bytes, str, str], ...] = (
    (b"version https://git-lfs", "a git-lfs pointer, not the weights", "Run `git lfs pull` to fetch the file."),
    (b"# xet version", "a Xet pointer, not the weights", "Fetch the file with `hf download`."),
    (b"<!doctype html", "an HTML page, not weights", "The download was redirected; fetch the file again."),
    (b"<html", "an HTML page, not weights", "The download was redirected; fetch the file again."),
    (b"<?xml", "an XML document, not weights", "Read it: it may be a server's error message."),
    (b"FUGG", "a GGUF file with swapped magic", "Write it again with a current converter."),
    *((magic, what, hint) for name, what, hint in _OLD_GGML for magic in (name.encode(), name[::-1].encode())),
    (b"MZqFpD", "a portable program, such as a llamafile", "If it is one, extract its model: `unzip FILE '*.gguf'`."),
    (b"PK\x03\x04", "a zip archive (a PyTorch checkpoint or .npz)", _TO_SAFETENSORS),
    *((bytes((0x80, protocol)), "a Python pickle", _TO_SAFETENSORS) for protocol in range(2, 6)),
    (b"\x93NUMPY", "a single NumPy array", "Open it with numpy.load(path, allow_pickle=False)."),
    *((magic, "a zstd-compressed file", "Install squish-zstd to open it, or decompress it (`zstd -d`).")
      for magic in (b"\x28\xb5\x2f\xfd", b"\x50\x2a\x4d\x18\4\0\0\0")),
    (b"\x1f\x8b", "a gzip-compressed file", f"{_DECOMPRESS} (`gunzip`)."),
    (b"\xfd7zXZ\0", "an xz-compressed file", f"{_DECOMPRESS} (`xz -d`)."),
    (b"BZh", "a bzip2-compressed file", f"{_DECOMPRESS} (`bunzip2`)."),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", f"{_DECOMPRESS} (`7z x`)."),
    (b"Rar!", "a RAR archive", f"{_DECOMPRESS} (`unrar x`)."),
    (b"\x89HDF", "an HDF5 file", "Convert it to safetensors first."),
    *((magic, "a program", "Check the path.") for magic in (b"\x7fELF", b"MZ", b"\xcf\xfa\xed\xfe")),
    (bytes(16), "a file that begins with zeros (an interrupted download?)", "Fetch the file again."),
)  # fmt: skip
ARCHIVE_END = b"PK\x05\x06"
"""Begins the last record of a zip archive."""
OLLAMA_MODEL = re.compile(rb'vnd\.ollama\.image\.model"\s*,\s*"digest"\s*:\s*"sha256:([0-9a-f]{64})"')
ANSWER = re.compile(rb'\{\s*"(error|errors|message|detail|Message|Code)"\s*:')
"""The start of a server's answer in JSON instead of a file."""
_PIECE = re.compile(
    r"(.+\.(?:gguf|safetensors|zt|squizd))"
    r"(?:\.part(\d+)of(\d+)|[.-](?:split|part)[._-]?([a-z]{1,2}|\d{1,4})|\.(a[a-z]|\d{3}))",
    re.IGNORECASE,
)
"""Names of the pieces that `split` and uploaders cut files into."""
_MOST_PIECES = 9


REFERENCES = re.compile(rb'"refs"\s*:\s*\{')
"""In the first bytes of a reference manifest (kerchunk JSON, version 1)."""


@cache
def table() -> dict[str, dict[str, Any]]:
    """Kind -> id -> what its plugin declares, as far as hints need it. Read on first use."""
    import json

    facts: dict[str, dict[str, Any]] = json.loads(TABLE.read_text("utf-8"))
    return facts


def format_facts(name: str) -> Mapping[str, Any]:
    """What a format of this repository declares; its `needs` are a codec of each other package."""
    facts: Mapping[str, Any] = table()["container"].get(name, {})
    return facts


def distributions() -> dict[str, dict[str, Any]]:
    """Distribution of this repository -> its `folder`, and the others that it `requires`, by extra ("": always)."""
    return table()["distributions"]


@cache
def packages(kind: str) -> dict[str, str]:
    """Id of a kind, or prefix of ids -> the package of this repository that provides it."""
    providers: dict[str, str] = {}
    for name, facts in table()[kind].items():
        names = (name.partition(".")[0], *facts.get("schemes", ())) if facts["dist"] != "squish-core" else ()
        for each in names:
            if providers.setdefault(each, facts["dist"]) != facts["dist"]:
                providers[name] = facts["dist"]
    providers.pop("*", None)
    return providers


def package_for(kind: str, name: str) -> str | None:
    """Return the package of this repository that provides an id; `ggml.q4_k` is listed under its prefix `ggml`."""
    providers = packages(kind) if kind in KINDS else {}
    return providers.get(name) or providers.get(name.split(".")[0])


@cache
def suffixes() -> dict[str, str]:
    """Suffix -> format of this repository."""
    return {suffix: name for name, facts in table()["container"].items() for suffix in facts.get("suffixes", ())}


@cache
def byte_suffixes() -> dict[str, str]:
    """Suffix of a compressed file -> byte codec of this repository."""
    return {facts["suffix"]: name for name, facts in table()["codec"].items() if "suffix" in facts}


@cache
def short_names(*kinds: str) -> dict[str, str]:
    """Short name for `--encode` that plugins of these kinds declare -> codec."""
    tables = [facts.get("aliases", {}) for kind in kinds for facts in table()[kind].values()]
    return {name: codec for aliases in reversed(tables) for name, codec in aliases.items()}


def install_command(*packages: str, extra: str = "", fresh: bool = False) -> str:
    """Return the command that installs packages into this environment, from where squish-core was installed from.

    Parameters
    ----------
    *packages
        Names of distributions, possibly with extras (`squish-ggml[gguf]`). Where pip would not find the plugins that
        they require, as in a checkout, the command lists them, too.
    extra
        Extra of the last package (`[fsspec]`).
    fresh
        For an environment that has none of them: list the required plugins that are installed here, too.

    Returns
    -------
    str
        Quoted for a shell, for the tool that manages this environment (pip, uv, pipx, conda).

    Examples
    --------
    >>> install_command("squish-gguf", "squish-remote", extra="[fsspec]")
    "pip install ... ...squish-remote[fsspec]..."
    """
    return " && ".join(map(shlex.join, install_commands(*packages[:-1], packages[-1] + extra, fresh=fresh)))


def install_commands(*packages: str, fresh: bool = False, find_links: str | None = None) -> list[list[str]]:
    """Return the words of the commands of `install_command`; `find_links`: by name, from this folder of wheels."""
    from squish_core import environment

    if find_links:
        return environment.commands(packages, find_links)
    return environment.commands(list(_targets(packages, fresh)), wheels())


def _targets(packages: Iterable[str], fresh: bool) -> Iterable[str]:
    """Return the argument of an installer for each package: its folder in the checkout, its URL, or its name."""
    targets: dict[str, str] = {}
    for package in packages:
        name, bracket, extras = package.partition("[")
        for needed in filter(lambda other: fresh or not _is_installed(other), dependencies(package)):
            targets.setdefault(needed, _target(needed, ""))
        targets[name] = _target(name, bracket + extras)
    return targets.values()


def _target(name: str, extras: str) -> str:
    place = origin(name)
    if isinstance(place, Path):
        return f"{_path(place)}{extras}"
    return f"{name}{extras} @ {place}" if place else f"{name}{extras}"


def origin(name: str) -> Path | str | None:
    """Return where a package comes from: its folder in the checkout, its URL, or (None) where installers look."""
    if name not in distributions():
        return None
    folder = distributions()[name]["folder"]
    if root := checkout():
        return root / folder
    address = repository()
    return f"{address}{folder and f'#subdirectory={folder}'}" if address else None


@cache
def checkout() -> Path | None:
    """Return the checkout of this repository that squish-core was installed from, if it still exists."""
    root = _local(_origin()) or Path(__file__).resolve().parent.parent
    return root if (root / "squish_core").is_dir() and (root / "plugins").is_dir() else None


@cache
def repository() -> str | None:
    """The address of the repository that has the plugins, as pip reads it: `git+https://...@COMMIT`.

    That which squish-core was installed from. Before the packages are in an index, also the project's own, unless the
    environment's tool knows another place.
    """
    from squish_core import environment

    origin = _origin()
    control = origin.get("vcs_info")
    if control:
        return f"{control['vcs']}+{origin['url']}@{control['commit_id']}"
    return None if RELEASED or wheels() or environment.installer()[1] else f"git+{REPOSITORY}"


@cache
def wheels() -> str | None:
    """Return the folder with the wheel or archive that squish-core was installed from."""
    origin = _origin()
    path = _local(origin) if "archive_info" in origin else None
    return str(path.parent) if path else None


def _origin() -> dict[str, Any]:
    """Where squish-core was installed from (PEP 610); nothing for an index or a folder of wheels."""
    import json
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        text = distribution("squish-core").read_text("direct_url.json")
    except PackageNotFoundError:
        text = None
    origin: dict[str, Any] = json.loads(text) if text else {}
    return origin


def _local(origin: Mapping[str, Any]) -> Path | None:
    """Return the folder or archive on this machine that an installation came from."""
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    url = urlsplit(origin.get("url", ""))
    return Path(url2pathname(url.path)) if url.scheme == "file" else None


def dependencies(package: str) -> list[str]:
    """Packages of this repository that a package with its extras requires, dependencies first; none in an index."""
    name, *extras = re.split(r"[^\w-]+", package.rstrip("]"))
    if name not in distributions() or not (checkout() or repository()):
        return []
    requires = distributions()[name]["requires"]
    direct = chain.from_iterable(requires.get(extra, ()) for extra in ("", *extras))
    needed = [(*dependencies(other), other.partition("[")[0]) for other in direct]
    return list(dict.fromkeys(chain.from_iterable(needed)))


def _is_installed(package: str) -> bool:
    from importlib.metadata import PackageNotFoundError, version

    try:
        version(package)
    except PackageNotFoundError:
        return package == "squish-core"  # run from its folder
    return True


def _path(folder: Path) -> str:
    """Return a folder for a shell command: relative if it is below the current one."""
    here = Path.cwd()
    if folder == here:
        return "."
    return f"./{folder.relative_to(here).as_posix()}" if folder.is_relative_to(here) else str(folder)


def absent(kind: str, name: str) -> Refusal:
    """Return the refusal for an id that no installed plugin provides."""
    package, noun = package_for(kind, name), {"container": "format"}.get(kind, kind)
    why = f"the {noun} {name!r} is not installed"
    if package is None:
        why = f"there is no {noun} {name!r} here, and no known package provides it"
    return Refusal(why=why, code=ErrorCode.NOT_INSTALLED, install=install_command(package) if package else None)


def lookalike(head: bytes, tail: bytes = b"", *, text: bool = False) -> tuple[str, str] | None:
    """Return the type of a file that is commonly mistaken for weights.

    Parameters
    ----------
    head, tail
        Its first and last bytes.
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
    if head.startswith((b"MZ", b"\x7fELF", b"#!")) and ARCHIVE_END in tail:
        return "a llamafile (a program with a model inside)", "Extract its model: `unzip FILE '*.gguf'`, and open that."
    if head[257:262] == b"ustar":
        return "a tar archive", f"{_DECOMPRESS} (`tar -xf`)."
    start = head.lstrip()[:64].lower()
    for magic, what, hint in LOOKALIKES:
        if head.startswith(magic) or (magic.isascii() and magic.startswith(b"<") and start.startswith(magic)):
            return what, hint
    if text and start.startswith(b"{") and REFERENCES.search(head):
        return (
            "a reference manifest, not weights: it may name any address, and is not opened",
            "Open the files that it was made from; zarr reads the manifest.",
        )
    if text and start.startswith(b"{") and b"vnd.ollama.image.model" in head:
        model = OLLAMA_MODEL.search(head)
        name = f"blobs/sha256-{model[1].decode()}" if model else "a file of its folder blobs"
        return "a manifest of Ollama, not weights", f"Open its model: {name}, in Ollama's folder of models."
    if text and ANSWER.match(head.lstrip()):
        answer = head.lstrip()[:200].decode(errors="replace")
        return (
            f"a server's answer, not weights: {answer!r}",
            "Sign in or correct the address, and fetch the file again.",
        )
    if text and start.startswith(b"{") and start[1:].lstrip().startswith(b'"'):
        return "JSON, not weights", "Name the file with the weights, or the folder that contains both."
    line = head[:80].split(b"\n")[0].rstrip()
    if text and line and line.isascii() and line.decode().isprintable():
        return f"text, not weights: {line.decode()!r}", "Read it: it may be a server's error message."
    return None


def absent_format(head: bytes, members: tuple[str, ...] = ()) -> str | None:
    """Id of the known format that the first bytes or the names in a folder indicate."""
    formats = table()["container"].items()
    for end, format_id in ((end, name) for name, facts in formats for end in facts.get("members", ())):
        if any(name.endswith(end) for name in members):
            return suffixes().get(end, format_id)
    heads = [(at, bytes.fromhex(magic), name) for name, facts in formats for at, magic in facts.get("heads", ())]
    return next((name for at, magic, name in (*heads, *HEADS) if head[at : at + len(magic)] == magic), None)


def piece_hint(name: str) -> str | None:
    """Return how to join the pieces of a file, for the name of a piece; None for any other name.

    >>> piece_hint("model.gguf.part1of2")
    'Join its pieces: `cat model.gguf.part1of2 model.gguf.part2of2 > model.gguf`.'
    """
    piece = _PIECE.fullmatch(name)
    if piece is None:
        return None
    whole, _, count, label, suffix = piece.groups()
    if count and int(count) <= _MOST_PIECES:
        pieces = " ".join(shlex.quote(f"{whole}.part{number}of{count}") for number in range(1, int(count) + 1))
    else:
        common = name[: -len(label or suffix)] if label or suffix else f"{whole}.part"
        pieces = f"$(ls -v {shlex.quote(common)}*)"
    return f"Join its pieces: `cat {pieces} > {shlex.quote(whole)}`."
