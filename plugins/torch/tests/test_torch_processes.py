"""Evaluations and activation statistics in worker processes: the numbers of one process, bit for bit."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import pytest
import squish_torch
from attrs import evolve
from squish_cli import main
from squish_torch.evaluation import activations, sensitivity, workers
from squish_torch.evaluation.language_model import LanguageModel
from squish_torch.evaluation.windows import Windows
from tiny_models import TEXT, tiny_llama, with_tokenizer

import squish_core as squish
from squish_core.api import SquishError, UsageError
from squish_core.schedulers.local import LocalScheduler

WINDOW = 32


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("processes")
    (root / "text.txt").write_text(TEXT[:400])
    with_tokenizer(tiny_llama(root / "hf", vocab_size=257, num_hidden_layers=1))
    squish.convert(root / "hf", root / "q4.zt", encode=["q4_0", "*norm*=keep", "*embed*=q8_0"])
    return root


def options(folder: Path, **more: Any) -> dict[str, Any]:
    return {"text": folder / "text.txt", "window": WINDOW, "against": folder / "hf", "by": "tensor", **more}


@pytest.fixture(scope="module")
def serial(folder: Path) -> dict[str, Any]:
    return squish_torch.evaluate(folder / "q4.zt", **options(folder)).to_dict()


def run_in_threads(
    self: LocalScheduler, address: str, function: Callable[[Any], Any], items: Sequence[Any], memory: int = 0
) -> Iterator[tuple[int, Any]]:
    """`LocalScheduler.map` with threads, as a Dask worker may have."""
    with ThreadPoolExecutor(3) as pool:
        numbers = {pool.submit(function, item): number for number, item in enumerate(items)}
        for future in as_completed(numbers):
            yield numbers[future], future.result()


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads instead of processes, which take long to start."""
    monkeypatch.setattr(LocalScheduler, "map", run_in_threads)


def test_processes_measure_what_each_tensor_costs(folder: Path, serial: dict[str, Any]) -> None:
    calls: list[tuple[str, int, int]] = []
    scheduled = squish_torch.evaluate(
        folder / "q4.zt", **options(folder, scheduler="local:2", progress=lambda *call: calls.append(call))
    )
    assert scheduled.to_dict() == serial
    assert len({label for label, _, _ in calls}) == 1 + sum(cost["kl"] > 0 for cost in serial["per_tensor"])


def test_processes_sum_activations(folder: Path, tmp_path: Path) -> None:
    text = {"text": folder / "text.txt", "window": WINDOW}
    for name, more in (("serial", {}), ("scheduled", {"scheduler": "local:2"})):
        squish_torch.collect_activations(folder / "hf", tmp_path / f"{name}.gguf", **text, **more)
    assert (tmp_path / "scheduled.gguf").read_bytes() == (tmp_path / "serial.gguf").read_bytes()
    with squish.open(tmp_path / "serial.gguf") as file:
        counts = [file[name].numpy().item() for name in file if name.endswith(".counts")]
    assert set(counts) == {400 // WINDOW * WINDOW}  # three pieces


@pytest.mark.usefixtures("threads")
def test_the_commands_take_a_scheduler(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--text", str(folder / "text.txt"), "--window", str(WINDOW), "--scheduler", "local:1", "--quiet"]
    assert main(["eval", str(folder / "q4.zt"), "--against", str(folder / "hf"), "--by", "kind", *words]) == 0
    assert "self_attn.q_proj" in capsys.readouterr().out
    assert main(["activations", str(folder / "hf"), "-o", str(tmp_path / "imatrix.gguf"), *words]) == 0
    squish_torch.collect_activations(folder / "hf", tmp_path / "serial.gguf", text=folder / "text.txt", window=WINDOW)
    assert (tmp_path / "imatrix.gguf").read_bytes() == (tmp_path / "serial.gguf").read_bytes()
    assert main(["eval", str(folder / "q4.zt"), *words]) == 2


class Killed(Exception):  # noqa: N818 - stands for a signal
    """Raised by a progress function."""


@pytest.mark.usefixtures("threads")
def test_a_scheduled_run_continues_without_a_scheduler(folder: Path, tmp_path: Path, serial: dict[str, Any]) -> None:
    calls: list[int] = []

    def progress(*call: Any) -> None:
        calls.append(1)
        if len(calls) == 30:
            raise Killed

    state = tmp_path / "state.json"
    with pytest.raises(Killed):
        squish_torch.evaluate(folder / "q4.zt", **options(folder, resume=state, scheduler="local:2", progress=progress))
    assert squish_torch.evaluate(folder / "q4.zt", **options(folder, resume=state)).to_dict() == serial


@pytest.mark.usefixtures("threads")
def test_threads_of_a_worker_do_not_disturb_each_other(folder: Path, tmp_path: Path, serial: dict[str, Any]) -> None:
    text = {"text": folder / "text.txt", "window": WINDOW}
    squish_torch.collect_activations(folder / "hf", tmp_path / "serial.gguf", **text)
    assert squish_torch.evaluate(folder / "q4.zt", **options(folder, scheduler="local")).to_dict() == serial
    squish_torch.collect_activations(folder / "hf", tmp_path / "threads.gguf", **text, scheduler="local")
    assert (tmp_path / "threads.gguf").read_bytes() == (tmp_path / "serial.gguf").read_bytes()


def kill_once(run: Any) -> Any:
    """`run_group` that kills its process the first time it gets the third window."""
    mark = Path(run.setup.text).with_name("killed")
    if run.window == 2 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return sensitivity.run_group(run)


def test_a_killed_worker_costs_its_runs(folder: Path, serial: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    run = workers.Processes.map
    monkeypatch.setattr(workers.Processes, "map", lambda self, _, items: run(self, kill_once, items))
    scheduled = squish_torch.evaluate(folder / "q4.zt", **options(folder, scheduler="local:1"))
    assert (folder / "killed").exists()
    assert scheduled.to_dict() == serial


@pytest.mark.parametrize(("more", "code"), [({"by": None}, "usage"), ({"scheduler": "cluster"}, "usage")])
def test_an_invalid_argument_is_refused_before_anything_runs(folder: Path, more: dict[str, Any], code: str) -> None:
    calls: list[Any] = []
    arguments = options(folder, scheduler="local:1", progress=lambda *call: calls.append(call)) | more
    with pytest.raises(UsageError) as caught:
        squish_torch.evaluate(folder / "q4.zt", **arguments)
    assert (caught.value.code, calls) == (code, [])


def test_a_model_in_memory_is_refused(folder: Path, tmp_path: Path) -> None:
    model = squish.open((folder / "q4.zt").read_bytes(), assets=folder / "hf")
    with pytest.raises(UsageError):
        squish_torch.evaluate(model, **options(folder, scheduler="local:1"))
    with pytest.raises(UsageError):
        squish_torch.collect_activations(
            model, tmp_path / "imatrix.gguf", text=folder / "text.txt", window=WINDOW, scheduler="local:1"
        )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("change", "code"), [({"tokens": "0" * 64}, "changed"), ({"versions": (("torch", "1.0"),)}, "lock")]
)
def test_a_worker_that_finds_something_else_is_refused(folder: Path, change: dict[str, Any], code: str) -> None:
    model = LanguageModel(folder / "hf")
    setup = workers.Setup.of([model], None, Windows(model.tokenizer, folder / "text.txt", WINDOW))
    workers.load_models(setup)
    with pytest.raises(SquishError) as caught:
        activations.run_piece(activations.Piece(evolve(setup, **change), 0))
    assert caught.value.code == code
