"""Files that are cut, disks that fail, and links that lead nowhere, while a file is open."""

from __future__ import annotations

import errno
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toys

import squish_core as squish
from squish_core.api import FormatError, SquishError, TruncatedError
from squish_core.io.local import open_source
from squish_core.plugins.registry import Registry

TESTS = Path(__file__).parents[1]
DATA = TESTS / "data"
SAMPLES = sorted(path.name for path in DATA.glob("sample.*"))


def run(script: str, *argv: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(TESTS / "helpers")}
    command = [sys.executable, "-c", script, *map(str, argv)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)


CUT_DURING_VERIFY = """
import os, sys, threading, time
import squish_core as squish, toys
path, registry = sys.argv[1], toys.registry()
size = os.path.getsize(path)
target = squish.open(path, registry=registry) if sys.argv[2] == "file" else path
for attempt in range(12):
    os.truncate(path, size)
    cutter = threading.Timer(0.002 * attempt, os.truncate, (path, 4096))
    cutter.start()
    report = squish.verify(target, deep=True, registry=registry)
    cutter.join()
    print(sorted({problem.code for problem in report.problems}))
"""


@pytest.mark.parametrize("target", ["path", "file"])
def test_a_file_cut_during_deep_verify_is_a_finding_and_never_a_signal(target: str, tmp_path: Path) -> None:
    path = tmp_path / "a.box"
    path.write_bytes(toys.box({f"w{number}": np.ones((2048, 1024), np.float32) for number in range(6)}))
    done = run(CUT_DURING_VERIFY, path, target)
    assert done.returncode == 0, signal.Signals(-done.returncode).name
    codes = done.stdout.splitlines()
    assert len(codes) == 12
    # a file that was cut and grown again holds zeros, which a verify that ends before the next cut reports alone
    assert set(codes) <= {
        "[]",
        "['changed']",
        "['bounds']",
        "['bounds', 'changed']",
        "['changed', 'zeros']",
        "['zeros']",
    }
    assert any("changed" in code for code in codes)


CUT_UNDER_A_WEIGHT = """
import os, sys
import numpy as np
import squish_core as squish
with squish.open(sys.argv[1]) as file:
    weight = file["w"].load(sys.argv[2])
    before = weight.linear(np.ones((1, 1024), np.float32))
    os.truncate(sys.argv[1], 4096)
for run in (lambda: weight.linear(np.ones((1, 1024), np.float32)), weight.dense, weight.statistics,
            lambda: weight.embed(np.array([2000]))):
    try:
        run()
    except squish.TruncatedError as error:
        print(error.code, error.tensor, error.file == sys.argv[1])
    except squish.SquishError as error:
        print(type(error).__name__, error.code)
"""


@pytest.mark.parametrize("backend", ["cpu", "numpy"])
def test_a_loaded_weight_looks_at_its_file_before_each_operation(backend: str, tmp_path: Path) -> None:
    pytest.importorskip("squish_safetensors")
    pytest.importorskip(f"squish_{backend}" if backend != "numpy" else backend)
    path, data = tmp_path / "a.safetensors", np.ones((2048, 1024), np.float32)
    header = json.dumps({"w": {"dtype": "F32", "shape": data.shape, "data_offsets": [0, data.nbytes]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + data.tobytes())
    done = run(CUT_UNDER_A_WEIGHT, path, backend)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["changed w True"] * 4


@pytest.mark.parametrize("change", ["delete", "replace"])
def test_a_loaded_weight_outlives_its_files_name(change: str, tmp_path: Path) -> None:
    path = tmp_path / "a.box"
    path.write_bytes(toys.box({"w": np.ones((64, 32), np.float32)}))
    with squish.open(path, registry=toys.registry()) as file:
        weight = file["w"].load("numpy")
        path.unlink()
        if change == "replace":
            path.write_bytes(b"short")
        assert (weight.dense() == 1).all()


def test_without_mmap_arrays_are_memory_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "a.box"
    path.write_bytes(toys.box({"w": np.ones((64, 1024), np.float32)}))
    with squish.open(path, mmap=False, registry=toys.registry()) as file:
        array, weight = file["w"].numpy(), file["w"].load("numpy")
        assert not weight._backing
        os.truncate(path, 100)
        assert not array.flags.writeable
        assert (array == 1).all()
        with pytest.raises(TruncatedError) as caught:
            file["w"].numpy()
    assert (caught.value.code, caught.value.tensor) == ("changed", "w")


class FailingCall:
    """A function of `os` that gives EIO after its first `good` calls. An unreadable journal counts as none (`journal`),
    so calls about journals are left alone."""

    def __init__(self, work: Callable[..., Any], good: int) -> None:
        self.work, self.good, self.calls = work, good, 0

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        if str(arguments[0]).endswith(".edit"):
            return self.work(*arguments, **options)
        self.calls += 1
        if self.calls > self.good:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return self.work(*arguments, **options)


def reading_error(sample: Path, registry: Registry) -> SquishError | None:
    """What reading every tensor raises."""
    try:
        with squish.open(sample, registry=registry) as file:
            for tensor in file.values():
                tensor.numpy(copy=True)
    except SquishError as error:
        return error
    return None


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("call", ["open", "pread", "preadv", "fstat", "stat", "scandir"])
def test_a_failing_disk_is_a_typed_error_that_names_the_file(
    name: str, call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample, registry = tmp_path / name, squish.registry()
    (shutil.copytree if (DATA / name).is_dir() else shutil.copy)(DATA / name, sample)
    squish.verify(sample, deep=True, registry=registry)  # imports whatever is imported on the way
    assert reading_error(sample, registry) is None
    for good in range(20):
        with monkeypatch.context() as patch:
            patch.setattr(os, call, failing := FailingCall(getattr(os, call), good))
            report, verify_failed = squish.verify(sample, deep=True, registry=registry), failing.calls > good
            failing.calls = 0
            error, read_failed = reading_error(sample, registry), failing.calls > good
        assert report.ok is not verify_failed
        assert (error is not None) is read_failed
        if error is not None:
            assert str(tmp_path) in str(error.file)
            assert error.code in ("unreadable", "os")


@pytest.mark.parametrize("name", ["\ud800", "a\udfffb"])
def test_an_impossible_member_name_is_refused(name: str, tmp_path: Path) -> None:
    for source in (open_source(tmp_path), open_source(b"x")):
        with pytest.raises(FormatError) as caught:
            source.member(name)
        assert caught.value.code == "path"


def test_a_link_to_itself_is_skipped_and_blocks_no_other_file(tmp_path: Path) -> None:
    path = tmp_path / "a.box"
    path.write_bytes(toys.box({"w": np.ones((2, 2), np.float32)}))
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "nothing").symlink_to("absent")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert open_source(tmp_path).members() == ("a.box",)
        assert open_source(path).members() == ("a.box",)
        assert open_source(tmp_path).stat("loop") is None
        gc.collect()


def test_a_broken_link_and_a_url_with_one_slash_are_named(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").symlink_to("absent.gguf")
    with pytest.raises(squish.MissingFileError) as caught:
        squish.open(tmp_path / "model.gguf")
    assert (caught.value.code, caught.value.found) == ("missing", "absent.gguf")
    with pytest.raises(squish.MissingFileError) as caught:
        squish.open("https:/example.org/model.gguf")
    assert "https://" in (caught.value.hint or "")


def test_a_file_alive_when_the_interpreter_clears_its_modules_closes_in_silence(tmp_path: Path) -> None:
    path = tmp_path / "a.box"
    path.write_bytes(toys.box({"w": np.ones((2, 2), np.float32)}))
    script = """
import sys, types
first = sys.modules["first"] = types.ModuleType("first")  # modules are cleared latest first
import squish_core as squish, toys
first.file = squish.open(sys.argv[1], registry=toys.registry())
first.tensors = list(first.file.values())
sys.modules_kept = [first, sys.modules["squish_core.io.local"]]
"""
    done = run(script, path)
    assert (done.returncode, done.stderr) == (0, "")


UNDER_A_LIMIT = """
import resource, sys
import numpy, squish_core as squish, toys
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
try:
    squish.open(sys.argv[1], registry=toys.registry(), format="toy.box")["w"].numpy()
except squish.SquishError as error:
    print(error.code, error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits of address space")
def test_a_file_larger_than_the_memory_is_not_the_fault_of_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "m.box"
    path.write_bytes(toys.box({"w": np.ones(4, "f4")}))
    with open(path, "ab") as file:
        file.truncate(6 << 30)
    process = run(UNDER_A_LIMIT, path)
    assert process.stdout.startswith("memory "), process
    assert "not enough memory to read it" in process.stdout
    assert "disk" not in process.stdout
