# Generated from the table of the module: python tests/lint/faces.py
from squish_ggml.blocks import has_encoder as has_encoder
from squish_ggml.codec import blocks_for as blocks_for
