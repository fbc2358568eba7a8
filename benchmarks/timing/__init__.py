"""What `speed.py` measures: a module for each mode, which adds its options to the command line and runs."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples"))  # of segkit: the network
