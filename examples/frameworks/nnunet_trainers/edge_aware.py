"""The trainers that nnU-Net finds in this folder: set its variable ``nnUNet_extTrainer`` to it."""

from edgeloss.integrations.nnunet import nnUNetTrainerEdgeAware

__all__ = ["nnUNetTrainerEdgeAware"]
