"""llama.cpp's vocabularies with texts and the ids it gives them, out of the source package of xllamacpp."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from . import ENVIRONMENTS, ROOT, OracleError

PACKAGE = next(each for each in ENVIRONMENTS["llama.cpp"].requirements.split() if each.startswith("xllamacpp=="))
FOLDER = ROOT / ".oracles" / f"vocabularies-{PACKAGE.partition('==')[2]}"
INSIDE = "thirdparty/llama.cpp/models/ggml-vocab-"
BETWEEN = "\n__ggml_vocab_test__\n"
NAMES = (
    "command-r", "deepseek-coder", "deepseek-llm", "falcon", "gpt-2", "llama-bpe", "llama-spm", "mpt", "phi-3", "qwen2",
    "qwen35", "refact", "starcoder",
)  # fmt: skip
"""Those with merges or with scores of the kind `llama`; the package has BERT's, XLM-RoBERTa's and Gemma 4's, too."""


def vocabulary(name: str) -> Path:
    """A GGUF that holds a vocabulary alone."""
    return fetch() / f"ggml-vocab-{name}.gguf"


def samples(name: str) -> tuple[list[str], list[list[int]]]:
    """Texts, and the ids that llama.cpp has for them."""
    path = vocabulary(name)
    texts = path.with_name(f"{path.name}.inp").read_text(encoding="utf-8").split(BETWEEN)
    lines = path.with_name(f"{path.name}.out").read_text(encoding="utf-8").split("\n")
    return texts, [[int(number) for number in line.split()] for line in lines]


def fetch() -> Path:
    """The folder of the vocabularies, downloaded once."""
    FOLDER.parent.mkdir(exist_ok=True)
    with open(FOLDER.with_name(f"{FOLDER.name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not FOLDER.exists():
            with tempfile.TemporaryDirectory(dir=FOLDER.parent) as temporary:
                whole = Path(temporary, "vocabularies")
                whole.mkdir()
                extract(download(temporary), whole)
                whole.rename(FOLDER)
    return FOLDER


def download(folder: str, package: str = PACKAGE) -> Path:
    """The source package; pip builds its metadata to check its name, which compiles nothing."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command = [*pip, "--no-binary", package.partition("==")[0], "--dest", folder, package]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise OracleError(f"`{' '.join(command)}` failed; a package index must be reachable\n{done.stderr}")
    return next(Path(folder).glob("*.tar.gz"))


def extract(package: Path, folder: Path) -> None:
    """Copy the vocabularies out of the package."""
    with tarfile.open(package) as archive:
        for member in archive:
            content = archive.extractfile(member) if INSIDE in member.name else None
            if content is not None:
                with content, open(folder / Path(member.name).name, "wb") as target:
                    shutil.copyfileobj(content, target)
