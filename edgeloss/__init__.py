"""An edge-aware segmentation loss for PyTorch, called like ``torch.nn.CrossEntropyLoss``."""

from edgeloss import doctor, fields, functional, metrics, numerics
from edgeloss._ops import backends, check
from edgeloss.doctor import diagnose, tree
from edgeloss.loss import EdgeAwareLoss
from edgeloss.reference import LossMaps

__all__ = [
    "EdgeAwareLoss",
    "LossMaps",
    "backends",
    "check",
    "diagnose",
    "doctor",
    "fields",
    "functional",
    "metrics",
    "numerics",
    "tree",
]
