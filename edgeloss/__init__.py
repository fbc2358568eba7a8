"""An edge-aware segmentation loss for PyTorch, called like ``torch.nn.CrossEntropyLoss``."""

import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

# The command imports torch, which takes seconds, where it needs it: not for --help, and only once it handles Ctrl-C.
# All other programs import everything here, and with it the operators that torch.load and torch.compile use.
_IS_COMMAND = Path((sys.argv or [""])[0]).stem == "edgeloss" or sys.orig_argv[1:3] == ["-m", "edgeloss"]
if TYPE_CHECKING or not _IS_COMMAND:
    from edgeloss import debug, doctor, fields, functional, metrics, numerics
    from edgeloss._call import backends
    from edgeloss._kernels.library import check
    from edgeloss._reduction import LossMaps
    from edgeloss.debug import diagnose, tree
    from edgeloss.loss import EdgeAwareLoss

__all__ = [
    "EdgeAwareLoss",
    "LossMaps",
    "__version__",
    "backends",
    "check",
    "debug",
    "diagnose",
    "doctor",
    "fields",
    "functional",
    "metrics",
    "numerics",
    "tree",
]


try:
    __version__ = version("edgeloss")
except PackageNotFoundError:  # a source tree on the path
    __version__ = "unknown"
