# Generated from the table of the module: python tests/lint/faces.py
from squish_zstd.codec import Zstd as Zstd
from squish_zstd.codec import compression_level as compression_level
from squish_zstd.codec import decode_head as decode_head
