"""`python -m squish_core` is the `squish` command."""

from squish_core.cli import main

if __name__ == "__main__":
    main()
