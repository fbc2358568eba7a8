"""What `speed.py` measures: a module for each mode, whose `run` yields the rows."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples"))  # of segkit: the network
