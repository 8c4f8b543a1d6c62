"""`python -m squish_core` is the `squish` command."""

import sys

from squish_core.cli import process

if __name__ == "__main__":
    sys.exit(process())
