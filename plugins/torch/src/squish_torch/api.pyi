# Generated from the table of the module: python tests/lint/faces.py
from squish_torch.evaluation.lockstep import evaluate as evaluate
from squish_torch.libraries import required as required
