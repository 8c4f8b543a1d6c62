"""The script `squish`, and `python -m squish_core`: both run the command line of squish-core-cli."""

from __future__ import annotations

import sys
from importlib import import_module


def main() -> int:
    """Run the command line, or say how to install it.

    Returns
    -------
    int
        The exit code; 2 if squish-core-cli is not installed.
    """
    try:
        cli = import_module("squish_cli")
    except ModuleNotFoundError as error:
        if error.name != "squish_cli":
            raise
        from squish_core.plugins.catalog import install_command

        hint = f"Run `{install_command('squish-core-cli')}`."
        print(f"error: the command line is not installed. {hint} [not-installed]", file=sys.stderr)
        return 2
    return int(cli.process())


if __name__ == "__main__":
    sys.exit(main())
