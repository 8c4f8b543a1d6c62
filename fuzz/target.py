"""One atheris target for each format: `python fuzz/target.py FORMAT CORPUS [libFuzzer options]`.

Bytes are opened as the format and everything small in it is read. Whatever is raised must be a SquishError that is no
plugin's bug. A format that lives in folders gets its `config.json` fuzzed: the first byte chooses the folder.
"""

import sys
from functools import partial
from pathlib import Path

import atheris

PACKAGES = [
    "squish_core", "squish_codecs", "squish_ggml", "squish_gguf", "squish_hf", "squish_mlx", "squish_safetensors",
    "squish_squizd", "squish_uqff", "squish_ztensor",
]  # fmt: skip

with atheris.instrument_imports(include=PACKAGES):
    import squish_core as squish
    from squish_core.testing.hostile import probe
    from squish_core.testing.sources import DamagedFolder, source_of

ROOT = Path(__file__).resolve().parents[1]
FILES = {
    "gguf": "**/*.gguf", "safetensors": "**/*.safetensors", "ztensor": "**/*.zt", "squizd": "**/*.squizd",
    "uqff": "**/*.uqff",
}  # fmt: skip
FOLDERS = {"hf": ROOT / "plugins" / "hf" / "tests" / "data", "mlx": ROOT / "plugins" / "mlx_format" / "tests" / "data"}
CONFIG = "config.json"


def folders(name: str) -> list[Path]:
    """The sample checkpoints of a format, in order."""
    return sorted(path.parent for path in FOLDERS[name].glob(f"*/{CONFIG}"))


def seeds(name: str) -> list[bytes]:
    """Real files of a format: what mutation starts from."""
    if name in FOLDERS:
        return [bytes([number]) + (path / CONFIG).read_bytes() for number, path in enumerate(folders(name))]
    places = (*ROOT.glob(f"plugins/*/tests/data/{FILES[name]}"), *ROOT.glob(f"tests/data/{FILES[name]}"))
    return [path.read_bytes() for path in places if path.stat().st_size < 1 << 16]


def opened(name: str, data: bytes) -> squish.File:
    """Fuzzed bytes as a file of a format."""
    if name not in FOLDERS:
        return squish.open(data, name)
    samples = folders(name)
    folder = samples[(data[0] if data else 0) % len(samples)]
    return squish.open(DamagedFolder(source_of(folder), CONFIG, data[1:]), name)


def one_file(name: str, data: bytes) -> None:
    """Read everything that is small; only a SquishError may come, and no bug of a plugin."""
    try:
        with opened(name, data) as file:
            probe(file)
    except squish.SquishError as error:
        if error.code in ("plugin-bug", "memory"):
            raise


def main() -> None:
    name = sys.argv.pop(1)
    with atheris.instrument_imports(include=PACKAGES):  # plugins are imported when they are first needed
        for seed in seeds(name):
            one_file(name, seed)

    atheris.Setup(sys.argv, partial(one_file, name))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
