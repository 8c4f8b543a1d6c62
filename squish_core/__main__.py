"""`python -m squish_core` is the `squish` command."""

import sys

from squish_core.cli import main

if __name__ == "__main__":
    sys.exit(main())
