"""Codecs of the SQUIZD format: INT4 and INT2 blocks, and TCA-TBE."""
