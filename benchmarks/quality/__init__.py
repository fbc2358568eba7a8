"""Train one network under many losses and compare them.

``../quality.py`` is the command line.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "examples"))  # of segkit: the network and the data
