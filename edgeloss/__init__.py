"""An edge-aware segmentation loss for PyTorch, called like ``torch.nn.CrossEntropyLoss``."""

from edgeloss import fields, functional
from edgeloss._ops import backends, check
from edgeloss.loss import EdgeAwareLoss
from edgeloss.reference import LossMaps

__all__ = ["EdgeAwareLoss", "LossMaps", "backends", "check", "fields", "functional"]
