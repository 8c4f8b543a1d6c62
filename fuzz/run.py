"""Fuzz every format for some time: `python fuzz/run.py [--seconds N] [FORMAT ...]`.

Corpora grow in `.fuzz/<format>/`, from real files; an input that fails is left there as `crash-...`.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from target import FILES, FOLDERS, ROOT, seeds

OPTIONS = ("-timeout=10", "-rss_limit_mb=4096", "-max_len=65536", "-print_final_stats=1", "-verbosity=0")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("formats", nargs="*", default=[*FILES, *FOLDERS])
    parser.add_argument("--seconds", type=int, default=60, help="for each format")
    chosen = parser.parse_args()
    failed = []
    for name in chosen.formats:
        corpus = ROOT / ".fuzz" / name
        corpus.mkdir(parents=True, exist_ok=True)
        for number, seed in enumerate(seeds(name)):
            (corpus / f"seed-{number}").write_bytes(seed)
        command = [sys.executable, Path(__file__).with_name("target.py"), name, corpus]
        done = subprocess.run([*command, *OPTIONS, f"-max_total_time={chosen.seconds}", f"-artifact_prefix={corpus}/"])
        print(f"{name}: {'fine' if done.returncode == 0 else 'FAILED, see above'}", flush=True)
        failed += [name] * (done.returncode != 0)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
