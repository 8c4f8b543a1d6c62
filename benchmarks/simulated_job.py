"""A job of 160 shards and 10^5 tensors: all of it is real but the bytes of tensors and what workers do with them."""

from __future__ import annotations

import json
import pickle
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from squish_convert.api import job_document, plan_conversion
from squish_convert.job import run as job_run
from squish_convert.job.document import dumps
from squish_convert.job.options import TASK_BYTES
from squish_convert.job.tasks import JobPartition, Task
from squish_convert.job.worker import JobDescription, PanelError, TaskResult, opened_job, read_task

import squish_core as squish
from benchmarks.data import write_header
from benchmarks.job_model import JobFacts, Rates, estimate
from squish_core import dtypes
from squish_core.api import Scheduler, SchedulerInfo, hookimpl

HIDDEN, EXPERT, LAYERS, EXPERTS, DENSE = 7168, 2048, 62, 256, 3
"""Sizes of DeepSeek V3, with the layer that predicts a second token."""
SHARD = 4_220_000_000
DIGEST = "0" * 64
STARTS: list[float] = []
"""When the first task of each job was sent."""


class Simulated(Scheduler):
    """Answers as workers would, without reading or writing a byte of a tensor."""

    def map(
        self, address: str, function: Callable[[Any], Any], items: Sequence[Any], memory: int = 0
    ) -> Iterator[tuple[int, Any]]:
        STARTS.append(time.perf_counter())
        if function is read_task:
            yield from ((number, DIGEST) for number in range(len(items)))
            return
        job: JobDescription = pickle.loads(Path(items[0].job).read_bytes())
        for number, item in enumerate(items):
            errors = [
                PanelError(piece.step, piece.start, 0.1, 1.0, 100.0, 100.0, 0)
                for piece in job.tasks[item.task].pieces
                if job.plan.steps[piece.step].is_lossy
            ]
            yield (
                number,
                TaskResult(
                    task=item.task,
                    read=0,
                    nbytes=256 << 20,
                    sha256=DIGEST,
                    errors=tuple(errors),
                    worker="simulated:1",
                    seconds=0.0,
                ),
            )


@hookimpl
def squish_schedulers() -> list[SchedulerInfo]:
    """The scheduler of this module."""
    return [SchedulerInfo(id="simulated", title="no work", factory="benchmarks.simulated_job:Simulated")]


def simulated(quick: bool, rates: Rates) -> str:
    """A full-size job; only the bytes of tensors are simulated. Then the estimate of the job on many machines."""
    lines, jobs = [], []
    with tempfile.TemporaryDirectory(prefix="squish-") as folder, sparse_output():
        root = Path(folder)
        source = root / "checkpoint"
        stored = sparse_checkpoint(source, 5 if quick else LAYERS)
        registry = squish.Registry(extra=[SimpleNamespace(squish_schedulers=squish_schedulers)])
        for title, target, arguments in (
            (
                "copied into 5 GB shards",
                "copy",
                {"to": "safetensors:max_shard_size=5GB", "source_format": "safetensors"},
            ),
            ("FP8 to q4_k, one GGUF file", "out.gguf", {"encode": "q4_k", "requantize": True, "rename": "keep"}),
        ):
            rows, facts = one_job(title, source, root / target, registry, **arguments)
            lines += rows
            jobs.append(facts)
    shards, tensors, nbytes = stored
    head = f"{shards} sparse files of {nbytes / 1e9:.0f} GB with {tensors:,} tensors, as DeepSeek V3 has them."
    return "\n".join(
        ("## A simulated full-size job", "", head, "", "| | |", "|---|---|", *lines, "", *estimate(rates, jobs), "")
    )


def one_job(
    title: str,
    source: Path,
    target: Path,
    registry: Any,
    source_format: str | None = None,
    **arguments: Any,
) -> tuple[list[str], JobFacts]:
    """Rows with the times of a job's steps, and what the model of the job needs."""
    clock, references = Clock(), Path("/proc/self/clear_refs")
    if references.exists():
        references.write_text("5")  # sets the peak to what is resident now
    with squish.open(source, source_format, registry=registry) as file:
        clock.lap("open")
        to, encode = arguments.get("to"), arguments.get("encode")
        plan = plan_conversion(
            file, target, to, encode, rename=arguments.get("rename"), requantize=arguments.get("requantize", False)
        )
        clock.lap("plan")
        document = job_document(plan, file, {"src": "a", "dst": "b"})
        size = len(dumps(document))
        clock.lap("document")
        started = time.perf_counter()
        with suppress(KeyboardInterrupt):
            squish.convert(file, target, job="simulated", registry=registry, progress=interruption(target), **arguments)
        fresh = STARTS[-1] - started
        clock.lap("half of the job, plan included")
        started = time.perf_counter()
        STARTS.clear()
        squish.convert(file, target, job=squish.Job("simulated", resume=True), registry=registry, **arguments)
        resumed = STARTS[0] - started
        clock.lap("the other half, resumed")
        plan_tasks, nbytes, opening = worker_opening(file, plan, target)
        tensors = len(file)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    facts = JobFacts(
        title=title,
        tasks=len(plan_tasks),
        read=sum(step.stored for step in plan.steps),
        written=plan.size or 0,
        encoded=sum(step.spec.elements for step in plan.steps if step.action == "encode"),
        client=fresh,
        worker=opening,
    )
    return [
        f"| **{title}** | {tensors:,} tensors |",
        *(f"| {name} | {seconds:.1f} s |" for name, seconds in clock.laps.items()),
        f"| first task sent: of the new job, of the resumed job | {fresh:.1f} s, {resumed:.1f} s |",
        f"| plan as JSON | {size / 1e6:.0f} MB |",
        f"| {len(plan_tasks):,} tasks; a worker reads the job of | {nbytes / 1e6:.0f} MB |",
        f"| and has it open after | {opening:.1f} s |",
        f"| peak memory of the client | {peak / 1e6:.0f} MB |",
    ], facts


def interruption(target: Path) -> Callable[..., None]:
    """A progress function that interrupts a job after half of its tasks."""
    tasks = 0

    def progress(tensor: str, written: int, total: int) -> None:
        nonlocal tasks
        tasks += 1
        if tasks > total // TASK_BYTES // 2:
            raise KeyboardInterrupt

    return progress


def worker_opening(file: squish.File, plan: Any, target: Path) -> tuple[tuple[Task, ...], int, float]:
    """The tasks of a job, the bytes of its description, and the seconds until a worker has it open."""
    from squish_convert.job.worker import canaries
    from squish_convert.plan import output_image

    image = output_image(plan, file)
    document = job_document(plan, file, {"src": "a", "dst": "b"})
    partition = JobPartition(plan, image, file, None)
    job = JobDescription(
        plan=plan,
        image=image,
        source=str(file.path),
        format=file.format,
        assets=None,
        activations=None,
        limits=file.limits,
        pins=document["source"]["files"],
        lock=document["lock"],
        canaries=canaries(plan, file, None),
        files=tuple("x" for _ in image.files),
        tasks=partition.tasks(TASK_BYTES),
    )
    data = pickle.dumps(job, protocol=5)
    path = target.with_name("job")
    path.write_bytes(data)
    started = time.perf_counter()
    opened_job(str(path), sha256(data).hexdigest())
    seconds = time.perf_counter() - started
    opened_job.cache_clear()
    return job.tasks, len(data), seconds


class Clock:
    """Seconds between laps."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        """End a lap."""
        now = time.perf_counter()
        self.laps[name], self._last = now - self._last, now


@contextmanager
def sparse_output() -> Iterator[None]:
    """Sparse files need no space, and the digests of their bytes are those of the simulation."""
    digest = job_run.written_digest

    def written(*arguments: Any) -> str:
        digest(*arguments)
        return DIGEST

    with patch.object(job_run, "check_space"), patch.object(job_run, "written_digest", written):
        yield


def sparse_checkpoint(folder: Path, layers: int) -> tuple[int, int, int]:
    """Shards with true headers and sizes, and holes for data; the numbers of shards, tensors and bytes."""
    folder.mkdir()
    shards, shard, size, total = list[dict[str, Any]](), dict[str, Any](), 0, 0
    for name, dtype, shape in tensors_of(layers):
        nbytes = dtypes.nbytes({"F8_E4M3": "f8_e4m3", "BF16": "bf16", "F32": "f32"}[dtype], shape)
        if shard and size + nbytes > SHARD:
            shards.append(shard)
            shard, size = {}, 0
        shard[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [size, size + nbytes]}
        size += nbytes
        total += nbytes
    shards.append(shard)
    weight_map: dict[str, str] = {}
    for number, header in enumerate(shards, 1):
        name = f"model-{number:05}-of-{len(shards):06}.safetensors"
        with open(folder / name, "wb") as file:
            write_header(file, header)
            file.truncate(file.tell() + max(entry["data_offsets"][1] for entry in header.values()))
        weight_map |= dict.fromkeys(header, name)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    fp8 = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
    (folder / "config.json").write_text(json.dumps({"model_type": "acme", "quantization_config": fp8}))
    return len(shards), len(weight_map), total


def tensors_of(layers: int) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Names, dtypes and shapes."""
    yield "model.embed_tokens.weight", "BF16", (129280, HIDDEN)
    for layer in range(layers):
        base = f"model.layers.{layer}"
        yield f"{base}.input_layernorm.weight", "BF16", (HIDDEN,)
        yield f"{base}.post_attention_layernorm.weight", "BF16", (HIDDEN,)
        shapes = {
            "q_a_proj": (1536, HIDDEN), "q_b_proj": (24576, 1536), "kv_b_proj": (32768, 512), "o_proj": (HIDDEN, 16384),
        }  # fmt: skip
        yield from scaled({f"{base}.self_attn.{name}": shape for name, shape in shapes.items()})
        for expert in range(EXPERTS + 1 if layer >= DENSE else 1):
            prefix = f"{base}.mlp" if layer < DENSE else f"{base}.mlp.experts.{expert}"
            width = 18432 if layer < DENSE else EXPERT
            yield from scaled(
                {
                    f"{prefix}.gate_proj": (width, HIDDEN),
                    f"{prefix}.up_proj": (width, HIDDEN),
                    f"{prefix}.down_proj": (HIDDEN, width),
                }
            )
    yield "model.norm.weight", "BF16", (HIDDEN,)
    yield "lm_head.weight", "BF16", (129280, HIDDEN)


def scaled(shapes: dict[str, tuple[int, int]]) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """FP8 weights with a scale for each block of 128 x 128."""
    for name, (rows, columns) in shapes.items():
        yield f"{name}.weight", "F8_E4M3", (rows, columns)
        yield f"{name}.weight_scale_inv", "F32", (-(-rows // 128), -(-columns // 128))
