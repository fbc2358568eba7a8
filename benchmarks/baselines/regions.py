"""Dice, clDice and Hausdorff-DT of MONAI, Lovász-softmax of kornia, with an ignored label."""

from __future__ import annotations

import torch
from torch import Tensor

from baselines.common import one_hot

# The libraries take seconds to import, so only the functions that need them import them.


def dice(logits: Tensor, target: Tensor, *, ignore_index: int) -> Tensor:
    """Compute the Dice term of :class:`monai.losses.DiceCELoss`.

    The term is per image and class. Source: Milletari et al. 2016; MONAI's code, with its defaults. An ignored pixel
    has probability and label 0 in every class, so it contributes to no intersection and no sum.
    """
    return _monai("DiceLoss", logits, target, ignore_index)


def cldice(logits: Tensor, target: Tensor, *, ignore_index: int, thin_class: int = -1) -> Tensor:
    """Compute :class:`monai.losses.SoftDiceclDiceLoss`: (Dice + clDice) / 2, for thin structures.

    Source: Shit et al., "clDice - a Novel Topology-Preserving Loss Function for Tubular Structure Segmentation", CVPR
    2021; MONAI's code, with its defaults. An ignored pixel has probability and label 0. The loss of a batch without
    valid pixels is 0.

    Args:
        logits: [B, C, *S].
        target: [B, *S].
        ignore_index: the ignored label.
        thin_class: the class whose structures are thin; -1 for all classes.
    """
    chosen = slice(None) if thin_class < 0 else slice(thin_class, thin_class + 1)
    return _monai("SoftDiceclDiceLoss", logits, target, ignore_index, chosen) * (target != ignore_index).any()


def hausdorff(logits: Tensor, target: Tensor, *, ignore_index: int) -> Tensor:
    """Compute :class:`monai.losses.HausdorffDTLoss`.

    It takes four distance transforms per image and class. Source: Karimi and Salcudean 2019; MONAI's code, with its
    defaults. An ignored pixel has probability and label 0.
    """
    return _monai("HausdorffDTLoss", logits, target, ignore_index)


def lovasz(logits: Tensor, target: Tensor, *, ignore_index: int) -> Tensor:
    """Compute :func:`kornia.losses.lovasz_softmax_loss` of the valid pixels.

    Returns the mean over the images that have any. Source: Berman et al. 2018; kornia's code, which averages over all
    classes, including absent ones.
    """
    from kornia.losses import lovasz_softmax_loss

    losses = []
    for image, labels in zip(logits.flatten(2), target.flatten(1), strict=True):
        valid = (labels != ignore_index).nonzero().squeeze(1)
        if len(valid):
            chosen = image.index_select(1, valid)[None, :, :, None]
            losses.append(lovasz_softmax_loss(chosen, labels.index_select(0, valid)[None, :, None]))
    return torch.stack(losses).mean() if losses else logits.sum() * 0


def _monai(name: str, logits: Tensor, target: Tensor, ignore_index: int, classes: slice = slice(None)) -> Tensor:
    """Compute a loss of MONAI from probabilities and one-hot labels, of some classes or all."""
    from monai import losses

    p = logits.softmax(1).masked_fill((target == ignore_index)[:, None], 0)
    labels = one_hot(target, logits.shape[1], ignore_index).to(p.dtype)
    loss: Tensor = getattr(losses, name)(include_background=True)(p[:, classes], labels[:, classes])
    return loss
