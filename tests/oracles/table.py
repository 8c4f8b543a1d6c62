"""Whole models through Squish, judged by the engines: source x target x engine, written into docs/models.md.

    PYTHONPATH=tests:examples python -m oracles.table [--only TEXT] [--family NAME ...] [--write]

Each row converts a model, along one or several formats, and asks the last one's engine and the source's own.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import demo
from attrs import frozen

import squish_core as squish

from . import ROOT, OracleError
from .engines import TOKENS, Answer, NoAnswerError, ask, difference
from .families import FAMILIES, SIZE, make, reference
from .families_old import GELU

PAGE = ROOT / "docs" / "models.md"
START, END = "<!-- table: make engines -->", "<!-- end of the table -->"
ENGINES = {"gguf": "llama.cpp", "hf": "transformers", "mlx": "mlx", "uqff": "mistralrs"}
"""The engine that a format is written for."""
BOUNDS = {
    ("transformers", "transformers"): 1e-4, ("transformers", "llama.cpp"): 1e-4, ("transformers", "mlx"): 1e-3,
    ("transformers", "mistralrs"): 1e-3, ("llama.cpp", "llama.cpp"): 1e-6, ("llama.cpp", "transformers"): 1e-4,
}  # fmt: skip
"""Bounds of the difference of all log-probabilities for equal values: floats differ by rounding."""
ROUNDED = {"mistralrs": 1.25}
"""Bounds for the likely tokens, against blocks in llama.cpp: both round activations to 8 bits, in different ways."""


@frozen
class Row:
    """A source, the formats it is converted to one after the other, and `encode=` for the first of them."""

    source: str
    formats: tuple[str, ...]
    encode: str | None = None

    @property
    def engine(self) -> str:
        """The engine that runs the result."""
        return ENGINES[self.formats[-1]]

    @property
    def title(self) -> str:
        """The formats as a path."""
        return " -> ".join(self.formats).upper() + (f" ({self.encode})" if self.encode else "")


PACKAGED = {"SmolLM2-135M, GGUF Q4_1": "smollm2", "Gemma-3 270M, GGUF Q4_K_M": "gemma"}
"""Models from the package index, and what `examples/demo.py` calls them."""
GEMMA4 = ("gemma4", "gemma4_text", "gemma4_text-26b", "gemma4_text-31b", "gemma4_unified_text")
OWN_ARITHMETIC = {
    ("Gemma-3 270M, GGUF Q4_K_M", "mlx"): 0.1, ("Gemma-3 270M, GGUF Q4_K_M", "transformers"): 0.05,
    **dict.fromkeys(
        (
            (f"{name}, folder", "llama.cpp")
            for name in ("gemma", "gemma2", "gemma2-wide", "gemma3_text", "gpt2", "starcoder2", *GELU)
        ),
        2e-3,
    ),
    **{(f"{name}, folder", "llama.cpp"): 5e-3 for name in GEMMA4},
    ("falcon_mamba, folder", "llama.cpp"): 2e-3, ("qwen2_5_vl, folder", "llama.cpp"): 3e-3,
    ("gpt_oss, folder", "mistralrs"): 5e-3,
}  # fmt: skip
"""Bounds of all log-probabilities where an engine computes otherwise by design: mlx-lm scales Gemma's embeddings by the
root of 640 in bf16, which is 0.2 % less; llama.cpp reads GELU from a table of f16 (Gemma 4 has more of them: with such
a table in Transformers, too, it is 4e-4 away), and has its own positions for Qwen VL (the same weights as Qwen 2 are
2e-6 away), and one epsilon for all norms of Falcon-Mamba; mistral.rs is 2e-3 away from gpt-oss."""
FLOATS = {"transformers": "gguf", "mlx": "hf"}
"""Engines that compute with a block model's values, and the format in which its f32 values are their reference."""
CODES_KEPT = (("mlx",), ("uqff",), ("mlx", "gguf"), ("uqff", "gguf"))
AS_VALUES = {("gemma", "mlx"): "*.ffn_down.weight=f32"}
"""Tensors whose codes a format has no layout for (Q6_K in MLX), by what `examples/demo.py` calls the model."""
FROM_FOLDER = (
    ("gguf",), ("hf",), ("mlx",), ("uqff",), ("gguf", "hf"), ("mlx", "hf"), ("uqff", "hf"), ("gguf", "mlx"),
)  # fmt: skip

BEFORE_LANDING = {
    "llama": "rows interleaved within heads, a tensor for the factors of the rotation; each engine",
    "gemma3_text": "norms + 1, two rotations, windows, a tied head, SentencePiece",
    "gpt_oss": "experts in one stack with biases, rows that alternate, transposed matrices, YaRN",
    "deepseek_v3": "latent attention, matrices that are split, dense layers before those with experts",
    "qwen3_5_text": "a delta rule: heads tiled in rows and columns, decays as logarithms, two kinds of layers",
    "lfm2_moe": "a declaration in TOML: convolutions, experts stacked, a bias for their router",
}
"""The six families that `.ci/run` runs, and what each has that others have not. `.ci/full` runs all."""


def rows() -> Iterator[Row]:
    """Every row of the table."""
    for source in PACKAGED:
        yield from (Row(source, formats, "f32") for formats in (("hf",), ("hf", "gguf")))
        values = AS_VALUES.get
        yield from (Row(source, formats, values((PACKAGED[source], formats[0]))) for formats in CODES_KEPT)
    for family, entry in FAMILIES.items():
        each = (Row(f"{family}, folder", formats) for formats in FROM_FOLDER)
        left_out = {*entry.get("lacking", ()), *entry.get("not_run", ())}
        yield from (row for row in each if left_out.isdisjoint((row.engine, row.formats)))


def in_slice(row: Row) -> bool:
    """Whether `make oracles` checks a row: SmolLM2, and each family into GGUF and HF."""
    if row.source in PACKAGED:
        return PACKAGED[row.source] == "smollm2"
    return row.formats in (("gguf",), ("hf",))


def before_landing(row: Row) -> bool:
    """Whether `make peers` checks a row: six families into GGUF, and Llama into each format."""
    family, _, kind = row.source.partition(", ")
    if kind != "folder" or family not in BEFORE_LANDING:
        return False
    if family == "llama":
        return len(row.formats) == 1 and row.engine != "mistralrs"  # test_uqff_mistralrs.py
    return row.formats == ("gguf",)


class Judge:
    """Makes the sources, converts them and asks the engines; keeps sources and their answers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._sources: dict[str, tuple[Path, Answer]] = {}
        self._floats: dict[Row, Answer] = {}

    def result(self, row: Row) -> str:
        """`ok`, or how the result differs from the source."""
        try:
            answer = self._reference(row)
            result = self._convert(row, self._source(row.source)[0])
            outcome = self._answer(row, result, answer)
        except squish.SquishError as error:
            return f"not converted: {error.message}"
        except NoAnswerError:
            return "no answer"
        except OracleError as error:
            return first_line(str(error))
        exact = OWN_ARITHMETIC.get((row.source, row.engine), BOUNDS.get((answer.engine, row.engine)))
        bound = ROUNDED[row.engine] if exact is None else exact
        return difference(answer, outcome, bound, exact=exact is not None) or "ok"

    def _reference(self, row: Row) -> Answer:
        """The answer to compare with: the source's, or that of a block model's values in f32."""
        if row.source in PACKAGED and (row.engine in FLOATS or row.encode == "f32"):
            floats = Row(row.source, (FLOATS.get(row.engine, "gguf"),), "f32")
            if floats not in self._floats:
                source, answer = self._source(row.source)
                self._floats[floats] = self._answer(floats, self._convert(floats, source), answer)
            return self._floats[floats]
        return self._source(row.source)[1]

    def _answer(self, row: Row, result: Path, reference: Answer) -> Answer:
        tokens = 8 if row.engine == "mistralrs" else TOKENS
        return ask(row.engine, result, reference.ids, tokens=tokens, vocabulary=reference.logprobs.shape[1])

    def _source(self, name: str) -> tuple[Path, Answer]:
        if name not in self._sources:
            packaged = PACKAGED.get(name)
            family = name.partition(",")[0]
            path = demo.fetch(packaged) if packaged else make(family, self.folder / "sources" / family)
            engine = "llama.cpp" if packaged else "transformers"
            self._sources[name] = path, ask(engine, reference(path), vocabulary=SIZE["vocab_size"])
        return self._sources[name]

    def _convert(self, row: Row, source: Path) -> Path:
        with_suffix = {"gguf": ".gguf"}
        for index, format_ in enumerate(row.formats):
            name = f"{len(list(self.folder.iterdir()))}-{format_}{with_suffix.get(format_, '')}"
            squish.convert(source, self.folder / name, format_, row.encode if index == 0 else None)
            source = self.folder / name
        return source


def first_line(text: str) -> str:
    """The first line of an error, short."""
    line = text.splitlines()[0] if text else ""
    return line if len(line) < 200 else f"{line[:197]}..."


def lines(results: Sequence[tuple[Row, str]]) -> list[str]:
    """The table in Markdown."""
    head = ["| source | target | engine | result |", "|---|---|---|---|"]
    return head + [
        f"| {row.source} | {row.title} | {row.engine} | {text.replace('|', chr(92) + '|')} |" for row, text in results
    ]


def run(selected: Callable[[Row], bool]) -> list[tuple[Row, str]]:
    """The results of the selected rows, printed as they come."""
    results = []
    with tempfile.TemporaryDirectory() as folder:
        judge = Judge(Path(folder))
        for row in filter(selected, rows()):
            text = judge.result(row)
            print(f"{row.source} | {row.title} | {row.engine} | {text}", flush=True)
            results.append((row, text))
    return results


def write(results: Sequence[tuple[Row, str]]) -> None:
    """Write results between the page's marks; rows that did not run keep their text."""
    before, _, rest = PAGE.read_text().partition(START)
    table, _, after = rest.partition(END)
    texts = {**read_table(table), **{(row.source, row.title): text for row, text in results}}
    merged = [(row, texts[row.source, row.title]) for row in rows() if (row.source, row.title) in texts]
    PAGE.write_text("\n".join((before + START, "", *lines(merged), "", END + after)))


def read_table(table: str) -> dict[tuple[str, str], str]:
    """(source, target) -> result, from a table in Markdown."""
    cells = [line.removeprefix("| ").removesuffix(" |").split(" | ", 3) for line in table.splitlines()]
    return {(row[0], row[1]): row[3].replace("\\|", "|") for row in cells if len(row) == 4}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", default="", help="rows whose source, target or engine has this text")
    parser.add_argument("--family", nargs="*", default=[], help="families to run; all by default")
    parser.add_argument("--write", action="store_true", help="write the table into docs/models.md")
    options = parser.parse_args(arguments)
    sources = [f"{family}, folder" for family in options.family]
    if unknown := set(options.family).difference(FAMILIES):
        parser.error(f"no such family: {', '.join(sorted(unknown))}; there are {', '.join(FAMILIES)}")

    def is_selected(row: Row) -> bool:
        is_named = options.only in f"{row.source} | {row.title} | {row.engine}"
        return is_named and (not sources or row.source in sources)

    results = run(is_selected)
    if options.write:
        write(results)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
