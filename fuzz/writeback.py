"""Damage real files, and convert each that still opens with every writer: `python fuzz/writeback.py [--seconds N]`.

What is written must verify and be what the report states, or be refused and leave nothing behind
(`squish_testing.writeback`). Findings are lines of JSON in `.fuzz/writeback/findings-SEED.jsonl`; each says how to
run its case again (`--replay`). Totals are printed at the end.
"""

import argparse
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "helpers")]

import writeback_samples as samples  # noqa: E402
from squish_testing.mutations import mutant  # noqa: E402
from squish_testing.writeback import WritebackError, check_conversion  # noqa: E402

import squish_core as squish  # noqa: E402

HOME = ROOT / ".fuzz" / "writeback"
SECONDS_PER_CASE = 20
MEMORY = 6 << 30
FILE_SIZE = 1 << 28
LARGEST = 1 << 22
"""Elements of a file that is converted; larger ones are counted and left."""
REPORT_EVERY = 300
"""Seconds between lines with the totals so far."""
NUMBERS = 1_000_000_000
"""Mutants reserved for the workers that run at once; those started after a death take the next."""
HEADERS = (None, 256, 4096)
SPECIAL = tuple(
    bytes.fromhex(text)
    for text in (
        "0000c07f",
        "0000807f",
        "000080ff",
        "ffff7f7f",
        "01000000",
        "00000080",
        "007e",
        "007c",
        "00fc",
        "ff7b",
        "0100",
        "c07f",
        "807f",
        "7f7f",
        "7f",
        "ff",
        "00000000",
        "0000",
    )
)
"""NaN, infinities, the largest and the smallest number of f32, f16, bf16 and f8; zeros."""
COUNTS = ("mutants", "opened", "large", "written", "refused", "findings")


class Hang(BaseException):
    """A case that takes too long."""


def all_samples(extra: Path | None) -> dict[str, Path]:
    """Every readable file to damage: of the test data, made here, and of a folder of the caller's."""
    sources = samples.written_files(HOME / "archives")
    sources |= {f"made/{name}": path for name, path in samples.generated_files(HOME / "made").items()}
    if extra:
        files = samples.files_below(extra)
        sources |= {f"extra/{path.relative_to(extra)}": path for path in files}
    return samples.readable(sources)


def damaged(path: Path, seed: int, number: int, folder: Path) -> tuple[Path, str]:
    """A copy of a sample with some bytes of one file changed, in a new folder; the path to open, and that file."""
    chance = random.Random(f"{seed}:{number}:{path.name}")
    copy = folder / path.name
    if path.is_dir():
        shutil.copytree(path, copy)
        changed = chance.choice(sorted(each for each in copy.rglob("*") if each.is_file()))
    elif "-of-" in path.name or path.suffix == ".uqff":  # what lies beside it belongs to it
        shutil.copytree(path.parent, folder / "set")
        copy = changed = folder / "set" / path.name
    else:
        shutil.copy(path, copy)
        changed = copy
    data = changed.read_bytes()
    if data and chance.random() < 0.4:
        data = with_special(data, chance)
    else:
        data = mutant(data, number, seed, chance.choice(HEADERS))
    changed.chmod(0o644)
    changed.write_bytes(data)
    return copy, changed.relative_to(folder).as_posix()


def with_special(data: bytes, chance: random.Random) -> bytes:
    """One to four numbers replaced, at aligned places, by those that arithmetic treats apart."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4))):
        number = chance.choice(SPECIAL)
        at = chance.randrange(len(changed))
        at -= at % len(number)
        changed[at : at + len(number)] = number[: len(changed) - at]
    return bytes(changed)


def writers_of(case: dict, refused: bool) -> str | None:
    """The encoding to ask for where codes alone do not fit."""
    chance = random.Random(json.dumps(case, sort_keys=True))
    return chance.choice(samples.ENCODINGS) if refused or chance.random() < 0.1 else None


def scratch() -> tempfile.TemporaryDirectory[str]:
    """A folder that goes away; in memory where the system has such a place."""
    return tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None, prefix="writeback-")


def attempt(file: squish.File, to: str, encode: str | None) -> str:
    """One conversion into a fresh folder: "written" or "refused"; WritebackError or Hang."""
    with scratch() as folder:
        name = "target.mlpackage" if to.startswith("mlpackage") else "target"
        signal.alarm(SECONDS_PER_CASE)
        try:
            outcome = check_conversion(file, Path(folder) / name, to, encode)
        finally:
            signal.alarm(0)
    return "refused" if outcome.report is None else "written"


class Worker:
    """Cases of one process: mutants `first`, `first + step`, ... until the time is over."""

    def __init__(self, seed: int, first: int, step: int, seconds: float, extra: Path | None, log: Path) -> None:
        self.seed, self.number, self.step, self.log = seed, first, step, log
        self.until = time.monotonic() + seconds
        self.paths = all_samples(extra)
        self.counts: Counter[str] = Counter()
        self.seen: Counter[str] = Counter()

    def run(self) -> None:
        """All cases; totals go to a file after each mutant, with the case that is under way."""
        names = sorted(self.paths)
        while time.monotonic() < self.until:
            name = random.Random(f"{self.seed}/{self.number}").choice(names)
            self.mutant(name)
            self.number += self.step
            self.save(None)

    def mutant(self, name: str) -> None:
        """One damaged copy, with every writer."""
        self.counts["mutants"] += 1
        case = {"sample": name, "seed": self.seed, "number": self.number}
        self.save(case)
        with scratch() as folder:
            path, member = damaged(self.paths[name], self.seed, self.number, Path(folder))
            self.copy({**case, "member": member}, path)

    def copy(self, case: dict, path: Path) -> None:
        """A damaged copy: opened, and converted by every writer."""
        try:
            signal.alarm(SECONDS_PER_CASE)
            file = squish.open(path)
            size = sum(spec.elements for spec in file.index.tensors.values())
        except squish.SquishError as error:
            if error.code in ("plugin-bug", "memory"):
                self.note(case, error.code, error)
            return
        except (Exception, Hang) as error:
            self.note(case, "open", error)
            return
        finally:
            signal.alarm(0)
        self.counts["opened"] += 1
        if size > LARGEST:
            self.counts["large"] += 1
            return
        for writer, to in samples.WRITERS.items():
            encode = writers_of({**case, "writer": writer}, False)
            if self.conversion(case, file, to, encode) == "refused" and encode is None:
                self.conversion(case, file, to, writers_of({**case, "writer": writer}, True))
        file.close()

    def conversion(self, case: dict, file: squish.File, to: str, encode: str | None) -> str:
        """One writer: what came of it, counted and noted."""
        case = {**case, "to": to, "encode": encode}
        self.save(case)
        try:
            result = attempt(file, to, encode)
            self.counts[result] += 1
        except WritebackError as violation:
            result = violation.kind
            self.note(case, violation.kind, violation)
        except (Exception, Hang) as error:
            result = type(error).__name__.lower()
            self.note(case, result, error)
        return result

    def note(self, case: dict, kind: str, error: BaseException) -> None:
        """Write a finding down."""
        root: BaseException = error
        while root.__cause__ is not None:
            root = root.__cause__
        kind = "warning" if isinstance(root, Warning) else kind
        self.counts["findings"] += 1
        self.counts[f"finding {kind}"] += 1
        frames = traceback.extract_tb(root.__traceback__)
        ours = [f for f in frames if "squish" in f.filename and "testing" not in f.filename] or frames
        place = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else ""
        line = {"kind": kind, "place": place, "error": str(error)[:600], **case}
        with self.log.open("a") as log:
            log.write(json.dumps(line) + "\n")

    def save(self, case: dict | None) -> None:
        """The totals so far, for the parent."""
        state = self.log.with_suffix(f".worker-{os.getpid()}")
        unfinished = self.log.with_suffix(f".unfinished-{os.getpid()}")
        unfinished.write_text(json.dumps({"counts": self.counts, "case": case}))
        os.replace(unfinished, state)


def limit_this_process() -> None:
    """Memory and file size are bounded; a case that takes too long is a Hang."""

    def too_long(*_: object) -> None:
        raise Hang(f"more than {SECONDS_PER_CASE} s")

    signal.signal(signal.SIGALRM, too_long)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_SIZE, FILE_SIZE))
    warnings.simplefilter("error")
    warnings.simplefilter("ignore", ResourceWarning)


def replay(line: str, extra: Path | None) -> int:
    """Run one finding again: open and convert it, with the whole traceback."""
    case = json.loads(line)
    with scratch() as folder:
        path, member = damaged(all_samples(extra)[case["sample"]], case["seed"], case["number"], Path(folder))
        print(f"{case['sample']}: {member} is damaged", flush=True)
        with squish.open(path) as file:
            if "to" in case:
                print(attempt(file, case["to"], case["encode"]))
    return 0


def supervise(options: argparse.Namespace) -> int:
    """Run the workers, each started again when it dies, until the time is over or SIGTERM comes; print totals."""
    log = HOME / f"findings-{options.seed}.jsonl"
    HOME.mkdir(parents=True, exist_ok=True)
    for old in HOME.glob(f"findings-{options.seed}.*"):
        old.unlink()
    all_samples(options.files)  # made once
    until, reported = time.monotonic() + options.seconds, time.monotonic()
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    totals: Counter[str] = Counter()
    started = 0
    running: list[subprocess.Popen] = []
    while running or (time.monotonic() < until and not stopped):
        for worker in [worker for worker in running if worker.poll() is not None]:
            running.remove(worker)
            totals += collect(log, worker, bool(stopped))
        left = until - time.monotonic()
        while len(running) < options.jobs and left > 0 and not stopped:
            command = [sys.executable, __file__, "--worker", f"{started},{options.jobs}", "--seed", str(options.seed)]
            command += ["--seconds", str(left), *(["--files", str(options.files)] if options.files else [])]
            running.append(subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}))
            started += 1
        for worker in running if stopped else ():
            worker.terminate()
        if time.monotonic() - reported > REPORT_EVERY:
            reported = time.monotonic()
            show(options.seed, sum((saved(log, worker)[0] for worker in running), totals))
        time.sleep(1)
    show(options.seed, totals)
    return 1 if totals["findings"] else 0


def show(seed: int, totals: Counter[str]) -> None:
    """Print totals, the findings by kind."""
    kinds = ", ".join(f"{key}: {totals[key]}" for key in sorted(set(totals).difference(COUNTS)))
    print(f"seed {seed}: " + ", ".join(f"{totals[key]:,} {key}" for key in COUNTS) + f" ({kinds})", flush=True)


def saved(log: Path, worker: subprocess.Popen) -> tuple[Counter[str], dict]:
    """The totals of a worker and the case under way, as last saved."""
    try:
        state = json.loads(log.with_suffix(f".worker-{worker.pid}").read_text())
    except (OSError, ValueError):
        return Counter(), {}
    return Counter(state["counts"]), state["case"] or {}


def collect(log: Path, worker: subprocess.Popen, stopped: bool) -> Counter[str]:
    """The totals of a worker that ended; if it died, its last case is a finding."""
    counts, case = saved(log, worker)
    if worker.returncode and not stopped:
        counts["findings"] += 1
        counts["finding died"] += 1
        line = {"kind": "died", "place": "", "error": f"exit status {worker.returncode}", **case}
        with log.open("a") as file:
            file.write(json.dumps(line) + "\n")
    log.with_suffix(f".worker-{worker.pid}").unlink(missing_ok=True)
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--files", type=Path, help="a folder with further files to damage")
    parser.add_argument("--replay", metavar="LINE", help="run one finding again")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.replay:
        limit_this_process()
        return replay(options.replay, options.files)
    if not options.worker:
        return supervise(options)
    limit_this_process()
    start, jobs = map(int, options.worker.split(","))
    log = HOME / f"findings-{options.seed}.jsonl"
    Worker(options.seed, NUMBERS * (start // jobs) + start % jobs, jobs, options.seconds, options.files, log).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
