"""Fuzz every format for some time, as many at once as there are cores: `python fuzz/run.py [--seconds N] [FORMAT ...]`.

Corpora grow in `.fuzz/<format>/`, from real files; an input that fails is left there as `crash-...`.
"""

import argparse
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from target import FORMATS, ROOT, seeds

OPTIONS = ("-timeout=10", "-rss_limit_mb=4096", "-max_len=65536", "-print_final_stats=1", "-verbosity=0")
EXECUTED = "stat::number_of_executed_units:"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("formats", nargs="*", default=FORMATS)
    parser.add_argument("--seconds", type=int, default=60, help="for each format")
    chosen = parser.parse_args()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        fine = list(pool.map(lambda name: fuzz(name, chosen.seconds), chosen.formats))
    return 0 if all(fine) else 1


def fuzz(name: str, seconds: int) -> bool:
    """Fuzz one format in a process of its own; whether nothing was found, which is printed, too."""
    corpus = ROOT / ".fuzz" / name
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds(name)):
        (corpus / f"seed-{number}").write_bytes(seed)
    command = [sys.executable, Path(__file__).with_name("target.py"), name, corpus]
    options = (*OPTIONS, f"-max_total_time={seconds}", f"-artifact_prefix={corpus}/")
    done = subprocess.run([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    inputs = [line.split()[-1] for line in done.stdout.splitlines() if line.startswith(EXECUTED)]
    if done.returncode or not inputs:
        print(f"{name}: FAILED\n{done.stdout[-10_000:]}", flush=True)
        return False
    print(f"{name}: fine, {int(inputs[0]):,} inputs", flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main())
