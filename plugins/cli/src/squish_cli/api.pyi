# Generated from the table of the module: python tests/lint/faces.py
from squish_cli import options as options
from squish_cli.output import Answer as Answer
from squish_cli.output import Progress as Progress
