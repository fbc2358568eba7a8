"""An edge-aware segmentation loss for PyTorch, called like ``torch.nn.CrossEntropyLoss``."""

from edgeloss import debug, doctor, fields, functional, metrics, numerics
from edgeloss.debug import diagnose, tree
from edgeloss.library import backends, check
from edgeloss.loss import EdgeAwareLoss
from edgeloss.reference import LossMaps

__all__ = [
    "EdgeAwareLoss",
    "LossMaps",
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
