"""`squish tune`: choose an encoding per matrix by measured divergence, within a budget of bits per weight."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen
from squish_convert.api import convert

from squish_core.api import ErrorCode, File, UsageError
from squish_core.api import open as open_file

from .activations import sources_of
from .language_model import LanguageModel
from .lockstep import evaluate
from .sensitivity import measure_tensors
from .windows import Progress, Windows

CANDIDATES = ("int8", "int4", "int2")
KEEP = "keep"


@frozen
class Option:
    """An encoding of one matrix: its specification, stored bytes, and its own divergence."""

    spec: str
    nbytes: int
    kl: float


@frozen
class Matrix:
    """A matrix, or the experts of a layer: names in the target, and options by ascending bytes."""

    names: tuple[str, ...]
    elements: int
    options: tuple[Option, ...]


@frozen
class Tuning:
    """The result of `tune`.

    Attributes
    ----------
    rules
        Rules of `--encode`, in order.
    bpw
        Bits per weight of the matrices, scales included.
    kl
        Measured mean divergence of the resulting model.
    frontier
        Bits per weight and the sum of the matrices' own divergences, after each step.
    """

    rules: tuple[str, ...]
    bpw: float
    kl: float
    frontier: tuple[tuple[float, float], ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        frontier = [{"bits": bpw, "kl": kl} for bpw, kl in self.frontier]
        return {"rules": list(self.rules), "bits": self.bpw, "kl": self.kl, "frontier": frontier}

    def policy(self) -> str:
        """Return the rules as TOML, for `squish convert --recipe`."""
        lines = "".join(f"  {toml_string(rule)},\n" for rule in self.rules)
        return f"# {self.bpw:.3f} bits per weight, mean KL {self.kl:.3g}\nencode = [\n{lines}]\n"


def toml_string(text: str) -> str:
    """Format a basic string of TOML."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(char if char.isprintable() else f"\\U{ord(char):08x}" for char in escaped) + '"'


def tune(
    model: Any,
    *,
    bpw: float,
    text: str | Path,
    to: str = "ztensor",
    candidates: Sequence[str] = CANDIDATES,
    window: int = 512,
    progress: Progress | None = None,
) -> Tuning:
    """Choose an encoding for each matrix of a model, by the divergence that it causes on a text.

    Each matrix starts at the fewest bytes; the budget then goes to the largest reduction of divergence per byte.

    Parameters
    ----------
    model
        A file or folder of any format, or an open `File`: the base.
    bpw
        Most bits per weight of the matrices, scales included.
    text
        File with the text, in UTF-8.
    to
        Format that the rules are for, as in `convert`.
    candidates
        Encodings to choose from; each matrix may also be kept.
    window
        Tokens per window.
    progress
        Called with the name of the step, the tokens so far, and all tokens; it restarts for each candidate.

    Returns
    -------
    Tuning
        The rules and their cost.

    Raises
    ------
    UsageError
        The budget is below the smallest candidates, or the text is too short.
    """
    original = model if isinstance(model, File) else open_file(model)
    base = LanguageModel(original)
    windows = Windows(base.tokenizer, text, window)
    with tempfile.TemporaryDirectory(prefix="squish-tune-") as folder:
        check_budget(original, to, candidates, Path(folder), bpw)
        matrices = measure_candidates(base, original, windows, to, candidates, Path(folder), progress)
        chosen, frontier = allocate(matrices, bpw)
        rules = (
            KEEP,
            *(
                f"{pattern_of(name)}={option.spec}"
                for matrix, option in zip(matrices, chosen)
                for name in matrix.names
                if option.spec != KEEP
            ),
        )
        target = Path(folder, "tuned")
        convert(original, target, to, rules)
        divergence = evaluate(target, text=text, against=original, window=window).to_dict()["kl"]["mean"]
    return Tuning(rules, frontier[-1][0], divergence, tuple(frontier))


def check_budget(original: File, to: str, candidates: Iterable[str], folder: Path, bpw: float) -> None:
    """Raise UsageError, before anything runs, if the smallest candidates exceed the budget."""
    kept = convert(original, folder / "kept", to, KEEP, dry_run=True).steps
    plans = [kept]
    for spec in candidates:
        plans.append(convert(original, folder / "planned", to, [spec, *vector_rules(kept)], dry_run=True).steps)
    smallest: dict[str, float] = {}
    for steps in plans:
        for step in steps:
            if len(step.spec.shape) > 1:
                bits = 8 * step.size / max(step.spec.elements, 1)
                smallest[step.written] = min(bits, smallest.get(step.written, bits))
    least = min(smallest.values(), default=0.0)
    if least > bpw:
        raise budget_error(bpw, least)


def budget_error(bpw: float, least: float) -> UsageError:
    """Return the error about a budget below the smallest options."""
    return UsageError(
        "the budget cannot be met",
        code="budget",
        found=f"bpw={bpw:g}",
        expected=f"{least:.3f} or more",
        hint="Raise --target, or add a smaller encoding with --encode.",
    )


def measure_candidates(
    base: LanguageModel,
    original: File,
    windows: Windows,
    to: str,
    candidates: Iterable[str],
    folder: Path,
    progress: Progress | None,
) -> list[Matrix]:
    """Return the matrices that any candidate encodes, with their options."""
    options: dict[tuple[str, ...], list[Option]] = {}
    kept = {step.written: step for step in convert(original, folder / "kept", to, KEEP, dry_run=True).steps}
    vectors = vector_rules(kept.values())
    for number, spec in enumerate(candidates):
        path = folder / f"candidate{number}"
        sizes = {step.written: step.size for step in convert(original, path, to, [spec, *vectors]).steps}
        subject = LanguageModel(path)
        for group in measure_tensors(subject, base, windows, "tensor", progress=progress):
            if not group.distance.equal:
                names = tuple(
                    dict.fromkeys(source for name in group.tensors for source in sources_of(subject.file, name))
                )
                option = Option(spec, sum(sizes[name] for name in names), group.kl)
                options.setdefault(names, []).append(option)
        remove(path)
    matrices = []
    for names, encoded in options.items():
        keep = Option(KEEP, sum(kept[name].size for name in names), 0.0)
        elements = sum(kept[name].spec.elements for name in names)
        by_bytes = sorted((*encoded, keep), key=lambda option: (option.nbytes, option.kl))
        matrices.append(Matrix(names, elements, tuple(by_bytes)))
    return matrices


def allocate(matrices: Sequence[Matrix], bpw: float) -> tuple[list[Option], list[tuple[float, float]]]:
    """Return the option of each matrix, and the frontier; raise UsageError if the smallest exceed the budget."""
    chosen = [matrix.options[0] for matrix in matrices]
    elements = sum(matrix.elements for matrix in matrices)
    if not elements:
        raise UsageError("no candidate encodes any matrix of the model", code=ErrorCode.ENCODE)
    budget = bpw * elements / 8
    total = sum(option.nbytes for option in chosen)
    if total > budget:
        raise budget_error(bpw, total * 8 / elements)

    def point() -> tuple[float, float]:
        return total * 8 / elements, sum(option.kl for option in chosen)

    frontier = [point()]
    while True:
        steps = [
            ((chosen[index].kl - option.kl) / max(option.nbytes - chosen[index].nbytes, 1), index, option)
            for index, matrix in enumerate(matrices)
            for option in matrix.options
            if option.kl < chosen[index].kl and total - chosen[index].nbytes + option.nbytes <= budget
        ]
        if not steps:
            return chosen, frontier
        _, index, option = max(steps, key=lambda step: (step[0], -step[1]))
        total += option.nbytes - chosen[index].nbytes
        chosen[index] = option
        frontier.append(point())


def vector_rules(steps: Iterable[Any]) -> list[str]:
    """Return rules that keep the tensors that are not matrices."""
    return [f"{pattern_of(step.written)}={KEEP}" for step in steps if len(step.spec.shape) < 2]


def pattern_of(name: str) -> str:
    """Return the pattern that matches only this name."""
    return re.sub(r"[*?\[]", r"[\g<0>]", name)


def remove(path: Path) -> None:
    """Delete a file or a folder."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
