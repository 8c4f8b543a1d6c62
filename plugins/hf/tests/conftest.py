"""Where the samples of these tests are imported from."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # hf_samples is a module of these tests
