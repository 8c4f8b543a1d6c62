# Generated from the table of the module: python tests/lint/faces.py
from squish_cpu.vocabulary import ScannedVocabulary as ScannedVocabulary
from squish_cpu.vocabulary import check_vocabulary as check_vocabulary
from squish_cpu.vocabulary import read_vocabulary as read_vocabulary
from squish_cpu.vocabulary import write_vocabulary as write_vocabulary
