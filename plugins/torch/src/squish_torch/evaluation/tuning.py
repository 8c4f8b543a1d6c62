"""`squish tune`: choose an encoding per matrix by measured divergence, within a budget of bits per weight or bytes."""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from attrs import field, frozen
from squish_convert.api import convert

from squish_core.api import ErrorCode, File, UsageError
from squish_core.api import open as open_file

from .activations import sources_of
from .language_model import LanguageModel
from .lockstep import evaluate
from .sensitivity import groups_of, measure_tensors
from .state_file import StateFile, identity_of
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
    size
        Bytes of all files of the resulting model; None if they are known only after it is written.
    kl
        Measured mean divergence of the resulting model.
    frontier
        Bits per weight and the sum of the matrices' own divergences, after each step.
    """

    rules: tuple[str, ...]
    bpw: float
    size: int | None
    kl: float
    frontier: tuple[tuple[float, float], ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        frontier = [{"bits": bpw, "kl": kl} for bpw, kl in self.frontier]
        return {"rules": list(self.rules), "bits": self.bpw, "size": self.size, "kl": self.kl, "frontier": frontier}

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
    bpw: float | None = None,
    size: int | None = None,
    text: str | Path,
    to: str = "ztensor",
    candidates: Sequence[str] = CANDIDATES,
    window: int = 512,
    resume: str | Path | None = None,
    progress: Progress | None = None,
    announce: Callable[[float], None] | None = None,
) -> Tuning:
    """Choose an encoding for each matrix of a model, by the divergence that it causes on a text.

    Each matrix starts at the fewest bytes; the budget then goes to the largest reduction of divergence per byte.

    Parameters
    ----------
    model
        A file or folder of any format, or an open `File`: the base.
    bpw
        Most bits per weight of the matrices, scales included; or
    size
        most bytes of all files of the resulting model, headers included.
    text
        File with the text, in UTF-8.
    to
        Format that the rules are for, as in `convert`.
    candidates
        Encodings to choose from; each matrix may also be kept.
    window
        Tokens per window.
    resume
        A state file, rewritten after each run of a matrix. If it exists, the measurement continues after the last one
        in it; another budget takes no further runs.
    progress
        Called with the name of the step, the tokens so far, and all tokens; it restarts for each candidate.
    announce
        Called once, before the first matrix is measured, with the seconds that it will take, by the time of a run of
        the base.

    Returns
    -------
    Tuning
        The rules and their cost.

    Raises
    ------
    FormatError
        The state file is not one.
    UsageError
        There is not one budget, it is below the smallest candidates, the text is too short, or the state file belongs
        to another measurement.
    """
    if (bpw is None) == (size is None):
        raise UsageError("one budget is needed", expected="bpw or size", code=ErrorCode.USAGE)
    original = model if isinstance(model, File) else open_file(model)
    base = LanguageModel(original)
    windows = Windows(base.tokenizer, text, window)
    with tempfile.TemporaryDirectory(prefix="squish-tune-") as folder:
        goal = Goal(original, to, Path(folder), bpw, size)
        check_budget(goal, candidates)
        state = None
        if resume is not None:
            settings = {"tokens": windows.digest, "window": window, "to": to, "candidates": list(candidates)}
            state = StateFile(resume, identity_of({"base": original}, settings))
        measurement = Measurement(base, windows, goal, state, progress)
        if announce is not None:
            announce(measurement.seconds(candidates))
        matrices = measurement.matrices(candidates)
        chosen, frontier = goal.allocate(matrices)
        rules = rules_of(matrices, chosen)
        target = Path(folder, "tuned")
        converted = convert(original, target, to, rules)
        divergence = evaluate(target, text=text, against=original, window=window).to_dict()["kl"]["mean"]
    return Tuning(rules, frontier[-1][0], converted.size, divergence, tuple(frontier))


Allotment = tuple[list[Option], list[tuple[float, float]]]
"""The option of each matrix, and the frontier."""


@frozen
class Goal:
    """What the result may cost: bits per weight of the matrices (`bpw`), or bytes of all files (`size`)."""

    original: File
    to: str
    folder: Path
    bpw: float | None = None
    size: int | None = None

    def refusal(self, least: str) -> UsageError:
        """Return the error about a budget below the smallest options."""
        return UsageError(
            "the budget cannot be met",
            code="budget",
            found=f"bpw={self.bpw:g}" if self.size is None else f"size={self.size}",
            expected=f"{least} or more",
            hint="Raise --target, or add a smaller encoding with --encode.",
        )

    def plan(self, rules: Iterable[str]) -> Any:
        """Return the report of a conversion that is not carried out."""
        return convert(self.original, self.folder / "planned", self.to, list(rules), dry_run=True)

    def nbytes(self, rules: Iterable[str]) -> int:
        """Return the bytes of all files that these rules write."""
        size = self.plan(rules).size
        if size is None:
            raise UsageError(
                f"the size of a {self.to} target is known only after it is written",
                found=f"size={self.size}",
                code=ErrorCode.USAGE,
                hint="Use --target bpw=N.",
            )
        return int(size)

    def allocate(self, matrices: Sequence[Matrix]) -> Allotment:
        """Return the options of matrices within the budget; raise UsageError if the smallest exceed it."""
        elements = sum(matrix.elements for matrix in matrices)
        if not elements:
            raise UsageError("no candidate encodes any matrix of the model", code=ErrorCode.ENCODE)
        chosen, frontier = allocate(matrices, 0)
        stored = sum(option.nbytes for option in chosen)
        if self.bpw is not None:
            if stored > self.bpw * elements / 8:
                raise self.refusal(f"{stored * 8 / elements:.3f}")
            return allocate(matrices, self.bpw * elements / 8)
        assert self.size is not None
        least = total = self.nbytes(rules_of(matrices, chosen))
        if least > self.size:
            raise self.refusal(f"size={least}")
        while True:  # what is beside the tensors depends a little on the choice
            room = stored + self.size - total
            chosen, frontier = allocate(matrices, room)
            total = self.nbytes(rules_of(matrices, chosen))
            if total <= self.size:
                return chosen, frontier
            stored = sum(option.nbytes for option in chosen)


def check_budget(goal: Goal, candidates: Iterable[str]) -> None:
    """Raise UsageError, before anything runs, if the smallest candidates exceed the budget."""
    kept = goal.plan([KEEP])
    vectors = vector_rules(kept.steps)
    smallest: dict[str, tuple[int, float, str]] = {}
    for spec, plan in [(KEEP, kept), *((spec, goal.plan([spec, *vectors])) for spec in candidates)]:
        for step in plan.steps:
            if len(step.spec.shape) > 1:
                option = (step.size, 8 * step.size / max(step.spec.elements, 1), f"{pattern_of(step.name)}={spec}")
                smallest[step.name] = min(option, smallest.get(step.name, option))
    if goal.bpw is not None:
        least = min((bits for _, bits, _ in smallest.values()), default=0.0)
        if least > goal.bpw:
            raise goal.refusal(f"{least:.3f}")
    elif (
        goal.size is not None and (least := goal.nbytes([KEEP, *(rule for *_, rule in smallest.values())])) > goal.size
    ):
        raise goal.refusal(f"size={least}")


@frozen
class Measurement:
    """Measures the divergence of each matrix of a base in each candidate, and saves it in a state file."""

    base: LanguageModel
    windows: Windows
    goal: Goal
    state: StateFile | None = None
    progress: Progress | None = None
    kept: dict[str, Any] = field(init=False)

    @kept.default
    def _kept(self) -> dict[str, Any]:
        return {step.written: step for step in self.goal.plan([KEEP]).steps}

    def seconds(self, candidates: Sequence[str]) -> float:
        """Return how long `matrices` and the evaluation of the result will take."""
        matrices = sum(
            any(len(self.base.file[name].shape) > 1 for name in group.tensors)
            for group in groups_of(self.base, self.base, "tensor")
        )
        every, done = (matrices + 1) * len(self.windows), 0
        for spec in candidates:
            if self.state is not None:
                finished = self.state.load(section_of(spec))
                done += every if "options" in finished else finished.get("runs", 0)
        self.base.logits(self.windows[0])  # the first run loads weights
        started = time.perf_counter()
        self.base.logits(self.windows[0])
        runs = every * len(candidates) - done + 2 * len(self.windows)
        return (time.perf_counter() - started) * runs

    def matrices(self, candidates: Iterable[str]) -> list[Matrix]:
        """Return the matrices that any candidate encodes, with their options."""
        options: dict[tuple[str, ...], list[Option]] = {}
        for spec in candidates:
            for sources, option in self.options(spec):
                options.setdefault(tuple(sources), []).append(option)
        matrices = []
        for names, encoded in options.items():
            keep = Option(KEEP, sum(self.kept[name].size for name in names), 0.0)
            elements = sum(self.kept[name].spec.elements for name in names)
            by_bytes = sorted((*encoded, keep), key=lambda option: (option.nbytes, option.kl))
            matrices.append(Matrix(names, elements, tuple(by_bytes)))
        return matrices

    def options(self, spec: str) -> list[tuple[list[str], Option]]:
        """Return the option of each matrix that a candidate encodes: from the state file, or measured now."""
        measured = self.state.load(section_of(spec)).get("options") if self.state else None
        if measured is None:
            measured = self.measured(spec)
            if self.state is not None:
                self.state.save(section_of(spec), {"options": measured})
        return [(names, Option(spec, nbytes, kl)) for names, nbytes, kl in measured]

    def measured(self, spec: str) -> list[tuple[list[str], int, float]]:
        """Return the names, bytes and divergence of each matrix that a candidate encodes."""
        path = self.goal.folder / "candidate"
        rules = [spec, *vector_rules(self.kept.values())]
        sizes = {step.written: step.size for step in convert(self.goal.original, path, self.goal.to, rules).steps}
        subject, found = LanguageModel(path), []
        groups = measure_tensors(
            subject, self.base, self.windows, "tensor", self.state, progress=self.progress, section=section_of(spec)
        )
        for group in groups:
            if not group.distance.equal:
                names = [source for name in group.tensors for source in sources_of(subject.file, name)]
                unique = list(dict.fromkeys(names))
                found.append((unique, sum(sizes[name] for name in unique), group.kl))
        remove(path)
        return found


def section_of(spec: str) -> str:
    """Return the section of the state file for a candidate."""
    return f"candidate {spec}"


def rules_of(matrices: Sequence[Matrix], chosen: Sequence[Option]) -> tuple[str, ...]:
    """Return the rules that encode matrices with these options."""
    return (
        KEEP,
        *(
            f"{pattern_of(name)}={option.spec}"
            for matrix, option in zip(matrices, chosen)
            for name in matrix.names
            if option.spec != KEEP
        ),
    )


def allocate(matrices: Sequence[Matrix], budget: float) -> Allotment:
    """Return the options for a budget of bytes; the smallest, if they exceed it."""
    chosen = [matrix.options[0] for matrix in matrices]
    elements = sum(matrix.elements for matrix in matrices)
    total = sum(option.nbytes for option in chosen)

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
