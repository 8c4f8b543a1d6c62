"""One conversion, carried out in many ways: the digests of what each of them writes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import oracles
from squish_convert.api import output_image, plan_conversion
from squish_convert.job import run as job_run
from squish_convert.job import worker
from squish_convert.job.journal import Journal, journal_path
from squish_convert.job.tasks import JobPartition

import squish_core as squish

TASK = 1 << 20
KILLED = "killed"
CLIENT = """
import sys
import squish_core as squish

if __name__ == "__main__":
    squish.convert(sys.argv[1], sys.argv[2], encode="q4_k", job=squish.Job("local:2", task_bytes=int(sys.argv[3])))
"""


def digests(folder: Path, quick: bool) -> list[str]:
    """The rows of the table; a row on the job that was killed and resumed."""
    source = folder / "in.safetensors"
    random, rows = np.random.default_rng(0), 512 if quick else 2048
    squish.save(
        source,
        {f"model.layers.{n}.mlp.up_proj.weight": random.standard_normal((rows, 4096), np.float32) for n in range(8)},
    )
    target = folder / "out.gguf"
    results = {"without a scheduler": digest(source, target, None)}
    for count in (1, 2, 4):
        results[f"`local:{count}`"] = digest(source, target, f"local:{count}")
    with patched_worker():
        results["`local:2`, a worker killed in a task"] = digest(source, target, "local:2")
    resumed, numbers = resumption(source, target)
    results["`local:2`, the client killed at 50 %, resumed"] = resumed
    for instructions in available_instructions():
        os.environ["SQUISH_CPU_INSTRUCTIONS"] = instructions
        results[f"`local:2`, {instructions} loops"] = digest(source, target, "local:2")
    os.environ.pop("SQUISH_CPU_INSTRUCTIONS", None)
    python = oracles.peer("dask").python
    words = [str(python), "-m", "benchmarks.job_cluster", str(source), str(folder)]
    answer = subprocess.run(words, cwd=oracles.ROOT, capture_output=True, text=True, check=True, timeout=300)
    results |= json.loads(answer.stdout.splitlines()[-1])
    common = len(set(results.values())) == 1
    return [
        f"{source.stat().st_size / 1e6:.0f} MB of f32 to q4_k: "
        + (f"{len(results)} ways, one SHA-256." if common else "**the digests differ.**"),
        "",
        "| | SHA-256 |",
        "|---|---|",
        *(f"| {name} | `{value[:16]}...` |" for name, value in results.items()),
        "",
        (
            f"The killed client left {numbers[0]} of {numbers[1]} tasks in its journal; the resumed job ran the other "
            f"{numbers[2]}."
        ),
        "",
    ]


def digest(source: Path, target: Path, scheduler: str | None, *, resume: bool = False, **more: Any) -> str:
    """The digest of what a conversion writes."""
    target.unlink(missing_ok=True)
    job = squish.Job(scheduler, task_bytes=TASK, resume=resume) if scheduler else None
    squish.convert(source, target, encode="q4_k", job=job, **more)
    return sha256(target.read_bytes()).hexdigest()


def kill_once(message: worker.Message) -> worker.TaskResult:
    """`write_task` that kills its process the first time it gets task 2."""
    mark = Path(message.job).with_name(KILLED)
    if message.task == 2 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return worker.write_task(message)


def patched_worker() -> AbstractContextManager[object]:
    """Jobs whose workers run `kill_once`."""
    return patch.object(job_run, "write_task", kill_once)


def resumption(source: Path, target: Path) -> tuple[str, tuple[int, int, int]]:
    """The digest of a job whose client was killed; the numbers of its tasks at the kill, of all, and run again."""
    target.unlink(missing_ok=True)
    with squish.open(source) as file:
        plan = plan_conversion(file, target, encode="q4_k")
        total = len(JobPartition(plan, output_image(plan, file), file, None).tasks(TASK))
    (target.parent / "client.py").write_text(CLIENT)
    client = subprocess.Popen([sys.executable, "client.py", str(source), str(target), str(TASK)], cwd=target.parent)
    path = journal_path(target)
    while client.poll() is None and not (path.exists() and path.read_bytes().count(b"\n") > total // 2):
        time.sleep(0.002)
    client.kill()
    client.wait()
    journal = Journal(path)
    journal.read()
    runs: list[int] = []
    progress = TaskCount(runs)
    value = digest(source, target, "local:2", resume=True, progress=progress)
    return value, (len(journal.entries), total, len(runs))


class TaskCount:
    """A progress object that counts tasks."""

    def __init__(self, runs: list[int]) -> None:
        self._runs = runs

    def __call__(self, tensor: str, written: int, total: int | None) -> None:
        """Bytes are of no interest."""

    def task_finished(self, worker: str, read: int, written: int, seconds: float) -> None:
        """Count a task."""
        self._runs.append(1)


def available_instructions() -> tuple[str, ...]:
    """Sets of instructions of this processor for which there are compiled loops."""
    from squish_cpu.library import library

    return tuple(library().instructions)
