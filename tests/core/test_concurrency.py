"""Threads: order, bounds, errors, SQUISH_THREADS, and that one module alone starts them."""

from __future__ import annotations

import ast
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import squish_core as squish
from squish_core.concurrency import Pool, map_in_order, prefetch, workers
from squish_core.errors import UsageError
from squish_core.io.system import cores

ROOT = Path(__file__).parents[2]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the threads that start."""
    names: list[str] = []
    start = threading.Thread.start

    def record(thread: threading.Thread) -> None:
        names.append(thread.name)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", record)
    return names


@pytest.fixture(params=["", "1", "2"])
def threads(request: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """SQUISH_THREADS; "" where it is not set."""
    monkeypatch.setenv("SQUISH_THREADS", request.param)
    return str(request.param)


def test_workers_are_the_cores_unless_the_variable_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SQUISH_THREADS", raising=False)
    assert workers() == cores()
    monkeypatch.setenv("SQUISH_THREADS", "3")
    assert (workers(), workers(2), workers(8)) == (3, 2, 3)


@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5", "99999", "9" * 5000, "\u0663"])
def test_a_bad_number_of_threads_is_a_usage_error(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQUISH_THREADS", value)
    with pytest.raises(UsageError) as error:
        workers()
    assert (error.value.code, error.value.expected) == ("usage", "1..1024")
    assert error.value.file is None


def test_a_bad_number_of_threads_stops_a_conversion_before_it_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SQUISH_THREADS", "many")
    with pytest.raises(UsageError) as error:
        squish.save(tmp_path / "out.safetensors", {"w": np.ones((2, 2), np.float32)})
    assert (error.value.code, error.value.file) == ("usage", None)
    assert not list(tmp_path.iterdir())


def test_results_come_in_order(threads: str) -> None:
    def work(number: int) -> int:
        time.sleep(0.002 if number % 3 == 0 else 0)
        return number * number

    assert list(map_in_order(work, range(40))) == [number * number for number in range(40)]
    with Pool(4) as pool:
        assert pool.map(work, range(20)) == [number * number for number in range(20)]


def test_items_are_taken_a_few_ahead_only(threads: str) -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for number in range(100):
            taken.append(number)
            yield number

    results = map_in_order(str, items(), most=2)
    assert next(results) == "0"
    assert len(taken) <= 3
    results.close()
    assert len(taken) <= 3


def test_results_ahead_stay_within_the_budget(threads: str) -> None:
    weights = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
    lock = threading.Lock()
    alive, peak = 0, 0

    def work(weight: int) -> int:
        nonlocal alive, peak
        with lock:
            alive += weight
            peak = max(peak, alive)
        return weight

    for weight in map_in_order(work, weights, most=4, weigh=lambda weight: weight, budget=9):
        with lock:
            alive -= weight
    assert peak <= 9


def test_an_error_comes_in_the_place_of_its_result(threads: str) -> None:
    results = map_in_order(lambda number: 1 // (2 - number), range(6))
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(ZeroDivisionError):
        next(results)
    ahead = prefetch(1 // (2 - number) for number in range(6))
    assert [next(ahead), next(ahead)] == [0, 1]
    with pytest.raises(ZeroDivisionError):
        next(ahead)


@pytest.mark.parametrize("ahead", [1, 3])
def test_prefetch_keeps_items_and_their_order(threads: str, ahead: int) -> None:
    assert list(prefetch(iter(range(50)), ahead)) == list(range(50))
    assert list(prefetch(iter([None, 0, None]), ahead)) == [None, 0, None]
    assert list(prefetch(iter(()), ahead)) == []


def test_stopping_early_leaves_no_thread(threads: str) -> None:
    before = set(threading.enumerate())
    for items in (prefetch(iter(range(50))), map_in_order(str, range(50))):
        next(items)
        items.close()  # type: ignore[union-attr]
    assert set(threading.enumerate()) <= before


def test_one_item_starts_no_thread(started: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SQUISH_THREADS", raising=False)
    assert list(map_in_order(str, [1])) == ["1"]
    assert not started


def model(folder: Path) -> Path:
    """A file whose tensors are of several panels, and large enough to be read in pieces."""
    rng = np.random.default_rng(0)
    path = folder / "model.safetensors"
    arrays = {f"model.layers.{number}.w": rng.standard_normal((1024, 2560), np.float32) for number in range(3)}
    squish.save(path, {**arrays, "norm": rng.standard_normal(256, np.float32)})
    return path


CONVERSIONS = [
    ("copy.safetensors", None), ("encoded.gguf", "q8_0"), ("folder.npydir", "int4"), ("packed.gguf.zst", None),
    ("frames.zt", "q4_0"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "encode"), CONVERSIONS)
def test_the_number_of_threads_changes_no_byte(
    name: str, encode: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = model(tmp_path)
    to = {"folder.npydir": "npydir", "frames.zt": "ztensor:encoding=zstd"}.get(name)
    written = []
    for threads in ("", "1", "3"):
        monkeypatch.setenv("SQUISH_THREADS", threads)
        target = tmp_path / f"{threads or 'default'}-{name}"
        report = squish.convert(source, target, to, encode)
        written.append((content(target), [step.quality and step.quality.to_dict() for step in report.steps]))
    assert written[0] == written[1] == written[2]


def content(target: Path) -> dict[str, bytes]:
    """Files of a target."""
    files = [target] if target.is_file() else sorted(path for path in target.rglob("*") if path.is_file())
    return {str(path.relative_to(target)): path.read_bytes() for path in files}


@pytest.mark.parametrize(("name", "encode"), CONVERSIONS)
def test_with_one_thread_none_is_started(
    name: str, encode: str | None, tmp_path: Path, started: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = model(tmp_path)
    to = {"folder.npydir": "npydir", "frames.zt": "ztensor:encoding=zstd"}.get(name)
    started.clear()
    monkeypatch.setenv("SQUISH_THREADS", "1")
    squish.convert(source, tmp_path / name, to, encode)
    with squish.open(tmp_path / name, to and to.partition(":")[0], mmap=False) as file:
        file.numpy(copy=True)
        for _ in squish.iter_layers(file):
            pass
    assert squish.verify(tmp_path / name, deep=True).ok
    assert not started


def test_threads_are_started_in_one_module_and_processes_in_another() -> None:
    homes = {"squish_core/concurrency.py": {"ThreadPoolExecutor", "Thread"}}
    homes["squish_core/schedulers/local.py"] = {"ProcessPoolExecutor"}
    folders = (ROOT / "squish_core", *ROOT.glob("plugins/*/src"))
    starters: dict[str, set[str]] = {}
    for path in sorted(path for folder in folders for path in folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
            if name in ("ThreadPoolExecutor", "ProcessPoolExecutor", "Thread"):
                starters.setdefault(path.relative_to(ROOT).as_posix(), set()).add(name)
    assert starters == homes
