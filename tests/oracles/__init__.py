"""Peer packages to compare with: each in a process of its own, spoken to over a pipe.

    def decode(path):                   # runs in the peer: imports inside, `np` is there already
        import ztensor
        return ztensor.Reader(path).read("w")

    values = oracles.peer("ztensor-1.1.1").run(decode, path=str(path))

Environments are made on first use under `.oracles/`, shared where requirements agree, and kept. If one cannot be
made, that is an error, never a skip.
"""

import atexit
import contextlib
import fcntl
import functools
import inspect
import os
import selectors
import shutil
import signal
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

from .child import pack, unpack

ROOT = Path(__file__).resolve().parents[2]
CHILD = Path(__file__).with_name("child.py")
TIMEOUT = 120.0  # seconds for one call; a guard against hanging, not a measurement


@frozen
class Environment:
    """What a peer needs: requirements and a Python version (None: the running one). `bare`: what is installed besides
    without its dependencies, which ask for versions that are not to be had. `checkout`: the core and all plugins are
    there, too: those of the running environment where its Python has the same version."""

    requirements: str
    python: str | None = None
    bare: str = ""
    checkout: bool = False

    @property
    def version(self) -> str:
        return self.python or "{}.{}".format(*sys.version_info)

    @property
    def stamp(self) -> str:
        more = f"{self.bare}, bare\n" if self.bare else ""
        more += "this checkout\n" if self.checkout else ""
        return f"{self.requirements}\n{more}Python {self.version}\n"


# All that goes with one torch. gptqmodel and its helpers ask for a later torch than there is.
_TORCH = Environment(
    "torch==2.13.0 attrs numpy ml_dtypes safetensors==0.8.0 transformers==5.23.0 compressed-tensors==0.20.0 "
    "optimum==2.3.0 accelerate==1.15.0 bitsandbytes==0.50.2 hqq==0.2.8.post1 nvidia-modelopt==0.47.0 torchao==0.18.0 "
    "zipnn==0.5.4 setuptools wheel datasets device-smi dill logbar pillow protobuf pypcre requests threadpoolctl "
    "sentencepiece==0.2.3",
    python="3.11",
    bare="gptqmodel==7.7.0 tokenicer==0.0.14 defuser==0.0.28 peft==0.21.2",
)
_SQUISH_TORCH = Environment(
    "torch==2.13.0 transformers==5.23.0 accelerate==1.15.0 gguf==0.19.0 safetensors==0.8.0 numpy ml_dtypes jinja2 "
    "lm-eval==0.4.13 datasets==5.2.0",
    python="3.11",
    checkout=True,
)
_MLX = Environment("mlx-lm==0.32.2 mlx[cpu]==0.32.4 numpy ml_dtypes")
_ARRAYS = Environment("safetensors==0.8.0 numpy ml_dtypes")
ENVIRONMENTS = {
    "coremltools": Environment("coremltools==9.0 scikit-learn numpy"),
    "ggml": Environment("ggml-python==0.0.45 numpy"),
    "squish-ggml": Environment("ggml-python==0.0.45 gguf==0.19.0 numpy", checkout=True),
    "gguf": Environment("gguf==0.19.0 numpy"),
    "llama.cpp": Environment("xllamacpp==2026.10.11549 numpy"),
    # compiled where it is installed, for that processor: minutes, so only a benchmark has it
    "llama-cpp-python": Environment("llama-cpp-python==0.3.36 numpy"),
    "mistralrs": Environment("mistralrs==0.9.5 numpy"),
    **dict.fromkeys(("safetensors", "ml_dtypes"), _ARRAYS),
    **dict.fromkeys(("mlx-lm", "mlx"), _MLX),
    **dict.fromkeys(("torch", "bitsandbytes", "hqq", "modelopt", "torchao", "transformers", "zipnn"), _TORCH),
    "squish-torch": _SQUISH_TORCH,
    "squish-torch-lowest": Environment(
        "torch==2.13.0 transformers==5.4.0 accelerate==1.15.0 gguf==0.19.0 safetensors==0.8.0 numpy ml_dtypes jinja2",
        python="3.11",
        checkout=True,
    ),
    # kernels run in Triton's interpreter, and are compiled for GPUs: neither needs one
    "squish-cuda": Environment(
        "torch==2.13.0 triton==3.9.0 transformers==5.23.0 accelerate==1.15.0 gguf==0.19.0 safetensors==0.8.0 numpy "
        "ml_dtypes jinja2",
        python="3.11",
        checkout=True,
    ),
    "stores": Environment("moto[s3,server]==5.2.5 huggingface_hub==2.4.0 numpy ml_dtypes", checkout=True),
    "dask": Environment("dask==2026.8.0 distributed==2026.8.0 moto[s3,server]==5.2.5 numpy ml_dtypes", checkout=True),
    "numba": Environment("numba==0.68.1 numpy"),
    "onnxruntime": Environment("onnxruntime==1.31.1 onnx==1.23.2 numpy"),
    "onnxruntime-genai": Environment("onnxruntime-genai==0.18.0 onnxruntime==1.32.0 numpy"),
    "tiktoken": Environment("tiktoken==0.14.0 numpy"),
    "tokenizers": Environment("tokenizers==0.23.3 numpy"),
    "texture2ddecoder": Environment("texture2ddecoder==1.0.6 numpy"),
    "ztensor-1.1.1": Environment("ztensor==1.1.1 numpy scipy"),
    "ztensor-1.2.3": Environment("ztensor==1.2.3 numpy scipy"),
    "zarr": Environment("zarr==3.1.6 fsspec==2026.9.0 numpy"),
    # its wheels are for CPython 3.12 alone
    "ztensor-2.1.2": Environment("ztensor==2.1.2 numpy scipy", python="3.12"),
}


class OracleError(Exception):
    """An environment cannot be made, or a peer did not answer."""


class PeerCrashed(OracleError):  # noqa: N818 - an event, told apart from PeerError
    """The peer's process ended: `returncode` as in subprocess, so -11 is SIGSEGV."""

    def __init__(self, name: str, returncode: int, stderr: str) -> None:
        how = signal.Signals(-returncode).name if returncode < 0 else f"exit status {returncode}"
        super().__init__(f"{name}: the process ended with {how}\n{stderr}")
        self.returncode = returncode
        self.stderr = stderr


class PeerTimeout(OracleError):  # noqa: N818
    """The peer did not answer in time; its process was killed, and the next call starts another."""


class PeerError(OracleError):
    """The code sent to the peer raised: `kind` is the exception's class name there, `message` its text."""

    def __init__(self, name: str, kind: str, message: str, trace: str) -> None:
        super().__init__(f"{name}: {kind}: {message}\n{trace}")
        self.kind = kind
        self.message = message


class Peer:
    """One peer package. Arguments and results: what JSON can say, bytes, NumPy scalars and arrays."""

    def __init__(self, name: str, python: Path) -> None:
        self.name = name
        self.python = python
        self._process: subprocess.Popen[bytes] | None = None
        self._stderr = tempfile.TemporaryFile("a+b")  # noqa: SIM115 - open as long as the peer
        self._lock = threading.Lock()

    def run(self, code: Callable[..., Any] | str, /, *, timeout: float = TIMEOUT, **args: object) -> Any:
        """Run a function in the peer, or a snippet that sets `result`; neither may use outer names except `np`."""
        return self._ask(timeout, do="run", args=args, **_source(code))

    def prepare(self, code: Callable[..., Any] | str, /, *, timeout: float = TIMEOUT, **args: object) -> "Timed":
        """As `run`, but the result, a function without arguments, stays in the peer and is timed there."""
        number = self._ask(timeout, do="prepare", args=args, **_source(code))
        return Timed(lambda: self._ask(timeout, do="time", number=number))

    def close(self) -> None:
        """End the process; the next call starts another, without what was prepared."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def _start(self) -> subprocess.Popen[bytes]:
        self._stderr.seek(0)
        self._stderr.truncate()
        pipe = subprocess.PIPE
        return subprocess.Popen([self.python, "-I", CHILD], stdin=pipe, stdout=pipe, stderr=self._stderr, bufsize=0)

    def _ask(self, timeout: float, **request: object) -> Any:
        frame = pack(request)
        with self._lock:
            process = self._process = self._process or self._start()
            assert process.stdin is not None
            try:
                for piece in frame:
                    process.stdin.write(piece)
                answer = unpack(functools.partial(self._read, time.monotonic() + timeout))
            except (BrokenPipeError, EOFError):
                returncode = process.wait(10)
                self.close()
                raise PeerCrashed(self.name, returncode, self._tail()) from None
            except BaseException:  # half a frame may be on its way
                self.close()
                raise
        if "error" in answer:
            raise PeerError(self.name, **answer["error"])
        return answer["result"]

    def _read(self, deadline: float, size: int) -> bytearray:
        assert self._process is not None
        assert self._process.stdout is not None
        data = bytearray(size)
        view = memoryview(data)
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while view:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise PeerTimeout(f"{self.name}: no answer in time\n{self._tail()}")
                count = os.readv(self._process.stdout.fileno(), [view])
                if not count:
                    raise EOFError
                view = view[count:]
        return data

    def _tail(self) -> str:
        self._stderr.seek(0)
        return self._stderr.read()[-2000:].decode(errors="replace")


@frozen
class Timed:
    """A function that is timed in the peer, without the pipe: `seconds()` runs it once."""

    seconds: Callable[[], float]


@functools.cache
def peer(name: str) -> Peer:
    """The peer of that name, a key of ENVIRONMENTS; its environment is made on first use."""
    environment = ENVIRONMENTS[name]
    first_name = next(key for key, shared in ENVIRONMENTS.items() if shared is environment)
    peer = Peer(name, _python_with(environment, ROOT / ".oracles" / first_name))
    atexit.register(peer.close)
    return peer


def interleave(calls: Mapping[str, Callable[[], object] | Timed], repeat: int = 7) -> dict[str, float]:
    """Median seconds of each call, measured in turns, so that a slow moment of the machine affects all of them."""
    seconds = {name: call.seconds if isinstance(call, Timed) else clocked(call) for name, call in calls.items()}
    for measure in seconds.values():  # first calls import, allocate and fill caches
        measure()
    rounds = [{name: measure() for name, measure in seconds.items()} for _ in range(repeat)]
    return {name: statistics.median(round_[name] for round_ in rounds) for name in seconds}


def clocked(call: Callable[[], object]) -> Callable[[], float]:
    def measure() -> float:
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    return measure


def _source(code: Callable[..., Any] | str) -> dict[str, str]:
    if isinstance(code, str):
        return {"source": textwrap.dedent(code), "name": ""}
    return {"source": textwrap.dedent(inspect.getsource(code)), "name": code.__name__}


def _python_with(environment: Environment, folder: Path) -> Path:
    """The Python of the environment in `folder`, made anew unless complete for these requirements."""
    python, stamp = folder / "bin" / "python", folder / "complete"
    with _locked(folder):
        if python.exists() and stamp.exists() and stamp.read_text() == environment.stamp:
            return python
        shutil.rmtree(folder, ignore_errors=True)
        base = find_python(environment.version)
        _install(_uv(), "venv", "--quiet", "--python", base, folder)
        install = (_uv(), "pip", "install", "--quiet", "--python", python)
        requirements = environment.requirements.split()
        _install(*install, *_torch(base, requirements), *requirements)
        if environment.bare:
            _install(*install, "--no-deps", "--no-build-isolation", *environment.bare.split())
        if environment.checkout and environment.version == "{}.{}".format(*sys.version_info):
            (packages,) = folder.glob("lib/python*/site-packages")
            own = sysconfig.get_path("purelib")  # after the environment's own: its NumPy is the one that torch has
            (packages / "checkout.pth").write_text(f"import site; site.addsitedir({own!r})\n")
        elif environment.checkout:
            _install(*install, "--no-sources", *_checkout())
        stamp.write_text(environment.stamp)
    return python


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """While other processes wait to make the same folder."""
    folder.parent.mkdir(exist_ok=True)
    with open(folder.with_name(f"{folder.name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _torch(base: Path, requirements: Sequence[str]) -> tuple[str | Path, ...]:
    """Where uv finds torch, if it is required: downloaded by pip, whose settings may be all that offers a CPU build."""
    folder = ROOT / ".oracles" / "wheels"
    needed = [each for each in requirements if each.startswith("torch==")]
    if not needed:
        return ()
    with _locked(folder):
        _install(base, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, *needed)
    return "--find-links", folder


def _checkout() -> list[str | Path]:
    """What uv installs of this checkout: the core and every plugin, editable."""
    pins = ROOT / "constraints.txt"
    folders = [path.parent for path in sorted(ROOT.glob("plugins/*/pyproject.toml"))]
    editable = [item for target in (f"{ROOT}[cli,testing]", *map(str, folders)) for item in ("-e", target)]
    return ["-c", pins, "-b", pins, *editable]


def _install(*command: str | Path) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    if done.returncode:
        text = done.stdout.decode(errors="replace")
        raise OracleError(f"`{' '.join(map(str, command))}` failed; a package index must be reachable\n{text}")


def _uv() -> Path:
    installed = Path(sys.executable).with_name("uv")
    path = installed if installed.exists() else shutil.which("uv")
    if not path:
        raise OracleError("uv is missing: `make env` installs it, or `pip install uv`")
    return Path(path)


def find_python(version: str) -> Path:
    """A CPython `version` ("3.12") that runs: this one, on PATH, one of pyenv's, or one that uv knows."""
    if version == "{}.{}".format(*sys.version_info):
        return Path(sys.executable)
    candidates = [shutil.which(f"python{version}")]
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    candidates += map(str, sorted(root.glob(f"versions/{version}.*/bin/python"), reverse=True))
    for candidate in candidates:
        if candidate and _answers(candidate) == version:  # pyenv's shims may be there and fail
            return Path(candidate)
    python = subprocess.run([_uv(), "python", "find", version], capture_output=True, text=True).stdout.strip()
    if python and _answers(python) == version:
        return Path(python)
    raise OracleError(
        f"Python {version} is missing: not on PATH, not among pyenv's ({root}), not known to uv. "
        f"Install it, for example with `uv python install {version}`."
    )


def _answers(python: str) -> str:
    ask = [python, "-c", "import sys; print('{}.{}'.format(*sys.version_info))"]
    return subprocess.run(ask, capture_output=True, text=True).stdout.strip()
