# Generated from the table of the module: python tests/lint/faces.py
from squish_gguf.kept_files import FILE as FILE
from squish_gguf.kept_files import pack_files as pack_files
from squish_gguf.kept_files import unpack_files as unpack_files
from squish_gguf.text_arrays import text_array as text_array
from squish_gguf.values import pack_pair as pack_pair
