# Generated from the table of the module: python tests/lint/faces.py
from squish_cli import options as options
from squish_cli.annotations import Finding as Finding
from squish_cli.annotations import check_output as check_output
from squish_cli.annotations import finding_lines as finding_lines
from squish_cli.output import Answer as Answer
from squish_cli.output import JSON as JSON
from squish_cli.output import JSON_LINES as JSON_LINES
from squish_cli.output import PIECE as PIECE
from squish_cli.output import Progress as Progress
from squish_cli.output import TEXT as TEXT
from squish_cli.output import print_document as print_document
from squish_cli.output import style as style
