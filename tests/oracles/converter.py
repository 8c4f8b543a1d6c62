"""llama.cpp's converter of Hugging Face folders, out of the source package of xllamacpp, run in the peer of torch."""

from __future__ import annotations

import fcntl
import shutil
import tarfile
import tempfile
from pathlib import Path, PurePosixPath

from . import ROOT, peer
from .vocabularies import PACKAGE, download

FOLDER = ROOT / ".oracles" / f"converter-{PACKAGE.partition('==')[2]}"
INSIDE = ("conversion", "gguf-py")
"""Folders of llama.cpp that the converter needs."""


def convert(
    folders: dict[str, Path],
    target: Path,
    pre: dict[str, str],
    *,
    tensors: bool = True,
    as_it_stands: bool = False,
) -> dict[str, Path]:
    """Convert folders to GGUFs of f32, by name.

    `pre`: by name, what the converter would take from its table of hashes of known vocabularies. `tensors`: whether the
    folders have any; otherwise the GGUFs hold a vocabulary alone. `as_it_stands`: the converter gets the settings in
    config.json itself, not those of Transformers' class, which may have dropped some.
    """
    paths = {name: str(target / f"{name}.gguf") for name in folders}
    sources = {name: str(folder) for name, folder in folders.items()}
    arguments = {"pre": pre, "tensors": tensors, "as_it_stands": as_it_stands}
    peer("torch").run(run, root=str(fetch()), sources=sources, targets=paths, **arguments, timeout=900)
    return {name: Path(path) for name, path in paths.items()}


def fetch() -> Path:
    """The converter's folder, downloaded once."""
    FOLDER.parent.mkdir(exist_ok=True)
    with open(FOLDER.with_name(f"{FOLDER.name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not FOLDER.exists():
            with tempfile.TemporaryDirectory(dir=FOLDER.parent) as temporary:
                whole = Path(temporary, "converter")
                extract(download(temporary, PACKAGE), whole)
                whole.rename(FOLDER)
    return FOLDER


def extract(package: Path, folder: Path) -> None:
    """Copy the converter out of the package."""
    with tarfile.open(package) as archive:
        for member in archive:
            parts = PurePosixPath(member.name).parts[1:]
            if (
                member.isfile()
                and parts[:2] == ("thirdparty", "llama.cpp")
                and parts[2] in INSIDE
                and ".." not in parts
            ):
                target = folder.joinpath(*parts[2:])
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.extractfile(member) as content, open(target, "wb") as out:  # type: ignore[union-attr]
                    shutil.copyfileobj(content, out)


def run(
    root: str, sources: dict[str, str], targets: dict[str, str], pre: dict[str, str], tensors: bool, as_it_stands: bool
) -> None:
    """Runs in the peer."""
    import contextlib
    import io
    import json
    import logging
    import sys
    from pathlib import Path

    import torch

    sys.path[:0] = [root, f"{root}/gguf-py"]
    from conversion import (  # type: ignore[import-not-found]
        ModelBase,
        TextModel,
        get_model_architecture,
        get_model_class,
    )
    from conversion.base import ModelType, gguf  # type: ignore[import-not-found]

    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    for name, source in sources.items():
        TextModel.get_vocab_base_pre = lambda self, tokenizer, name=name: pre[name]
        with torch.inference_mode(), contextlib.redirect_stderr(io.StringIO()):
            settings = ModelBase.load_hparams(Path(source), False)
            if as_it_stands:
                settings = json.loads(Path(source, "config.json").read_text())
            made = get_model_class(get_model_architecture(settings, ModelType.TEXT))
            modules = {"sentence_transformers_dense_modules": Path(source, "modules.json").exists()}
            own = {"hparams": settings} if as_it_stands else {}
            model = made(Path(source), gguf.LlamaFileType.ALL_F32, Path(targets[name]), **modules, **own)
            getattr(made, "_lora_files", {}).clear()  # the class keeps those of the model before
            model.write() if tensors else model.write_vocab()
