"""Codecs that the SQUIZD format introduced: its INT4 and INT2 blocks, and TCA-TBE."""
