"""What `check-model` says about changed folders, against what Transformers, mlx-lm and mistral.rs do with them.

    PYTHONPATH=tests python -m oracles.check_folders --engine mlx [--only TEXT] [--sample N] [--bases DIR]

As `oracles.check_matrix` for llama.cpp: prints each change about which the two differ, and the confusion matrix.
"""

from __future__ import annotations

import argparse
import inspect
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import squish_core as squish

from . import peer
from .check_matrix import LOADS, REFUSED, UNKNOWN, Case, ask_check_model, ask_mistralrs, matrix
from .families import FAMILIES, make
from .folder_mutants import CONFIG, Folder, mutants, read_folder

BATCH = 40
PEERS = {"transformers": "transformers", "mlx": "mlx-lm", "mistralrs": "mistralrs"}


def answers(loader: Any, paths: list[str], known: list[str]) -> list[str]:
    """Runs in the peer: "" for each folder that loads with all its parameters and runs, else what is wrong.

    Each in a process of its own with limits of time and memory. `known`: folders that load, for the imports.
    """
    import contextlib
    import os
    import resource
    import signal

    load = loader(known)
    found = []
    for path in paths:
        read, write = os.pipe()
        child = os.fork()
        if not child:
            words = "an error"
            try:
                signal.alarm(120)
                resource.setrlimit(resource.RLIMIT_CPU, (15, 15))
                resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
                load(path)
                words = ""
            except BaseException as error:
                words = f"{type(error).__name__}: {error}"[:400]
            finally:
                with contextlib.suppress(BaseException):
                    os.write(write, f"\0{words}".encode())
                os._exit(0)
        os.close(write)
        text = b""
        while part := os.read(read, 65536):
            text += part
        os.close(read)
        _, status = os.waitpid(child, 0)
        found.append(text[1:].decode(errors="replace") if text else f"ends with {status}")
    return found


def load_transformers(known: list[str]) -> Any:
    """Runs in the peer: what loads a folder and runs it with Transformers."""
    import os
    import warnings

    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    import torch
    import transformers
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity(50)
    transformers.logging.disable_progress_bar()

    def load(path: str) -> None:
        AutoTokenizer.from_pretrained(path, local_files_only=True).encode("a text")
        images = hasattr(AutoConfig.from_pretrained(path, local_files_only=True), "vision_config")
        model, loading = (AutoModelForImageTextToText if images else AutoModelForCausalLM).from_pretrained(
            path, dtype=torch.float32, local_files_only=True, output_loading_info=True, attn_implementation="eager"
        )
        if missing := sorted(map(str, loading["missing_keys"])):
            raise ValueError(f"{len(missing)} parameters are new, such as {missing[0]}")
        if loading.get("mismatched_keys"):
            raise ValueError("shapes differ")
        with torch.inference_mode():
            model(torch.tensor([[1, 2, 3, 4]]))

    for path in known:
        load(path)
    return load


def load_mlx(known: list[str]) -> Any:
    """Runs in the peer: as `load_transformers`, with mlx-lm, which does not run in a process before its copies do."""
    import json
    import os
    from pathlib import Path

    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    import mlx.core as mx
    from mlx_lm.utils import _get_classes, load_model, load_tokenizer

    def load(path: str) -> None:
        mx.set_default_device(mx.cpu)
        load_tokenizer(Path(path)).encode("a text")
        model, _ = load_model(Path(path))
        model.set_dtype(mx.float32)
        mx.eval(model(mx.array([[1, 2, 3, 4]])))

    for path in known:
        load_tokenizer(Path(path)).encode("a text")
        _get_classes(json.loads(Path(path, "config.json").read_text()))
    return load


LOADERS = {"transformers": load_transformers, "mlx": load_mlx}


def ask(engine: str, paths: list[str], known: list[str]) -> list[str]:
    """What the engine says about each folder; "" if it loads and runs."""
    if engine == "mistralrs":
        code: Any = ask_mistralrs
        arguments = {"paths": paths}
    else:
        loader = LOADERS[engine]
        call = f"result = answers({loader.__name__}, paths, known)"
        code = "\n".join([inspect.getsource(answers), inspect.getsource(loader), call])
        arguments = {"paths": paths, "known": known}
    found: list[str] = peer(PEERS[engine]).run(code, **arguments, timeout=3600.0)
    return found


def bases(place: Path, only: str) -> Iterator[tuple[str, Folder]]:
    """A small folder of each family, in the spelling that is published; kept."""
    place.mkdir(parents=True, exist_ok=True)
    for family in FAMILIES:
        if only in family:
            if not (place / family).exists():
                make(family, place / family)
            yield family, read_folder(place / family).with_json(CONFIG, respell)


def respell(config: dict[str, Any]) -> None:
    """Spell a config.json that Transformers 5 wrote as engines of any release read it."""
    families: Any = squish.registry().families.values()
    known = next(entry.id for entry in families if config["model_type"] in entry.info.model_types)
    if "text_config" not in config:
        family: Any = squish.registry().implementation("family", known)
        spelled = family.spelled(config)
        config.clear()
        config.update(spelled)


def cases(engine: str, family: str, base: Folder, change: str = "", sample: int = 1) -> Iterator[Case]:
    """Every changed folder of a family with both answers; of `sample` changes, one, chosen by name."""
    chosen = [
        (name, mutant)
        for name, mutant in mutants(base)
        if change in name and (name == "unchanged" or zlib.crc32(f"{family} {name}".encode()) % sample == 0)
    ]
    for start in range(0, len(chosen), BATCH):
        part = chosen[start : start + BATCH]
        with tempfile.TemporaryDirectory() as place:
            paths = [mutant.write(Path(place, f"m{index}")) for index, (_, mutant) in enumerate(part)]
            unchanged = [str(base.write(Path(place, "unchanged")))]
            for path, (name, _), words in zip(paths, part, ask(engine, list(map(str, paths)), unchanged)):
                verdict, said = ask_check_model(path, engine)
                yield Case(family, name, REFUSED if words else LOADS, words, verdict, said)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--engine", required=True, choices=tuple(PEERS))
    parser.add_argument("--only", default="", help="families with this text in their name")
    parser.add_argument("--change", default="", help="changes with this text")
    parser.add_argument("--sample", type=int, default=1, help="one of this many changes")
    parser.add_argument("--bases", type=Path, help="a folder that keeps the unchanged models")
    options = parser.parse_args(arguments)
    results: list[Case] = []
    with tempfile.TemporaryDirectory() as temporary:
        for family, base in bases(options.bases or Path(temporary), options.only):
            found = list(cases(options.engine, family, base, options.change, options.sample))
            results += found
            for case in found:
                if not case.agrees:
                    print(
                        f"{case.family} | {case.change} | engine {case.engine}: {case.reason[:200]} | "
                        f"check-model {case.check}: {case.said[:200]}",
                        flush=True,
                    )
            print(f"# {family}: {len(found)} models, {sum(not case.agrees for case in found)} differ", flush=True)
    print(matrix(results))
    counts = Counter(case.check for case in results)
    print(f"not known: {counts[UNKNOWN]} of {len(results)}")
    return int(any(case.engine == REFUSED and case.check == LOADS for case in results))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
