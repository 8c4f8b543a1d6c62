"""What `check-model` says about changed models, against what the engine does with them.

    PYTHONPATH=tests python -m oracles.check_matrix --engine llama.cpp [--only TEXT] [--sample N] [--bases FOLDER]

Each family of docs/models.md is made small and changed one thing at a time; prints the confusion matrix, and every
change about which the two differ.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen
from squish_models.api import check_model

import squish_core as squish

from . import peer
from .families import FAMILIES, make
from .gguf_file import Gguf, read_gguf
from .gguf_mutants import mutants

BATCH = 64
"""How many files the engine is asked about at a time."""
LOADS, REFUSED, UNKNOWN = "loads", "would not load", "not known"


@frozen
class Case:
    """A changed model: what the engine does with it and its words, what `check-model` answers and its words."""

    family: str
    change: str
    engine: str
    reason: str
    check: str
    said: str

    @property
    def agrees(self) -> bool:
        return self.engine == self.check


def ask_llama_cpp(paths: list[str]) -> list[list[str]]:
    """Runs in the peer: for each file, "loads" or how loading it ends, and the engine's words. One process a file."""
    import ctypes
    import os
    import signal
    from ctypes import c_char_p, c_int32, c_void_p
    from pathlib import Path

    import xllamacpp

    os.environ["GGML_NO_BACKTRACE"] = "1"
    library = ctypes.CDLL(next(map(str, Path(xllamacpp.__file__).parent.glob("*.so"))))

    class Params(ctypes.Structure):  # larger than any version's
        _fields_ = (("words", ctypes.c_uint32 * 256),)

    class Batch(ctypes.Structure):
        _fields_ = (("count", c_int32), ("arrays", c_void_p * 6))

    def function(name: str, result: Any, *arguments: Any) -> Any:
        entry = getattr(library, name)
        entry.restype, entry.argtypes = result, arguments
        return entry

    def load(path: str, out: int) -> int:
        def log(level: int, text: bytes, _: Any) -> None:
            if level >= 4:
                os.write(out, text.replace(b"\n", b" ")[:400])

        callback = ctypes.CFUNCTYPE(None, c_int32, c_char_p, c_void_p)(log)
        function("llama_log_set", None, type(callback), c_void_p)(callback, None)
        open_model = function("llama_model_load_from_file", c_void_p, c_char_p, Params)
        model = open_model(path.encode(), function("llama_model_default_params", Params)())
        if not model:
            return 1
        settings = function("llama_context_default_params", Params)()
        for word in range(3):  # n_ctx, n_batch, n_ubatch
            settings.words[word] = 64
        context = function("llama_init_from_model", c_void_p, c_void_p, Params)(model, settings)
        if not context:
            return 2
        function("llama_set_n_threads", None, c_void_p, c_int32, c_int32)(context, 1, 1)
        tokens = (c_int32 * 4)(1, 2, 3, 4)
        batch = function("llama_batch_get_one", Batch, c_void_p, c_int32)(ctypes.addressof(tokens), 4)
        return 3 if function("llama_decode", c_int32, c_void_p, Batch)(context, batch) else 0

    function("llama_backend_init", None)()
    answers = []
    for path in paths:
        read, write = os.pipe()
        child = os.fork()
        if not child:
            status = 9
            try:
                os.close(read)
                os.dup2(write, 2)
                signal.alarm(20)
                status = load(path, write)
            finally:
                os._exit(status)
        os.close(write)
        words = b""
        while part := os.read(read, 65536):
            words = (words + part)[-4000:]
        os.close(read)
        _, status = os.waitpid(child, 0)
        ended = {0: "loads", 1: "does not load", 2: "makes no context", 3: "does not run"}
        code = os.waitstatus_to_exitcode(status)
        how = ended.get(code) or f"ends with {signal.Signals(-code).name if code < 0 else code}"
        text = words.decode(errors="replace").lstrip(". ").partition("Fatal Python error")[0]
        answers.append([how, " ".join(text.split())[:1000]])
    return answers


def ask_mistralrs(paths: list[str]) -> list[str]:
    """Runs in the peer: "" for each folder or GGUF that loads and runs, else mistral.rs's words. One process each."""
    import os
    import signal
    from pathlib import Path

    os.environ |= {"HF_HUB_OFFLINE": "1", "MISTRALRS_CPU_KV_F32": "1", "RAYON_NUM_THREADS": "1"}

    def load(path: str) -> str:
        from mistralrs import ChatCompletionRequest, ModelDType, Runner, Which

        if path.endswith(".gguf"):
            folder, name = os.path.split(path)
            which = Which.GGUF(quantized_model_id=folder, quantized_filename=name, dtype=ModelDType.F32)
        else:
            text_only_gemma = "Gemma3ForCausalLM" in Path(path, "config.json").read_text()
            kind = Which.MultimodalPlain if text_only_gemma else Which.Plain
            which = kind(model_id=path, dtype=ModelDType.F32)
        template = Path(path).with_name("contents.jinja")
        template.write_text("{% for m in messages %}{{ m['content'] }}{% endfor %}")
        runner = Runner(which=which, jinja_explicit=str(template))
        request = ChatCompletionRequest(model="m", messages=[{"role": "user", "content": "a text"}], max_tokens=1)
        runner.send_chat_completion_request(request)
        return ""

    answers = []
    for path in paths:
        read, write = os.pipe()
        child = os.fork()
        if not child:
            words = "an error"
            try:
                signal.alarm(20)
                os.close(read)
                os.dup2(write, 2)
                words = load(path)
            except BaseException as error:
                words = f"{type(error).__name__}: {error}"[:400] or words
            finally:
                os.write(write, f"\0{words}".encode())
                os._exit(0)
        os.close(write)
        text = b""
        while part := os.read(read, 65536):
            text = text[-20000:] + part
        os.close(read)
        _, status = os.waitpid(child, 0)
        words = text.rpartition(b"\0")[2].decode(errors="replace")
        answers.append(words if b"\0" in text and not status else f"ends with {status}: {text[-300:]!r}")
    return answers


def ask_check_model(path: Path, engine: str) -> tuple[str, str]:
    """The verdict of `check-model`, and its words."""
    try:
        check = check_model(path, engine)
    except squish.SquishError as error:
        return UNKNOWN, f"{error.code}: {str(error)[:300]}"
    words = "; ".join(f"{problem.severity} {problem.where} {problem.message}" for problem in check.problems)
    return (REFUSED if any(problem.severity == "error" for problem in check.problems) else LOADS), words


def bases(folder: Path, only: str = "") -> Iterator[tuple[str, Gguf]]:
    """A small GGUF of each family, kept in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for family in FAMILIES:
        path = folder / f"{family}.gguf"
        if only in family and not path.exists():
            with tempfile.TemporaryDirectory() as temporary:
                squish.convert(make(family, Path(temporary, family)), path, "gguf")
        if only in family:
            yield family, read_gguf(path)


def ask(engine: str, paths: list[str]) -> list[str]:
    """What the engine says about each file; "" if it loads and runs."""
    if engine == "mistralrs":
        words: list[str] = peer("mistralrs").run(ask_mistralrs, paths=paths, timeout=3600.0)
        return words
    answers = peer("llama.cpp").run(ask_llama_cpp, paths=paths, timeout=1200.0)
    return [f"{how}: {words}" if how != "loads" else "" for how, words in answers]


def cases(
    family: str, base: Gguf, only: str = "", sample: int = 1, rest: int = 0, engine: str = "llama.cpp"
) -> Iterator[Case]:
    """Every changed model of a family with both answers; of `sample` changes, one, chosen by name and `rest`."""
    chosen = [
        (name, mutant)
        for name, mutant in mutants(base)
        if only in name and (name == "unchanged" or zlib.crc32(f"{family} {name}".encode()) % sample == rest)
    ]
    with tempfile.TemporaryDirectory() as folder:
        for start in range(0, len(chosen), BATCH):
            part = chosen[start : start + BATCH]
            paths = [Path(folder, f"{index}.gguf") for index in range(len(part))]
            for path, (_, mutant) in zip(paths, part):
                mutant.write(path)
            for path, (name, _), words in zip(paths, part, ask(engine, [str(path) for path in paths])):
                verdict, said = ask_check_model(path, engine)
                yield Case(family, name, REFUSED if words else LOADS, words, verdict, said)


def matrix(results: Sequence[Case]) -> str:
    """The confusion matrix as a table."""
    counts = Counter((case.engine, case.check) for case in results)
    columns = (LOADS, REFUSED, UNKNOWN)
    lines = ["engine \\ check-model | " + " | ".join(columns)]
    lines += [f"{row} | " + " | ".join(str(counts[row, column]) for column in columns) for row in (LOADS, REFUSED)]
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--engine", default="llama.cpp", choices=("llama.cpp", "mistralrs"))
    parser.add_argument("--only", default="", help="families with this text in their name")
    parser.add_argument("--change", default="", help="changes with this text")
    parser.add_argument("--sample", type=int, default=1, help="one of this many changes")
    parser.add_argument("--rest", type=int, default=0, help="which of them, by the rest of a division")
    parser.add_argument("--bases", type=Path, help="a folder that keeps the unchanged models")
    options = parser.parse_args(arguments)
    results: list[Case] = []
    with tempfile.TemporaryDirectory() as temporary:
        for family, base in bases(options.bases or Path(temporary), options.only):
            found = list(cases(family, base, options.change, options.sample, options.rest, options.engine))
            results += found
            for case in found:
                if not case.agrees:
                    print(
                        f"{case.family} | {case.change} | engine {case.engine}: {case.reason[:300]} | "
                        f"check-model {case.check}: {case.said[:300]}",
                        flush=True,
                    )
            print(f"# {family}: {len(found)} models, {sum(not case.agrees for case in found)} differ", flush=True)
    print(matrix(results))
    print(f"not known: {sum(case.check == UNKNOWN for case in results)} of {len(results)}")
    return int(any(case.engine == REFUSED and case.check == LOADS for case in results))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
