"""An edge-aware segmentation loss for PyTorch, called like ``torch.nn.CrossEntropyLoss``."""

from importlib.metadata import PackageNotFoundError, version

from edgeloss import debug, doctor, fields, functional, metrics, numerics
from edgeloss.debug import diagnose, tree
from edgeloss.library import backends, check
from edgeloss.loss import EdgeAwareLoss
from edgeloss.reference import LossMaps

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
